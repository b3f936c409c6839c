"""What is left for later is noted before anybody could take it for deleted, and no trouble with the note loses it."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest

from spotwarp import config
from spotwarp.clock import SystemClock
from spotwarp.errors import WorkspaceFault
from spotwarp.execution import localstate
from spotwarp.execution.localstate import AWAITED
from spotwarp.execution.restoring.restorer import Restorer
from spotwarp.execution.syncing.syncer import Syncer
from spotwarp.execution.workspace import Choice
from spotwarp.persistence import repository
from spotwarp.persistence.runlog.entry import Claim
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.testing.checkpoints import huggingface_files, write_files
from spotwarp.testing.clocks import SeededRng
from spotwarp.testing.stores import MemoryStore

RUN = "main"
ALL = [b"out/checkpoint-10", b"out/checkpoint-20", b"out/checkpoint-30"]


class Died(BaseException):
    """The machine's."""


class Bench:
    """A run with three checkpoints, and an empty workspace that is brought up to it, the older ones late."""

    def __init__(self, scratch: Path) -> None:
        self.clock, self.store, self.said = SystemClock(), MemoryStore(), list[str]()
        self.repository = repository.create(self.store, clock=self.clock, rng=SeededRng("r"))[0]
        env = {"SPOTWARP_REMOTE_PATH": "memory", "SPOTWARP_RUN": RUN, "SPOTWARP_START_EARLY": "1B"}
        self.config = config.load(None, env=env)
        self.log = RunLog(self.store, RUN, life="a", clock=self.clock, rng=SeededRng("a"), append_budget_s=1)
        self.log.append(lambda _: Claim(generation=1, machine="m", cause="", base=0, lease_s=20))
        for step in (10, 20, 30):
            write_files(scratch / f"a/out/checkpoint-{step}", huggingface_files(step, size=300_000))
        self.root = scratch / "b"
        self.root.mkdir()
        self.sync(scratch / "a")
        self.note = self.root / ".spotwarp" / AWAITED

    def sync(self, root: Path) -> list[bytes]:
        """The checkpoints of a snapshot of `root`."""
        syncer = Syncer(
            root, self.config, self.repository, self.log, 1,
            clock=self.clock, rng=SeededRng(str(root)), say=self.said.append,
        )  # fmt: skip
        manifest = self.repository.manifest(RUN, syncer.sync(final=True).snapshot)
        return [fact.path for fact in manifest.checkpoints]

    def restorer(self) -> Restorer:
        return Restorer(self.root, self.config, self.repository, self.log, clock=self.clock, say=self.said.append)

    def start(self, *words: str) -> None:
        one = self.restorer()
        one.recover()
        one.bring_up(Choice.ASK, words)

    def here(self) -> list[bytes]:
        return sorted(b"out/" + path.name.encode() for path in (self.root / "out").iterdir())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_death_at_every_note(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each of the small files is written, and after it: the next start and its sync have them all."""
    real, count = localstate.save, [0]
    notes = 2 * 5  # what is awaited, fetching, clearing, installing, the origin

    def dying(at: int) -> None:
        def save(path: Path, value: msgspec.Struct) -> None:
            count[0] += 1
            if 2 * count[0] - 1 == at:
                raise Died
            real(path, value)
            if 2 * count[0] == at:
                raise Died

        count[0] = 0
        monkeypatch.setattr(localstate, "save", save)

    dying(0)
    bench.start()
    assert (2 * count[0], bench.here()) == (notes, ALL[2:])
    for at in range(1, notes + 1):
        bench.root = bench.root.with_name(f"died-{at}")
        bench.root.mkdir()
        dying(at)
        with pytest.raises(Died):
            bench.start()
        monkeypatch.setattr(localstate, "save", real)
        bench.start()
        assert ALL[2] in bench.here()
        assert bench.sync(bench.root) == ALL, at


def full(path: Path, value: msgspec.Struct) -> None:
    """`localstate.save` on a disk that has no room for this one note."""
    if path.name == AWAITED:
        raise WorkspaceFault(f"{path} cannot be written: {errno.errorcode[errno.ENOSPC]}")
    SAVE(path, value)


SAVE = localstate.save


def test_without_room_for_the_note_nothing_is_late(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(localstate, "save", full)
    bench.start()
    assert (bench.here(), bench.note.exists()) == (ALL, False)
    assert any("waits until everything is restored" in line for line in bench.said)


def test_without_room_for_a_shorter_note_the_longer_one_stands(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.start()
    before = bench.note.read_bytes()
    monkeypatch.setattr(localstate, "save", full)
    with pytest.raises(WorkspaceFault):
        localstate.await_only(bench.root, bench.repository.identity.id, RUN, ALL[:1])
    assert bench.note.read_bytes() == before, "never written over"
    arrivals = bench.restorer().arrivals(lambda: None, lambda _: None)
    assert arrivals is not None
    arrivals.start()
    arrivals._thread.join(60)
    assert bench.here() == ALL
    assert not bench.note.exists(), "and none needs no room"


@pytest.mark.parametrize("damage", [b"", b"{", b'{"repository":"'])
def test_a_damaged_note_is_not_an_empty_one(bench: Bench, damage: bytes) -> None:
    bench.start()
    bench.note.write_bytes(damage)
    assert bench.sync(bench.root) == ALL
    bench.start()
    arrivals = bench.restorer().arrivals(lambda: None, lambda _: None)
    assert arrivals is not None
    assert localstate.awaited(bench.root, bench.repository.identity.id, RUN) == tuple(ALL[:2]), "settled"
    arrivals.start()
    arrivals._thread.join(60)
    assert bench.here() == ALL


def test_another_command_may_need_what_the_one_before_did_not(bench: Bench) -> None:
    bench.start()
    bench.start("train.py", "out/checkpoint-10")
    assert bench.here() == [ALL[0], ALL[2]]
    assert bench.sync(bench.root) == ALL
    arrivals = bench.restorer().arrivals(lambda: None, lambda _: None)
    assert arrivals is not None
    assert arrivals.words().startswith("1 older checkpoint(s)")


def test_a_link_may_come_to_need_what_was_not_needed(bench: Bench) -> None:
    bench.start()
    (bench.root / "best").symlink_to("out/checkpoint-20")
    assert bench.sync(bench.root) == ALL
    bench.start()
    assert bench.here() == ALL[1:]
    assert bench.sync(bench.root) == ALL
