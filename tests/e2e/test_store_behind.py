"""A store that was put back to an older state than a workspace has stored in it: what is here is local work again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.product import Machine

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow  # a whole program, several times

SAID = "the store is behind this workspace"


def put_back(bucket: Path, copy: Path) -> None:
    """The bucket as it was when it was copied."""
    shutil.rmtree(bucket)
    shutil.copytree(copy, bucket)


@pytest.fixture
def old(ws: Machine, bucket: Path, tmp_path: Path) -> Path:
    """A copy of the bucket with the first of two snapshots; the workspace has the second."""
    ws.file("data", "v1\n")
    ws("sync")
    shutil.copytree(bucket, tmp_path / "old")
    ws.file("data", "v2, which no older copy has\n")
    ws("sync")
    return tmp_path / "old"


def aside(machine: Machine) -> list[str]:
    return [p.read_text() for p in (machine.path / ".spotwarp" / "set-aside").rglob("data")]


def test_every_verb_says_so_and_none_overwrites(ws: Machine, bucket: Path, old: Path) -> None:
    was, last = [one["id"] for one in ws.snapshots()]
    put_back(bucket, old)
    before = {p: p.read_bytes() for p in bucket.rglob("*") if p.is_file()}
    for code, *verb in ((125, "run", "--command", "cat data"), (21, "restore"), (21, "sync")):
        refused = ws(*verb, code=code)
        assert f"{SAID}: it was at snapshot {last}, the store's last one is {was}" in refused.err, verb
        assert refused.err.count(SAID) == 1, verb
        assert "--keep-local" in refused.err, verb
        assert b"v1" not in refused.out, verb
    assert ws.facts("status", code=1)["behind"].startswith(SAID)
    assert SAID in ws("status", code=1).out.decode()
    assert SAID in ws("doctor", code=None).out.decode()
    assert (ws.path / "data").read_text() == "v2, which no older copy has\n"
    for path, data in before.items():
        assert path.read_bytes() == data, path
    assert [one["id"] for one in ws.snapshots()] == [was]
    (ws.path / "data").unlink()
    done = ws("run", "--command", "cat data")  # nothing is at stake: it is only said
    assert (done.out, done.err.count(SAID)) == (b"v1\n", 1)


def test_keep_local_goes_on_from_what_is_here(ws: Machine, bucket: Path, old: Path, tmp_path: Path) -> None:
    put_back(bucket, old)
    done = ws("run", "--keep-local", "--command", "cat data")
    assert done.out.startswith(b"v2")
    assert SAID in done.err
    ws("restore", "--to", str(tmp_path / "new"))
    assert (tmp_path / "new" / "data").read_text() == (ws.path / "data").read_text() == "v2, which no older copy has\n"
    assert ws.facts("status")["behind"] == ""


def test_what_was_kept_is_still_local_work_when_the_store_moves_on(
    ws: Machine, rent: Rent, bucket: Path, old: Path
) -> None:
    put_back(bucket, old)
    ws("run", "--keep-local", "--", "/nowhere/at/all", code=127)  # before anything was stored
    other = rent("other").init()
    other("restore")
    other.file("data", "v3\n")
    other("sync")
    assert "stored nowhere: data" in ws("restore", code=21).err
    assert (ws.path / "data").read_text() == "v2, which no older copy has\n"


def test_another_snapshot_under_the_same_number(ws: Machine, rent: Rent, bucket: Path, old: Path) -> None:
    last = ws.snapshots()[-1]["id"]
    put_back(bucket, old)
    other = rent("other").init()
    other("restore")
    other.file("data", "v3\n")
    other("sync")
    assert other.snapshots()[-1]["id"] == last
    refused = ws("run", "--command", "cat data", code=125)
    assert f"it was at snapshot {last}, and that is another one there" in refused.err
    assert (ws.path / "data").read_text() == "v2, which no older copy has\n"
    assert ws("run", "--restore", "--command", "cat data").out == b"v3\n"
    assert aside(ws) == ["v2, which no older copy has\n"]


def test_nothing_of_the_run_is_left(ws: Machine, bucket: Path, tmp_path: Path) -> None:
    shutil.copytree(bucket, tmp_path / "empty")
    ws.file("data", "v1\n")
    ws("sync")
    put_back(bucket, tmp_path / "empty")
    assert f"{SAID}: it was at snapshot" in ws("run", "--command", "cat data", code=125).err
    assert f"{SAID}: it was at snapshot" in ws("sync", code=21).err
    assert ws("run", "--keep-local", "--command", "cat data").out == b"v1\n"
    assert ws.snapshots()
