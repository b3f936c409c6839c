"""The whole log judged: each kind of damage is found, named once, and a healthy log has none."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spotwarp.errors import ObjectMissing, StoreUnavailable
from spotwarp.persistence import layout
from spotwarp.persistence.runlog.entry import Claim, Released, Snapshot, encode
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.persistence.runlog.replay import judge, replay
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.model_runs import RUN, Scenario, simulate
from spotwarp.testing.model_store import Hazards
from spotwarp.testing.stores import Fault, FaultyStore, MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    """A claim, then five snapshots."""
    store = MemoryStore(clock=VirtualClock())
    log = log_of(store)
    log.append(lambda _: Claim(generation=1, machine="A", cause="first", base=0, lease_s=20))
    for _ in range(5):
        log.append(lambda h: Snapshot(generation=1, manifest="1-x", address="", base=h.state.snapshot))
    return store


def log_of(store: MemoryStore) -> RunLog:
    return RunLog(store, RUN, life="a", clock=VirtualClock(), rng=SeededRng())


def found(store: MemoryStore, last: int | None = None) -> list[tuple[int, str]]:
    return [(p.n, p.trouble) for p in replay(log_of(store), last=last)]


def key(n: int) -> str:
    return layout.log_key(RUN, n)


def test_a_healthy_log_has_no_problem(store: MemoryStore) -> None:
    assert found(store) == []


def test_an_empty_log_has_no_problem() -> None:
    assert found(MemoryStore(clock=VirtualClock())) == []


def test_every_simulated_log_is_healthy() -> None:
    scenario = Scenario(machines=3, hazards=Hazards(crashes=2, freezes=2, lost=2, late=2), gates=4, notes=3, forgets=3)
    for seed in range(20):
        log = simulate(f"replay {seed}", scenario).witness.log
        assert list(judge((e.n, e) for e in log)) == []


@pytest.mark.parametrize("n", [1, 3, 6])
def test_a_damaged_entry(store: MemoryStore, n: int) -> None:
    store.put(key(n), store.get(key(n))[:-1])

    assert found(store) == [(n, "damaged")]


@pytest.mark.parametrize("n", [1, 3])
def test_an_entry_of_a_newer_spotwarp(store: MemoryStore, n: int) -> None:
    newer = bytearray(store.get(key(n)))
    newer[5] = 9
    store.put(key(n), bytes(newer))
    assert found(store) == [(n, "newer")]

    store.put(key(n), encode(Released(v=1, n=n, intent="i")))
    assert found(store) == [(n, "newer")]


def test_a_hole_hides_what_lies_above_unless_a_listing_tells(store: MemoryStore) -> None:
    store.delete(key(4))

    assert found(store, last=6) == [(4, "hole")]


def test_a_state_that_is_not_the_fold(store: MemoryStore) -> None:
    entry = log_of(store).read(4)
    store.put(key(4), encode(replace(entry, state=replace(entry.state, pins={"child": 2}))))

    assert found(store) == [(4, "state"), (5, "state")]  # the next one was written by a writer that knew better


def test_a_void_entry(store: MemoryStore) -> None:
    entry = log_of(store).read(6)
    assert isinstance(entry, Snapshot)
    store.put(key(6), encode(replace(entry, generation=7)))

    (problem,) = replay(log_of(store))
    assert (problem.n, problem.trouble) == (6, "void")
    assert "generation 1 on A has taken the run" in problem.message


def test_a_store_that_cannot_be_read_is_no_damage(store: MemoryStore) -> None:
    faulty = FaultyStore(store, Fault("get", r"/log/0000000002", times=None, error=StoreUnavailable("503")))

    with pytest.raises(StoreUnavailable):
        replay(log_of(faulty))  # type: ignore[arg-type]


def test_judging_is_pure(store: MemoryStore) -> None:
    log = log_of(store)
    given = [(1, log.read(1)), (2, ObjectMissing("gone")), (3, log.read(3))]

    assert [(p.n, p.trouble) for p in judge(given)] == [(2, "hole")]
