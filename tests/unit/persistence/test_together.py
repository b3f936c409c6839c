"""What a snapshot holds where two features meet: late files, whole versions, hard links, models, damaged packs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock
from spotwarp.errors import StoreDenied
from spotwarp.execution.syncing.judging import judge_all
from spotwarp.execution.syncing.versions import End, Moment, WholeVersions
from spotwarp.persistence.backup import BackupOptions, Cutoff
from spotwarp.persistence.backup.versions import Versions
from spotwarp.persistence.cuts import CHUNK
from spotwarp.persistence.entries import checked, renamed_for_torn
from spotwarp.persistence.manifest import CheckpointFact, FileFact, is_damaged, without_packs
from spotwarp.persistence.scan import Scanned
from spotwarp.persistence.store.api import Buffer
from spotwarp.persistence.table import Table
from spotwarp.testing.backups import Backups, noise
from spotwarp.testing.checkpoints import huggingface_files, safetensors_file, write_files
from spotwarp.testing.clocks import VirtualClock
from spotwarp.testing.stores import MemoryStore
from spotwarp.testing.trees import read_tree

KIB, MIB = 1 << 10, 1 << 20
NAME = "out/checkpoint-10"


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def judge(root: Path, entries: Table[Scanned]) -> tuple[CheckpointFact, ...]:
    return judge_all(root, entries, settle_s=0)


def sees(*paths: str) -> object:
    def say(root: Path, entries: Table[Scanned]) -> list[CheckpointFact]:
        there = [path.encode() for path in paths if entries.find(path.encode()) is not None]
        return [CheckpointFact(path, "resumable", step=int(path.rpartition(b"-")[2])) for path in there]

    return say


def no_time() -> Cutoff:
    return Cutoff(SystemClock(), lambda: 0.0)


# ---- a model directory has the user's whole output in it ------------------------------------------------------------


@pytest.fixture
def output(tmp_path: Path) -> Path:
    root = tmp_path / "w"
    write_files(root / NAME, huggingface_files(10))
    write(root / "out/config.json", b'{"model_type": "llama"}')
    write(root / "out/model.safetensors", safetensors_file({"w": bytes(4000)}))
    write(root / "out/runs/events.1", b"event")
    write(root / "out/notes.txt", b"old")
    return root


@pytest.mark.parametrize("moving", ["out/runs/events.1", "out/notes.txt", "out/config.json", f"{NAME}/optimizer.pt"])
def test_what_moves_beneath_a_model_never_tears_the_checkpoints_in_it(
    output: Path, tmp_path: Path, moving: str
) -> None:
    def busy(root: Path, entries: Table[Scanned]) -> tuple[CheckpointFact, ...]:
        facts = judge(root, entries)
        with (root / moving).open("ab") as file:
            file.write(b"more")
        return facts

    backups = Backups(output, judge=judge)
    backups.take()
    assert {(fact.path, fact.cls) for fact in backups.take(always=True).manifest.checkpoints} == {
        (b"out", "weights-only"),
        (NAME.encode(), "resumable"),
    }
    manifest = backups.take(judge=busy).manifest
    facts = {fact.path: fact.cls for fact in manifest.checkpoints}
    assert facts.get(b"out", "weights-only") == "weights-only"
    assert (facts[NAME.encode()] == "torn") == moving.startswith(NAME)
    assert (b"out" in facts) == (moving != "out/config.json" and moving != "out/notes.txt")
    renamed = {entry.path for entry in renamed_for_torn(manifest, 1).entries}
    assert {b"out", b"out/model.safetensors", b"out/runs/events.1"} <= renamed


def test_what_is_late_beneath_a_model_holds_nothing_else_back(output: Path, tmp_path: Path) -> None:
    clock = VirtualClock()
    link = Link(clock)
    backups = Backups(output, store=link, judge=judge, clock=clock, options=BackupOptions(workers=1, uploads=1))
    backups.take()
    write(output / "out/notes.txt", b"new!")
    write(output / "out/runs/trace.big", noise(20 * MIB, 1))
    end = clock.monotonic() + 3
    uploaded = backups.take(cutoff=Cutoff(clock, lambda: end, MIB))
    assert [skip.path for skip in uploaded.skipped] == [b"out/runs/trace.big"]
    assert backups.restored(tmp_path / "r")[b"out/notes.txt"].content == read_tree(output)[b"out/notes.txt"].content
    assert {fact.path for fact in uploaded.manifest.checkpoints} == {b"out", NAME.encode()}


class Link(MemoryStore):
    """A store behind a link of a MiB a second."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self._passing = clock

    def put(self, key: str, data: Buffer) -> None:
        self._passing.advance(memoryview(data).nbytes / MIB)
        super().put(key, data)


# ---- one content in two places --------------------------------------------------------------------------------------


def test_a_checkpoint_that_is_late_stays_whole_though_its_content_lies_in_others(tmp_path: Path) -> None:
    """The end of a big file is the content of a small one: it lies in a bundle."""
    root, tail = tmp_path / "w", noise(1000, 7)
    write(root / "small", tail)
    write(root / f"{NAME}/big", noise(CHUNK, 1) + tail)
    write(root / f"{NAME}/state", b"1")
    write(root / "last", noise(CHUNK, 3) + tail)
    backups = Backups(root, judge=sees(NAME))  # type: ignore[arg-type]
    backups.take()
    before = read_tree(root)
    write(root / f"{NAME}/state", b"2")
    write(root / "last", noise(CHUNK, 4) + tail)
    uploaded = backups.take(cutoff=no_time())
    assert {skip.path for skip in uploaded.skipped} >= {NAME.encode() + b"/state", b"last"}
    found = backups.restored(tmp_path / "r")
    assert {path: node.content for path, node in found.items()} == {p: n.content for p, n in before.items()}
    assert [fact.cls for fact in uploaded.manifest.checkpoints] == ["resumable"]


def test_names_of_one_file_say_the_same_wherever_its_content_lies(tmp_path: Path) -> None:
    """A file is what a whole bundle was: its content is known in two places."""
    root = tmp_path / "w"
    one, other = noise(150 * KIB, 1), noise(50 * KIB, 2)
    write(root / f"{NAME}/a", one)
    write(root / f"{NAME}/b", other)
    write(root / "about", noise(10, 3))
    write(root / "both", one + other)
    backups = Backups(root, options=BackupOptions(workers=1), judge=sees(NAME))  # type: ignore[arg-type]
    backups.take()
    os.link(root / "both", root / "again")
    uploaded = backups.take()
    checked(uploaded.manifest.entries)
    assert backups.restored(tmp_path / "r") == read_tree(root)
    os.link(root / "both", root / "z")
    (root / "again").unlink()
    backups.take()
    assert backups.restored(tmp_path / "r2") == read_tree(root)


# ---- a damaged pack -------------------------------------------------------------------------------------------------


def test_a_checkpoint_with_a_damaged_part_is_nothing_to_fall_back_to(tmp_path: Path) -> None:
    root = tmp_path / "w"
    write(root / f"{NAME}/big", noise(2 * CHUNK, 1))
    write(root / f"{NAME}/state", b"1")
    write(root / "last.ckpt", safetensors_file({"w": noise(3 * MIB, 2)}))
    backups = Backups(root, judge=sees(NAME), options=BackupOptions(workers=1, pack_size=5 * MIB))  # type: ignore[arg-type]
    rule = WholeVersions(1, Moment(2**62, End.CLEAN, 0))
    manifest = backups.take(versions=rule).manifest
    assert manifest.versions == (FileFact(b"last.ckpt", "safetensors"),)
    sizes = [pack.id for pack in manifest.packs]
    for bad in sizes:
        left = without_packs(manifest, frozenset({bad}))
        paths = {entry.path for entry in left.entries}
        whole = {NAME.encode() + b"/big", NAME.encode() + b"/state"} <= paths
        assert [(fact.path, is_damaged(fact)) for fact in left.checkpoints] == [(NAME.encode(), not whole)]
        assert {one.path for one in left.skipped} == {one.path for one in manifest.entries} - paths
        assert [fact.path for fact in left.versions] == ([b"last.ckpt"] if b"last.ckpt" in paths else [])
    assert len(sizes) > 2


# ---- whole versions -------------------------------------------------------------------------------------------------


@dataclass
class Single:
    """A single-file checkpoint that is rewritten in place."""

    path: Path
    backups: Backups
    number: int = 0

    def rewrite(self, data: bytes) -> None:
        with self.path.open("wb") as file:
            file.write(data)

    def take(self, after_s: float = 60.0) -> dict[bytes, FileFact]:
        moment = Moment(self.path.stat().st_ctime_ns + int(after_s * 1e9), End.LIVE, 2.0)
        self.backups.take(versions=WholeVersions(self.number, moment), always=True)
        self.number += 1
        assert self.backups.base is not None
        return {fact.path: fact for fact in self.backups.base.versions}


@pytest.fixture
def single(tmp_path: Path) -> Single:
    root = tmp_path / "w"
    root.mkdir()
    return Single(root / "last.ckpt", Backups(root))


OLD, NEW = safetensors_file({"w": b"old" * 3000}), safetensors_file({"w": b"NEW" * 3000})


def believed(single: Single) -> None:
    """Until what was read is believed on the strength of its times."""
    pause = threading.Event()
    for _ in range(200):
        entry = single.backups.cache.last(b"last.ckpt")
        if entry is not None and entry.trusted():
            return
        pause.wait(0.02)
        single.take()
    raise AssertionError("the time stamps are never believed")


def test_a_version_that_was_kept_and_brought_back_is_protected_still(single: Single) -> None:
    """The snapshot has the version before; on a new machine that is what is on disk; then it is rewritten again."""
    single.rewrite(OLD)
    single.take()
    single.rewrite(NEW[:100])
    assert single.take(after_s=0)[b"last.ckpt"].kept == 1
    single.rewrite(OLD)
    kept = single.backups.base
    believed(single)
    single.backups.base = kept  # as it is after a restore: the cache knows the content, the base calls it kept
    assert single.take() == {b"last.ckpt": FileFact(b"last.ckpt", "safetensors")}
    single.rewrite(NEW[:100])
    assert single.take(after_s=0)[b"last.ckpt"].kept
    assert {entry.path for entry in single.backups.base.entries} == {b"last.ckpt"}  # type: ignore[union-attr]


def test_a_version_is_protected_though_its_first_commit_failed(single: Single) -> None:
    single.rewrite(OLD)
    single.take()
    single.rewrite(NEW[:100])
    assert single.take(after_s=0)[b"last.ckpt"].kept == 1
    kept = single.backups.base
    single.rewrite(NEW)
    believed_later = single.take()
    assert believed_later[b"last.ckpt"].kept == 0
    believed(single)
    single.backups.base = kept  # no snapshot names what was read
    assert single.take() == {b"last.ckpt": FileFact(b"last.ckpt", "safetensors")}


def test_what_is_stored_aside_is_stored_whatever_its_name_sorts_after(tmp_path: Path) -> None:
    """A name so long that the other one is no longer a continuation of it."""
    root = tmp_path / "w"
    root.mkdir()
    path = root / ("z" * 250 + ".ckpt")
    backups = Backups(root)
    path.write_bytes(OLD)
    (root / ("z" * 244 + "a")).touch()
    backups.take(versions=WholeVersions(0, Moment(2**62, End.CLEAN, 2.0)))
    with path.open("r+b") as file:
        file.write(NEW)
    moment = Moment(path.stat().st_ctime_ns, End.CUT, 2.0)
    backups.take(versions=WholeVersions(1, moment))
    contents = {node.content for node in backups.restored(tmp_path / "r").values()}
    assert len(contents) == 3


# ---- uploads that are given up --------------------------------------------------------------------------------------


class Stuck(MemoryStore):
    """The first pack is acknowledged; the second does not move until told so, and then fails, as all that follow do."""

    def __init__(self) -> None:
        super().__init__()
        self.packs = 0
        self.arrived, self.go = threading.Event(), threading.Event()

    def put(self, key: str, data: Buffer) -> None:
        if "/packs/" in key:
            self.packs += 1
            if self.packs == 2:
                self.arrived.set()
                assert self.go.wait(60)
            if self.packs > 1:
                self.arrived.wait(60)
                raise StoreDenied("refused")
        super().put(key, data)

    def fail(self) -> None:
        """Let it fail now, and see to it that it has."""
        self.go.set()
        for thread in threading.enumerate():
            if thread.name.startswith("spotwarp-put"):
                thread.join(60)


@dataclass(frozen=True, slots=True)
class Then(Versions):
    """Does something when reading and uploading have ended."""

    act: Callable[[], None] = lambda: None

    def settled(self, entries: Table[Scanned], lstat: object) -> Versions:
        self.act()
        return self


def three_packs(root: Path) -> None:
    for step in (10, 20, 30):
        write(root / f"out/checkpoint-{step}/big", noise(MIB, step))


def test_the_error_of_an_upload_that_was_given_up_harms_nothing(tmp_path: Path) -> None:
    root, store = tmp_path / "w", Stuck()
    three_packs(root)
    (root / "out/checkpoint-10/big").unlink()
    backups = Backups(root, store=store, options=BackupOptions(workers=1, uploads=1),
        judge=sees(*(f"out/checkpoint-{step}" for step in (10, 20, 30))))  # type: ignore[arg-type]  # fmt: skip
    cut = Cutoff(SystemClock(), lambda: 0.0 if store.arrived.is_set() else 1e12)
    uploaded = backups.take(cutoff=cut, versions=lambda *_: Then(act=store.fail))
    assert uploaded.late_files == 1
    assert backups.restored(tmp_path / "r")[b"out/checkpoint-30/big"]


def test_after_an_error_nobody_waits_beyond_the_cut(tmp_path: Path) -> None:
    root, store = tmp_path / "w", Stuck()
    three_packs(root)
    backups = Backups(root, store=store, options=BackupOptions(workers=1, uploads=2),
        judge=sees(*(f"out/checkpoint-{step}" for step in (10, 20, 30))))  # type: ignore[arg-type]  # fmt: skip
    clock = SystemClock()
    end = clock.monotonic() + 5
    try:
        with pytest.raises(StoreDenied):
            backups.take(cutoff=Cutoff(clock, lambda: end))
        assert clock.monotonic() < end + 20
        assert not store.go.is_set()
    finally:
        store.go.set()


def test_small_files_are_not_late_because_of_the_bulk_behind_them(tmp_path: Path) -> None:
    root, clock = tmp_path / "w", VirtualClock()
    write(root / "data.bin", noise(21 * MIB, 2))
    write(root / "notes", b"short")
    backups = Backups(root, store=Link(clock), clock=clock, options=BackupOptions(workers=1, uploads=1))
    uploaded = backups.take(cutoff=Cutoff(clock, lambda: 3.0, MIB))
    assert [skip.path for skip in uploaded.skipped] == [b"data.bin"]
