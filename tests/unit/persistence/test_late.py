"""A backup that must end before the machine does: what it has is committed, what is late is named, nothing is mixed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spotwarp.errors import StoreUnavailable
from spotwarp.persistence.backup import BackupOptions, Cutoff, Judge, cut_before
from spotwarp.persistence.manifest import CheckpointFact
from spotwarp.persistence.scan import Scanned
from spotwarp.persistence.store.api import Buffer
from spotwarp.testing.backups import Backups, noise
from spotwarp.testing.clocks import VirtualClock
from spotwarp.testing.stores import Fault, MemoryStore
from spotwarp.testing.trees import read_tree

MIB = 1 << 20
RATE = MIB
"""Bytes a second of the link."""
OPTIONS = BackupOptions(workers=1, uploads=1, pack_size=32 * MIB)


class Link(MemoryStore):
    """A store behind a link of `RATE`."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self._passing = clock

    def put(self, key: str, data: Buffer) -> None:
        self._passing.advance(memoryview(data).nbytes / RATE)
        super().put(key, data)


def judge(**classes: str) -> Judge:
    """Sees `checkpoint-<step>` directories; `c10="torn"` names a class, else resumable."""

    def say(root: Path, entries: list[Scanned]) -> list[CheckpointFact]:
        found = [e.path for e in entries if e.kind == 1 and b"checkpoint-" in e.path.rpartition(b"/")[2]]
        return [
            CheckpointFact(
                p, classes.get(f"c{int(p.rpartition(b'-')[2])}", "resumable"), step=int(p.rpartition(b"-")[2])
            )
            for p in found
        ]

    return say  # type: ignore[return-value]


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    root = tmp_path / "w"
    for step in (10, 20):
        write(root / f"out/checkpoint-{step}/model.bin", noise(6 * MIB, step))
        write(root / f"out/checkpoint-{step}/state.json", b'{"step": %d}' % step)
    write(root / "train.py", b"import this\n")
    write(root / "data.bin", noise(20 * MIB, 1))
    return root


def within(seconds: float, clock: VirtualClock, rate: float | None = RATE) -> Cutoff:
    end = clock.monotonic() + seconds
    return Cutoff(clock, lambda: end, rate)


def backups_of(work: Path, clock: VirtualClock, **classes: str) -> Backups:
    return Backups(work, store=Link(clock), judge=judge(**classes), options=OPTIONS, clock=clock)


def settle(backups: Backups) -> None:
    """Back up until the time stamps of what is there are old enough to be believed."""
    pause = threading.Event()
    for _ in range(200):
        if backups.take().read_bytes == 0:
            return
        pause.wait(0.02)
    raise AssertionError("the time stamps are never believed")


def test_with_time_enough_nothing_is_late(work: Path, tmp_path: Path) -> None:
    clock = VirtualClock()
    backups = backups_of(work, clock)
    uploaded = backups.take(cutoff=within(600, clock))
    assert (uploaded.late_files, uploaded.late_bytes, uploaded.skipped) == (0, 0, ())
    assert backups.restored(tmp_path / "r") == read_tree(work)


def test_the_newest_resumable_checkpoint_and_the_code_come_before_all_else(work: Path, tmp_path: Path) -> None:
    clock = VirtualClock()
    backups = backups_of(work, clock)
    uploaded = backups.take(cutoff=within(9, clock))
    assert clock.monotonic() <= 9
    assert [(fact.path, fact.cls) for fact in uploaded.manifest.checkpoints] == [(b"out/checkpoint-20", "resumable")]
    assert {skip.path for skip in uploaded.skipped} == {
        b"data.bin", b"out/checkpoint-10/model.bin", b"out/checkpoint-10/state.json"
    } - ({b"out/checkpoint-10/state.json"} if uploaded.late_files == 2 else set())  # fmt: skip
    assert all("left out" in skip.reason and skip.unreadable for skip in uploaded.skipped)
    assert uploaded.late_bytes >= 26 * MIB
    tree, whole = backups.restored(tmp_path / "r"), read_tree(work)
    assert b"out/checkpoint-10" not in tree, "a part of a checkpoint is none"
    assert b"data.bin" not in tree
    wanted = {path for path in whole if b"checkpoint-10" not in path and path != b"data.bin"}
    assert {path: tree[path] for path in wanted} == {path: whole[path] for path in wanted}


def test_what_is_late_stays_as_the_snapshot_before_has_it(work: Path, tmp_path: Path) -> None:
    clock = VirtualClock()
    backups = backups_of(work, clock)
    settle(backups)  # nothing else is read between the small file and the bulk
    before = read_tree(work)
    write(work / "data.bin", noise(21 * MIB, 2))
    write(work / "out/checkpoint-20/model.bin", noise(12 * MIB, 3))
    write(work / "notes", b"short")
    uploaded = backups.take(cutoff=within(3, clock))
    assert {skip.path for skip in uploaded.skipped} == {b"data.bin", b"out/checkpoint-20/model.bin"}
    assert all("kept as the snapshot before" in skip.reason for skip in uploaded.skipped)
    assert {fact.path for fact in uploaded.manifest.checkpoints} == {b"out/checkpoint-10", b"out/checkpoint-20"}
    tree = backups.restored(tmp_path / "r")
    assert tree.pop(b"notes") == read_tree(work)[b"notes"]
    assert {p: n.content for p, n in tree.items()} == {p: n.content for p, n in before.items()}


def test_the_next_backup_takes_what_was_late(work: Path, tmp_path: Path) -> None:
    clock = VirtualClock()
    backups = backups_of(work, clock)
    backups.take(cutoff=within(2, clock))
    uploaded = backups.take()
    assert uploaded.late_files == 0
    assert backups.restored(tmp_path / "r") == read_tree(work)


def test_no_time_at_all_commits_what_is_known_already(work: Path, tmp_path: Path) -> None:
    clock = VirtualClock()
    backups = backups_of(work, clock)
    settle(backups)
    before = read_tree(work)
    write(work / "train.py", b"import that\n")
    uploaded = backups.take(cutoff=within(0, clock), always=True)
    assert [skip.path for skip in uploaded.skipped] == [b"train.py"]
    tree = backups.restored(tmp_path / "r")
    assert {p: n.content for p, n in tree.items()} == {p: n.content for p, n in before.items()}


def test_a_cut_that_comes_while_bytes_move_is_obeyed(work: Path) -> None:
    clock = VirtualClock()
    backups = backups_of(work, clock)
    uploaded = backups.take(cutoff=Cutoff(clock, lambda: 14.0 if clock.monotonic() > 0 else None))
    assert uploaded.late_files > 0
    assert [fact.path for fact in uploaded.manifest.checkpoints][-1:] == [b"out/checkpoint-20"]


@pytest.mark.parametrize("fails", range(4))
def test_what_a_failed_backup_put_is_not_put_again(work: Path, tmp_path: Path, fails: int) -> None:
    clock = VirtualClock()
    options = BackupOptions(workers=1, uploads=1, pack_size=9 * MIB)
    backups = Backups(work, store=Link(clock), judge=judge(), options=options, clock=clock)
    whole = Backups(work, store=Link(VirtualClock()), judge=judge(), options=options)
    total = sum(pack.size for pack in whole.take().new_packs)
    backups.calls.add(Fault("put", key="/packs/", skip=fails, error=StoreUnavailable("no answer")))
    with pytest.raises(StoreUnavailable):
        backups.take()
    got = sum(pack.size for pack in backups.carry.content.packs)
    assert len(backups.carry.content.packs) == fails
    backups.calls.heal()
    uploaded = backups.take()
    sent = uploaded.stored_bytes - uploaded.manifest_size
    assert sent + got == pytest.approx(total, rel=0.01)
    assert {pack.id for pack in uploaded.new_packs} >= set(), "the reading back covers what was carried"
    assert sum(pack.size for pack in uploaded.new_packs) == pytest.approx(total, rel=0.01)
    assert backups.restored(tmp_path / "r") == read_tree(work)


@pytest.mark.parametrize(
    ("deadline", "tail_s", "last", "rate", "cut"),
    [
        (100.0, 2.0, 0, None, 98.0),
        (100.0, 2.0, 30 * MIB, None, 98.0),
        (100.0, 2.0, 30 * MIB, MIB, 68.0),
        (12.0, 4.0, 0, MIB, 11.0),  # half of the time there is, at most
        (12.0, 4.0, 1 * MIB, MIB, 10.5),
        (12.0, 4.0, 3 * MIB, MIB, 9.0),  # no time but for the manifest
    ],
)
def test_what_comes_after_the_cut_is_reckoned_with(
    deadline: float, tail_s: float, last: int, rate: float | None, cut: float
) -> None:
    assert cut_before(deadline, 10.0, tail_s, last, rate) == cut


class Far(MemoryStore):
    """A store that answers late, behind a link as fast as can be wished."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self._passing = clock

    def put(self, key: str, data: Buffer) -> None:
        self._passing.advance(0.2)
        super().put(key, data)


def test_the_time_of_a_small_request_says_nothing_of_the_link(work: Path) -> None:
    """Code and logs go first: a few hundred bytes in a fifth of a second are no slow link."""
    clock = VirtualClock()
    options = BackupOptions(workers=1, uploads=1, pack_size=9 * MIB)
    backups = Backups(work, store=Far(clock), judge=judge(c10="torn", c20="torn"), options=options, clock=clock)
    assert backups.take(cutoff=within(30, clock, rate=None)).late_files == 0
