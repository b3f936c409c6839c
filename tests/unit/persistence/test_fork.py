"""A run that begins from another's snapshot: pinned first, whatever dies in between and whoever else does the same."""

from __future__ import annotations

import pytest

from spotwarp.errors import LeaseError, StoreUnavailable, UsageError
from spotwarp.persistence import fork
from spotwarp.persistence.envelope import FORMAT_VERSION
from spotwarp.persistence.repository import Identity, Repository
from spotwarp.persistence.runlog.entry import Claim, Complete, Fork, Snapshot
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.stores import Fault, FaultyStore, MemoryStore


class Bench:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = FaultyStore(MemoryStore(clock=self.clock))
        self.repository = Repository(self.store, Identity(FORMAT_VERSION, "id"))
        self.parent = self.log("main")
        self.parent.append(lambda _: Claim(generation=1, machine="m", cause="first", base=0, lease_s=20))
        self.parent.append(lambda _: Snapshot(generation=1, manifest="1-a", address="a", base=0))
        self.parent.append(lambda _: Complete(generation=1, snapshot=2))

    def log(self, run: str, life: str = "a") -> RunLog:
        return RunLog(self.store, run, life=life, clock=self.clock, rng=SeededRng(life + run), append_budget_s=5)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_complete_run_can_be_forked(bench: Bench) -> None:
    child = bench.log("main-2")
    fork.fork(bench.parent, child, 2)
    assert bench.parent.head().state.pins == {"main-2": 2}
    assert bench.parent.head().state.roots == {2}
    state = child.head().state
    assert state.fork == ("main", 2)
    found = fork.origin(bench.repository, state)
    assert found is not None
    assert (found[0], found[1].n, found[1].manifest) == ("main", 2, "1-a")
    assert fork.origin(bench.repository, bench.parent.head().state) is None


def test_the_pin_comes_first_and_a_death_in_between_is_carried_on(bench: Bench) -> None:
    bench.store.add(Fault("put_new", "main-2", error=StoreUnavailable("gone"), times=None))
    with pytest.raises(StoreUnavailable):
        fork.fork(bench.parent, bench.log("main-2"), 2)
    assert bench.parent.head().state.pins == {"main-2": 2}
    bench.store.heal()
    for life in ("b", "c"):  # another machine, and once more
        fork.fork(bench.log("main", life), bench.log("main-2", life), 2)
    assert bench.log("main-2").head().n == 1
    assert bench.parent.head().n == 4


def test_what_is_no_snapshot_pins_nothing(bench: Bench) -> None:
    with pytest.raises(LeaseError):
        fork.fork(bench.parent, bench.log("main-2"), 1)
    assert bench.log("main-2").head().n == 0
    assert bench.parent.head().state.pins == {}


def test_another_run_of_that_name_is_not_touched(bench: Bench) -> None:
    other = bench.log("main-2")
    other.append(lambda _: Fork(parent="elsewhere", snapshot=2))
    with pytest.raises(UsageError):
        fork.fork(bench.parent, bench.log("main-2", "b"), 2)
    assert other.head().n == 1
