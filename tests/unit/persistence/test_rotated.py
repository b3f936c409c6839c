"""What moves while it is stored: checkpoints rotated away, files and directories renamed."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from spotwarp.errors import Interrupted
from spotwarp.persistence.backup import BackupOptions
from spotwarp.persistence.manifest import CheckpointFact
from spotwarp.persistence.scan import Scanned
from spotwarp.testing.backups import Backups, noise
from spotwarp.testing.stores import Fault
from spotwarp.testing.trees import read_tree

KIB, MIB = 1 << 10, 1 << 20
SLOW = BackupOptions(workers=1, uploads=1, pack_size=5 * MIB)
"""One thing after the other: with the first put, most of the checkpoint has not been read."""
CHECKPOINT = b"out/checkpoint-10"


def judge(root: Path, entries: Sequence[Scanned]) -> list[CheckpointFact]:
    return [
        CheckpointFact(e.path, "resumable", step=int(e.path.rpartition(b"-")[2]))
        for e in entries
        if e.kind == 1 and e.path.rpartition(b"/")[2].startswith(b"checkpoint-")
    ]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    root = tmp_path / "w"
    place = root / "out/checkpoint-10"
    place.mkdir(parents=True)
    for k in range(20):
        (place / f"shard-{k:02}.bin").write_bytes(noise(2 * MIB, k))
    for k in range(5):
        (place / f"small-{k}").write_bytes(noise(5 * KIB, 100 + k))
    (root / "train.py").write_bytes(b"import this\n")
    return root


def cls(backups: Backups) -> dict[bytes, tuple[str, str]]:
    assert backups.base is not None
    return {fact.path: (fact.cls, fact.reason) for fact in backups.base.checkpoints}


def at_the_first_put(backups: Backups, act: Callable[[], object]) -> None:
    backups.calls.add(Fault("put", key="/packs/", hook=act))


def rotate(root: Path) -> None:
    shutil.rmtree(root / "out/checkpoint-10")


def test_a_checkpoint_that_is_rotated_away_while_it_is_sent_is_stored_whole(work: Path, tmp_path: Path) -> None:
    before = read_tree(work)
    backups = Backups(work, judge=judge, options=SLOW)
    at_the_first_put(backups, lambda: rotate(work))
    uploaded = backups.take()
    assert (uploaded.vanished, uploaded.unstable) == ((), ())
    assert cls(backups) == {CHECKPOINT: ("resumable", "")}
    assert backups.restored(tmp_path / "r") == before
    assert not backups.take().unchanged
    assert cls(backups) == {}


def test_what_comes_while_the_rest_goes_makes_it_torn(work: Path) -> None:
    """Nobody knows what the newcomer belongs to."""

    def act() -> None:
        (work / "out/checkpoint-10/shard-00.bin").unlink()
        (work / "out/checkpoint-10/more").write_bytes(b"x")

    backups = Backups(work, judge=judge, options=SLOW)
    at_the_first_put(backups, act)
    backups.take()
    assert cls(backups)[CHECKPOINT] == ("torn", "it changed while it was being stored")


def test_what_is_written_before_it_goes_makes_it_torn(work: Path) -> None:
    def act() -> None:
        with (work / "out/checkpoint-10/shard-19.bin").open("r+b") as file:
            file.write(b"another beginning")
        rotate(work)

    backups = Backups(work, judge=judge, options=SLOW)
    at_the_first_put(backups, act)
    backups.take()
    assert cls(backups)[CHECKPOINT] == ("torn", "shard-19.bin vanished while it was being stored")


def test_what_has_gone_before_it_could_be_opened_makes_it_torn(work: Path) -> None:
    def late(root: Path, entries: Sequence[Scanned]) -> list[CheckpointFact]:
        facts = judge(root, entries)
        (work / "out/checkpoint-10/shard-07.bin").unlink()
        return facts

    backups = Backups(work, judge=late, options=SLOW)
    assert backups.take().vanished == (CHECKPOINT + b"/shard-07.bin",)
    assert cls(backups)[CHECKPOINT][0] == "torn"


def test_where_the_disk_is_short_nothing_is_kept_from_it(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room of what the trainer deletes is the trainer's."""
    backups = Backups(work, judge=judge, options=SLOW)
    monkeypatch.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_bavail=100 * MIB, f_frsize=1))
    at_the_first_put(backups, lambda: rotate(work))
    backups.take()
    assert cls(backups)[CHECKPOINT][0] == "torn"


def test_no_descriptor_is_left_open(work: Path) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    for cancelled in (False, True):
        backups = Backups(work, judge=judge, options=SLOW)
        stop = threading.Event()
        seen: list[int] = []
        at_the_first_put(backups, lambda stop=stop, seen=seen, c=cancelled: (seen.append(count()), c and stop.set()))
        with pytest.raises(Interrupted) if cancelled else nullcontext():
            backups.take(cancel=stop)
        deadline = time.monotonic() + 30  # a stopped backup does not wait for its last put
        while count() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert count() == before < seen[0] - 10


# --------------------------------------------------------------------------------------------------------- renames


def after_scan(*renames: tuple[str, str]) -> Callable[[Path, Sequence[Scanned]], tuple[()]]:
    def act(root: Path, entries: Sequence[Scanned]) -> tuple[()]:
        for old, new in renames:
            (root / old).rename(root / new)
        return ()

    return act


@pytest.mark.parametrize("renames", [[("train.py", "new.py")], [("out", "moved")], [("out", "a"), ("train.py", "out")]])
def test_what_is_renamed_between_the_scan_and_the_reading_is_there_the_next_time(
    work: Path, tmp_path: Path, renames: list[tuple[str, str]]
) -> None:
    backups = Backups(work, options=SLOW)
    backups.take(judge=after_scan(*renames))
    backups.restored(tmp_path / "r1")
    backups.take()
    assert backups.restored(tmp_path / "r2") == read_tree(work)


def test_B04_a_staging_directory_that_is_renamed_is_not_sent_again(work: Path, tmp_path: Path) -> None:
    (work / "out/checkpoint-10").rename(work / "out/tmp-checkpoint-50")
    backups = Backups(work, judge=judge)
    backups.take()
    assert cls(backups) == {}
    deadline = time.monotonic() + 30
    while backups.take().read_bytes:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    packs = backups.packs_put()
    (work / "out/tmp-checkpoint-50").rename(work / "out/checkpoint-50")
    renamed = backups.take()
    assert (backups.packs_put(), renamed.read_bytes) == (packs, 0)
    assert cls(backups) == {b"out/checkpoint-50": ("resumable", "")}
    assert backups.restored(tmp_path / "r") == read_tree(work)
