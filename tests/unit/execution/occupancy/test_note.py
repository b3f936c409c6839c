"""Two machines, one directory: the bucket says who works there; another's note is believed until it is over."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from spotwarp.errors import AlreadyRunning, LeaseHeld
from spotwarp.execution.occupancy.note import FILE, occupy
from spotwarp.persistence.repository import Repository, create
from spotwarp.persistence.runlog import lease
from spotwarp.persistence.runlog.entry import Claim
from spotwarp.persistence.runlog.lease import Heart, Holding
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.stores import MemoryStore

LEASE_S = 8.0


class Pod:
    """A machine that has the volume mounted: its own identity, life and heart."""

    def __init__(self, name: str, shared: Shared) -> None:
        self.name, self.shared = name, shared
        rng = SeededRng(len(name) + ord(name[-1]))
        self.log: RunLog = shared.repository.log("main", life=rng.token(8), clock=shared.clock, rng=rng)
        self.rng = rng
        self.said: list[str] = []
        self.heart = Heart(
            self.log, shared.repository.store, lease_s=LEASE_S, clock=shared.clock,
            facts=lambda: ("", {}), on_lost=lambda _: None,
        )  # fmt: skip

    def occupied(self) -> AbstractContextManager[None]:
        self.shared.monkeypatch.setenv("SPOTWARP_MACHINE_ID", self.name)
        return occupy(
            self.shared.workspace, self.shared.repository, self.log, lease_s=LEASE_S, clock=self.shared.clock,
            rng=self.rng, say=self.said.append,
        )  # fmt: skip

    def vanish(self) -> None:
        """Begin to work there and be gone without a word."""
        self.shared.vanished.append(self.occupied())
        self.shared.vanished[-1].__enter__()

    def claim(self) -> None:
        turn = lease.wait_for_turn(self.log, self.shared.repository.store, lease_s=LEASE_S, clock=self.shared.clock)
        draft = Claim(generation=0, machine=self.name, cause="", base=0, lease_s=LEASE_S, host=self.name, pid=1)
        claimed = lease.claim(self.log, turn, draft)
        self.heart.holding = Holding(claimed.generation, self.log.life)


class Shared:
    """A volume, a bucket, and time that all pods share. `beating` pods beat whenever anybody waits."""

    def __init__(self, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.workspace, self.monkeypatch = workspace, monkeypatch
        self.clock = VirtualClock()
        self.repository: Repository
        self.repository, _ = create(MemoryStore(clock=self.clock), clock=self.clock, rng=SeededRng(1))
        self.beating: list[Pod] = []
        self.vanished: list[AbstractContextManager[None]] = []
        slept = self.clock.sleep

        def sleep(seconds: float) -> None:
            slept(seconds)
            for pod in self.beating:
                pod.heart.beat()

        monkeypatch.setattr(self.clock, "sleep", sleep)

    def pod(self, name: str) -> Pod:
        return Pod(name, self)

    @property
    def note(self) -> Path:
        return self.workspace / ".spotwarp" / FILE


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shared:
    return Shared(tmp_path, monkeypatch)


def test_the_note_is_there_while_it_is_true(shared: Shared) -> None:
    a = shared.pod("pod-a")
    with a.occupied():
        assert json.loads(shared.note.read_text())["life"] == a.log.life
    assert list(shared.note.parent.iterdir()) == []


@pytest.mark.parametrize("holds", [True, False], ids=["holder", "still preparing"])
def test_a_living_one_is_named_and_left_alone(shared: Shared, holds: bool) -> None:
    a, b = shared.pod("pod-a"), shared.pod("pod-b")
    a.heart.beat()
    with a.occupied():
        if holds:
            a.claim()
        shared.beating = [a]
        with pytest.raises(LeaseHeld, match=r"process \d+, run 'main', since") as refused, b.occupied():
            raise AssertionError
        assert "spotwarp stop" in (refused.value.hint or "")
        assert json.loads(shared.note.read_text())["life"] == a.log.life  # untouched


def test_one_that_is_silent_is_waited_out_and_no_shorter(shared: Shared) -> None:
    a, b = shared.pod("pod-a"), shared.pod("pod-b")
    a.heart.beat()
    a.vanish()
    started = shared.clock.monotonic()
    with b.occupied():
        assert shared.clock.monotonic() - started >= LEASE_S
        assert "pod-a" not in shared.note.read_text()
        assert b.said
        shared.vanished[0].__exit__(None, None, None)  # it comes back: the note is no longer its own
        assert json.loads(shared.note.read_text())["life"] == b.log.life


def test_one_that_never_beat_is_waited_for_as_long(shared: Shared) -> None:
    shared.pod("pod-a").vanish()
    started = shared.clock.monotonic()
    with shared.pod("pod-b").occupied():
        assert shared.clock.monotonic() - started >= LEASE_S


def test_of_this_machine_it_is_dead_as_it_would_hold_the_lock(shared: Shared) -> None:
    first, second = shared.pod("pod-a"), shared.pod("pod-a")
    first.heart.beat()
    first.vanish()
    started = shared.clock.monotonic()
    with second.occupied():
        assert shared.clock.monotonic() == started


def test_two_that_wait_for_the_same_dead_one_do_not_both_get_in(shared: Shared) -> None:
    """Between another's read and its removal, a third puts its own note there: that one stands."""
    a, b, c = shared.pod("pod-a"), shared.pod("pod-b"), shared.pod("pod-c")
    a.vanish()
    dead = shared.note.read_bytes()
    shared.note.unlink()
    c.heart.beat()
    with c.occupied():
        theirs = shared.note.read_bytes()
        shared.note.write_bytes(dead)
        rename = Path.rename

        def late(path: Path, target: Path) -> Path:
            if path == shared.note:
                shared.note.write_bytes(theirs)
            return rename(path, target)

        shared.monkeypatch.setattr(Path, "rename", late)
        shared.beating = [c]
        with pytest.raises(LeaseHeld), b.occupied():
            raise AssertionError
        assert shared.note.read_bytes() == theirs


@pytest.mark.parametrize("content", [b"", b"rubbish", b"{}"])
def test_a_note_that_is_none_keeps_nobody_out_for_ever(shared: Shared, content: bytes) -> None:
    shared.note.parent.mkdir()
    shared.note.write_bytes(content)
    started = shared.clock.monotonic()
    with shared.pod("pod-b").occupied():
        assert shared.clock.monotonic() - started >= LEASE_S  # it may have been half written just then


def test_of_another_repository_nobody_can_tell(shared: Shared, tmp_path: Path) -> None:
    other = Shared(tmp_path, shared.monkeypatch)
    other.repository, _ = create(MemoryStore(clock=other.clock), clock=other.clock, rng=SeededRng(99))
    with other.pod("pod-a").occupied():
        with pytest.raises(AlreadyRunning, match="another repository") as refused, shared.pod("pod-b").occupied():
            raise AssertionError
        assert FILE in (refused.value.hint or "")


def test_a_volume_without_hard_links_will_do(shared: Shared) -> None:
    def link(_source: Path, target: Path) -> None:
        if target.exists():
            raise FileExistsError
        raise PermissionError

    shared.monkeypatch.setattr("os.link", link)
    a, b = shared.pod("pod-a"), shared.pod("pod-b")
    a.heart.beat()
    with a.occupied():
        shared.beating = [a]
        with pytest.raises(LeaseHeld), b.occupied():
            raise AssertionError
