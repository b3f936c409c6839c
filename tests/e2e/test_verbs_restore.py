"""`spotwarp restore` as a program: whole and verified, or nothing; a kill costs only time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.checkpoints import huggingface_files, write_files
from spotwarp.testing.faultproxy import FaultProxy, Rule
from spotwarp.testing.product import Machine
from spotwarp.testing.seaweed import Seaweed
from spotwarp.testing.trees import read_tree

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow  # a whole program, several times


def content(root: Path) -> dict[str, bytes]:
    """The files of a workspace that are the user's."""
    own = root / ".spotwarp"
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in sorted(root.rglob("*"))
        if p.is_file() and not p.is_relative_to(own)
    }


@pytest.fixture
def filled(ws: Machine) -> Machine:
    """Two snapshots, each with a resumable checkpoint of its own; the newer has a torn one besides."""
    ws.file("train.py", "print('hello')\n")
    ws.file("data/odd \xe9 name", bytes(range(256)) * 40)
    (ws.path / "link").symlink_to("data")
    write_files(ws.path / "out" / "checkpoint-10", huggingface_files(10))
    ws("sync")
    ws.file("notes", "after the checkpoint")
    write_files(ws.path / "out" / "checkpoint-15", huggingface_files(15))
    torn = huggingface_files(20)
    del torn["trainer_state.json"]
    write_files(ws.path / "out" / "checkpoint-20", torn)
    ws("sync")
    return ws


def test_to_a_new_directory_the_tree_is_the_same(filled: Machine, tmp_path: Path) -> None:
    facts = filled.facts("restore", "--to", str(tmp_path / "new"))
    assert {"snapshot", "to", "files", "bytes", "read_bytes", "seconds"} <= set(facts)
    assert facts["snapshot"] == filled.snapshots()[-1]["id"]
    got, source = content(tmp_path / "new"), content(filled.path)
    torn = {k for k in source if k.startswith("out/checkpoint-20/")}
    assert {k: v for k, v in got.items() if "torn" not in k} == {k: v for k, v in source.items() if k not in torn}
    assert {k for k in got if "checkpoint-20.torn" in k}  # kept, under a name that no trainer takes
    assert (tmp_path / "new" / "link").readlink() == Path("data")
    source_times, got_times = read_tree(filled.path / "data"), read_tree(tmp_path / "new" / "data")
    assert got_times == source_times


def test_twice_to_one_directory_is_refused_and_changes_nothing(filled: Machine, tmp_path: Path) -> None:
    filled("restore", "--to", str(tmp_path / "new"))
    before = read_tree(tmp_path / "new")
    assert "not empty" in filled("restore", "--to", str(tmp_path / "new"), code=2).err
    assert read_tree(tmp_path / "new") == before
    assert {p.name for p in tmp_path.iterdir() if p.name.startswith("new")} == {"new"}


def test_by_number_latest_and_latest_resumable(filled: Machine, tmp_path: Path) -> None:
    older, newer = [s["id"] for s in filled.snapshots()]
    chosen = {
        wanted: filled.facts("restore", "--snapshot", wanted, "--to", str(tmp_path / f"to-{wanted}"))["snapshot"]
        for wanted in (str(older), str(newer), "latest", "latest-resumable")
    }
    assert chosen == {str(older): older, str(newer): newer, "latest": newer, "latest-resumable": newer}
    assert not (tmp_path / f"to-{older}" / "notes").exists()
    for wanted in ("999", "newest", "-1"):
        filled("restore", f"--snapshot={wanted}", "--to", str(tmp_path / "never"), code=10)
    assert not (tmp_path / "never").exists()


def test_only_some_paths(filled: Machine, tmp_path: Path) -> None:
    filled("restore", "--to", str(tmp_path / "some"), "out/checkpoint-10", "train.py")
    got = content(tmp_path / "some")
    assert set(got) == {"train.py", *(f"out/checkpoint-10/{name}" for name in huggingface_files(10))}
    filled("restore", "--to", str(tmp_path / "none"), "no/such/path", code=10)
    assert not (tmp_path / "none").exists()


def test_into_a_workspace_twice_is_as_once(filled: Machine, rent: Rent) -> None:
    other = rent("other").init()
    first = other.facts("restore")
    tree = read_tree(other.path)
    second = other.facts("restore")
    assert first["files"] > 0
    assert (second["files"], second["bytes"]) == (0, 0)
    assert {k: v for k, v in content(other.path).items() if "torn" not in k} == {
        k: v for k, v in content(filled.path).items() if "checkpoint-20/" not in k
    }
    after = read_tree(other.path)
    assert {k: v for k, v in after.items() if b".spotwarp" not in k} == {
        k: v for k, v in tree.items() if b".spotwarp" not in k
    }


def test_work_of_ones_own_is_kept_until_force_sets_it_aside(filled: Machine, rent: Rent) -> None:
    other = rent("other").init()
    other("restore")
    other.file("train.py", "my own edit")
    refused = other("restore", code=21)
    assert "train.py" in refused.err
    assert (other.path / "train.py").read_text() == "my own edit"
    other("restore", "--force", "train.py")
    assert (other.path / "train.py").read_text() == "print('hello')\n"
    assert [p.read_text() for p in (other.path / ".spotwarp" / "set-aside").rglob("train.py")] == ["my own edit"]
    other("restore", "--force", "--to", "x", code=2)


def test_over_an_older_copy_only_what_differs_is_fetched(filled: Machine, rent: Rent) -> None:
    data = bytearray(os.urandom(12 << 20))
    (filled.path / "model.bin").write_bytes(data)
    (filled.path / "train.log").write_bytes(bytes(data[: 5 << 20]))
    filled("sync")
    other = rent("other").init()
    other("restore")
    data[5 << 20 : (5 << 20) + 4096] = os.urandom(4096)
    (filled.path / "model.bin").write_bytes(data)
    with (filled.path / "train.log").open("ab") as log:
        log.write(b"one more line\n")
    filled("sync")
    done = other.facts("restore")
    assert done["kept_bytes"] >= 12 << 20, done
    assert done["read_bytes"] < 6 << 20, done
    for name in ("model.bin", "train.log"):
        assert (other.path / name).read_bytes() == (filled.path / name).read_bytes()


def test_nothing_to_restore_is_said(ws: Machine, tmp_path: Path) -> None:
    assert "hint:" in ws("restore", "--to", str(tmp_path / "x"), code=10).err
    assert "hint:" in ws("restore", "--run", "other", code=10).err


def test_A44_killed_half_way_and_again(rent: Rent, seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str) -> None:
    source = rent("source", remote=s3_url, env=seaweed_server.env()).init()
    for number in range(8):
        source.file(f"part-{number}", bytes([number]) + bytes(range(251)) * 4200)
        source("sync")
    for share in (0.2, 0.5, 0.9):
        target = rent(f"target-{share}", remote=s3_url, env=seaweed_server.env(endpoint=s3_proxy.endpoint)).init()
        s3_proxy.forget()
        s3_proxy.rule(Rule(verb="GET", path="/packs/", delay_s=0.2))
        restoring = target.start("restore")
        assert s3_proxy.wait_seen(max(1, int(8 * share)), verb="GET", path="/packs/")
        time.sleep(0.2 * share)  # the kill falls anywhere in a transfer
        target.die()
        assert restoring.process.returncode == -signal.SIGKILL
        for name, body in content(target.path).items():  # what is in place is whole
            assert body == (source.path / name).read_bytes()
        s3_proxy.rule()
        assert target("run", "--command", "ls part-* | wc -l; exit 5", code=5).out.split() == [b"8"]
        assert content(target.path) == content(source.path)
        assert not (target.path / ".spotwarp" / "staging").exists()
        assert not (target.path / ".spotwarp" / "restoring").exists()
