"""A snapshot taken while checkpoints are still to come in has them as the one before has."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spotwarp.execution.syncing.judging import judge_all
from spotwarp.persistence.manifest import CheckpointFact, without_packs
from spotwarp.persistence.scan import Scanned
from spotwarp.persistence.table import Table
from spotwarp.testing.backups import Backups
from spotwarp.testing.checkpoints import huggingface_files, write_files
from spotwarp.testing.trees import Node, read_tree

OLD, NEW = b"out/checkpoint-10", b"out/checkpoint-20"


def judge(root: Path, entries: Table[Scanned]) -> tuple[CheckpointFact, ...]:
    return judge_all(root, entries, settle_s=0.0)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for step in (10, 20):
        write_files(tmp_path / f"w/out/checkpoint-{step}", huggingface_files(step, size=300_000))
    (tmp_path / "w/train.py").write_bytes(b"import this\n")
    return tmp_path / "w"


def beneath(tree: dict[bytes, Node], path: bytes) -> dict[bytes, Node]:
    return {name: node for name, node in tree.items() if name == path or name.startswith(path + b"/")}


def without_old(backups: Backups, work: Path) -> dict[bytes, Node]:
    """The first snapshot is taken, and what is restored of it lacks the older checkpoint; what that is."""
    backups.take()
    old = beneath(read_tree(work), OLD)
    shutil.rmtree(work / "out/checkpoint-10")
    return old


def test_what_is_awaited_stays_whole(work: Path, tmp_path: Path) -> None:
    backups = Backups(work, judge=judge)
    old = without_old(backups, work)
    write_files(work / "out/checkpoint-30", huggingface_files(30))
    taken = backups.take(awaited=[OLD])
    steps = [(fact.step, fact.cls) for fact in taken.manifest.checkpoints]
    assert steps == [(10, "resumable"), (20, "resumable"), (30, "resumable")]
    tree = backups.restored(tmp_path / "r")
    assert beneath(tree, OLD) == old
    assert b"out/checkpoint-30/model.safetensors" in tree
    assert not backups.take(awaited=[]).unchanged
    assert beneath(backups.restored(tmp_path / "s"), OLD) == {}, "not awaited any more, it was deleted"


def test_nothing_new_is_nothing_new(work: Path) -> None:
    backups = Backups(work, judge=judge)
    without_old(backups, work)
    assert backups.take(awaited=[OLD]).unchanged
    assert backups.take(awaited=[OLD]).unchanged


def test_what_is_there_by_now_is_taken_as_it_is(work: Path, tmp_path: Path) -> None:
    backups = Backups(work, judge=judge)
    without_old(backups, work)
    write_files(work / "out/checkpoint-10", {"mine.txt": b"made anew"})
    backups.take(awaited=[OLD])
    assert set(beneath(backups.restored(tmp_path / "r"), OLD)) == {OLD, OLD + b"/mine.txt"}


def test_where_its_directory_is_gone_it_is_not_awaited(work: Path, tmp_path: Path) -> None:
    backups = Backups(work, judge=judge)
    without_old(backups, work)
    shutil.rmtree(work / "out")
    backups.take(awaited=[OLD])
    assert set(backups.restored(tmp_path / "r")) == {b"train.py"}


def test_what_the_base_has_not_cannot_be_carried(work: Path) -> None:
    backups = Backups(work, judge=judge)
    assert [fact.path for fact in backups.take(awaited=[b"out/checkpoint-5"]).manifest.checkpoints] == [OLD, NEW]
    assert [fact.path for fact in backups.take(awaited=[b"elsewhere/checkpoint-5"]).manifest.checkpoints] == [OLD, NEW]


def test_when_it_has_come_in_nothing_is_new(work: Path, tmp_path: Path) -> None:
    backups = Backups(work, judge=judge)
    backups.take()
    (work / "out/checkpoint-10").rename(tmp_path / "kept")
    (work / "more").write_bytes(b"more")
    backups.take(awaited=[OLD])
    (tmp_path / "kept").rename(work / "out/checkpoint-10")
    assert backups.take().unchanged


def test_damage_takes_no_more_of_it_than_it_hit(work: Path, tmp_path: Path) -> None:
    """What is awaited has no other copy than the store's: it stays, and says what it lacks."""
    backups = Backups(work, judge=judge)
    old = without_old(backups, work)
    base, lost = backups.base, OLD + b"/optimizer.pt"
    assert base is not None
    entry = next(one for one in base.entries if one.path == lost)
    pack = base.packs[base.blobs[entry.extents[0].blob].pack].id
    hit = {one.path for one in base.entries for x in one.extents if base.packs[base.blobs[x.blob].pack].id == pack}
    backups.base = without_packs(base, frozenset({pack}))
    for taken in (backups.take(awaited=[OLD]), backups.take(awaited=[OLD])):
        facts = {fact.path: fact for fact in taken.manifest.checkpoints}
        assert (facts[OLD].cls, facts[OLD].step) == ("torn", 10)
        assert "was found damaged in the store" in facts[OLD].reason
        assert facts[NEW].cls == "resumable", "sent again"
        assert {one.path for one in taken.skipped} == {path for path in hit if path in old}
    assert taken.unchanged
    kept = beneath(backups.restored(tmp_path / "r"), OLD)
    assert kept == {path: node for path, node in old.items() if path not in hit}
    assert kept, "all that is sound"
