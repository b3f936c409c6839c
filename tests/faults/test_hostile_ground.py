"""The ground under a run gives way: a directory is deleted, a disk fills, a store goes and comes, a name is no text."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotwarp.testing.product import Machine, until
from spotwarp.testing.pytest_product import bucket, rent, ws

__all__ = ["bucket", "rent", "ws"]

pytestmark = pytest.mark.slow

Rent = Callable[..., Machine]


# --- our own directory is deleted


@pytest.mark.parametrize("interval", ["1s", "1h"])
def test_a_run_whose_own_directory_is_deleted_ends_as_it_says(ws: Machine, rent: Rent, interval: str) -> None:
    program = ws.start(
        "run", "--interval", interval, "--command",
        "touch ready; until test -e go; do sleep 0.05; done; rm -rf .spotwarp; echo late > work; "
        "until test -e end; do sleep 0.05; done; exit 3",
    )  # fmt: skip
    program.until((ws.path / "ready").exists)
    if interval == "1s":
        until(lambda: ws.snapshots(), "a snapshot")
    ws.file("go", "")
    program.until((ws.path / "work").exists)
    other = rent("other").init()
    if interval == "1s":
        last = other.snapshots()[-1]["id"]
        program.until(lambda: other.snapshots()[-1]["id"] > last, "another snapshot")
    ws.file("end", "")
    done = program.end(3)
    assert "everything is stored" in done.err
    assert other("run", "--command", "cat work; exit 4", code=4).out == b"late\n"


# --- the store comes and goes


def test_a_directory_that_comes_back_in_time_gets_the_last_snapshot(ws: Machine, bucket: Path) -> None:
    """A network disk that is mounted again while the final sync is patient."""
    command = "touch ready; until test -e go; do sleep 0.05; done; echo late > work; touch ended; exit 3"
    program = ws.start("run", "--interval", "1h", "--command", command, env={"SPOTWARP_PATIENCE": "60s"})
    program.until((ws.path / "ready").exists)
    bucket.rename(bucket.with_name("away"))
    ws.file("go", "")
    program.until(lambda: "NOT STORED" in program.err and (ws.path / "ended").exists(), "a failed sync")
    bucket.with_name("away").rename(bucket)
    assert "everything is stored" in program.end(3).err
    facts = ws.facts("status")
    assert (facts["state"], facts["exit"]) == ("stopped", 3)
    ws("restore", "--to", str(ws.path.with_name("out")))
    assert (ws.path.with_name("out") / "work").read_text() == "late\n"


# --- a full local disk


@pytest.fixture
def small(rent: Rent, tmp_path: Path) -> Iterator[Machine]:
    """A machine whose workspace is on a disk of 6 MiB."""
    disk = tmp_path / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6M", "spotwarp-test", disk], check=True)
    try:
        yield rent("small").init()
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.deep
def test_a_full_local_disk_does_not_keep_what_is_on_it_from_being_stored(small: Machine, rent: Rent) -> None:
    command = (
        "echo before > work; head -c 20000000 /dev/urandom > fill 2>/dev/null; touch ../full; "
        "until test -e ../go; do sleep 0.05; done; exit 3"
    )
    program = small.start("run", "--command", command)
    program.until(small.path.with_name("full").exists)
    other = rent("other").init()
    told = len(other.snapshots())
    program.until(lambda: len(other.snapshots()) > told or other.snapshots()[-1]["bytes"] > 3 << 20, "a snapshot")
    small.path.with_name("go").touch()
    assert "everything is stored" in program.end(3).err
    other("run", "--command", "cmp fill ../small/fill && cat work")


# --- names that are no text

ODD = b"w\xff\xe9 s\xc3"


@pytest.fixture(params=["utf-8:strict", "ascii:strict"])
def odd(request: pytest.FixtureRequest, rent: Rent) -> Machine:
    """A machine whose workspace has a name that is no UTF-8, and whose terminal takes no such thing either."""
    return rent(os.fsdecode(ODD), env={"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": request.param}).init()


def test_a_workspace_and_a_command_that_are_no_text(odd: Machine) -> None:
    word = os.fsdecode(b"caf\xe9")
    program = odd.start(
        "run", "--command", f"echo x > {word}; touch ready; until test -e go; do sleep 0.05; done; exit 3"
    )
    program.until((odd.path / "ready").exists)
    odd("sync")
    assert odd("status").out
    assert odd.facts("status")["state"] != "new"
    odd.file("go", "")
    program.end(3)
    assert (odd.path / word).exists()
    assert "hint:" in odd("run", code=2).err  # half a command is not recorded
    odd("run", "--", "cat", word, code=0)
    out = odd.path.with_name(os.fsdecode(b"out\xff"))
    odd("restore", "--to", str(out))
    assert (out / word).read_text() == "x\n"
    again = out.with_name(f"{out.name}2")
    assert odd.facts("restore", "--to", str(again))["to"] == str(again)
    for verb in (["snapshots"], ["runs"], ["check", "--read-data"], ["init"], ["init", "--json"]):
        odd(*verb)
    odd("exclude", word, code=2)


def test_the_directory_of_a_command_may_be_no_text(ws: Machine) -> None:
    inner = ws.path / os.fsdecode(b"in\xff")
    inner.mkdir()
    ws("run", "--", sys.executable, "-c", "open('here', 'w').close(); raise SystemExit(5)", cwd=inner, code=5)
    assert (inner / "here").exists()
    ws("run", "--command", "exit 6", code=6)


@pytest.mark.deep
def test_a_disk_that_is_full_from_the_start_can_be_stored(small: Machine, rent: Rent) -> None:
    with contextlib.suppress(OSError), (small.path / "fill").open("wb", buffering=0) as fill:
        while True:
            fill.write(os.urandom(1 << 12))
    assert small.facts("sync")["lacking"] == ""
    small("run", "--command", "exit 3", code=3)
    rent("other").init()("run", "--command", "cmp fill ../small/fill")
