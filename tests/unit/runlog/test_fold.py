"""Every branch of the rule book, by hand: which entry is legal on which prefix, and what it changes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from spotwarp.persistence.runlog.entry import (
    Aborted,
    Claim,
    Complete,
    Detach,
    Discarded,
    Entry,
    Failed,
    Fence,
    Forget,
    Fork,
    Phase,
    Pin,
    Published,
    Released,
    Rented,
    RentIntent,
    Snapshot,
    State,
    Unknown,
    Unpin,
)
from spotwarp.persistence.runlog.fold import MAX_OPEN_MACHINES, apply, lost_run, permit, refusal


def claim(generation: int = 1, machine: str = "A", base: int = 0) -> Claim:
    return Claim(by=machine.lower(), generation=generation, machine=machine, cause="", base=base, lease_s=20)


def snapshot(generation: int = 1, base: int = 0, by: str = "a", cls: str = "resumable", **more: Any) -> Snapshot:
    return Snapshot(by=by, generation=generation, manifest="1-x", address="", base=base, cls=cls, **more)


def phase(name: Any, snapshot: int = 0, by: str = "a", **more: Any) -> Phase:
    return Phase(by=by, generation=more.pop("generation", 1), phase=name, snapshot=snapshot, **more)


def after(*entries: Any) -> State:
    """The fold of a log; every entry must be legal."""
    state = State()
    for n, entry in enumerate(entries, 1):
        placed = replace(entry, n=n, state=state)
        assert refusal(state, placed) is None, (n, entry)
        state = apply(state, placed)
    return state


HELD = after(claim())
SAVED = after(claim(), snapshot())
SEALED = after(claim(), snapshot(), phase("preempted", 2))
DONE = after(claim(), snapshot(), Complete(by="a", generation=1, snapshot=2))
TAKEN = after(claim(), snapshot(), claim(2, "B", 2))
SUCCEEDED = after(claim(), snapshot(), claim(2, "B", 2), snapshot(2, 2, "b"))


def test_a_claim_takes_the_run() -> None:
    assert (HELD.generation, HELD.claim, HELD.life, HELD.machine, HELD.claimed) == (1, 1, "a", "A", {"A": 1})
    assert TAKEN.claimed == {"A": 1, "B": 2}
    assert (TAKEN.generation, TAKEN.life, TAKEN.snapshot, TAKEN.snapshot_generation) == (2, "b", 2, 1)


def test_a_claim_ends_the_seal_and_the_notice() -> None:
    noticed = after(claim(), snapshot(), phase("notice", seconds=30.0), phase("stopped", 2), claim(2, "B", 2))

    assert (noticed.seal, noticed.notice) == ("", None)


def test_a_snapshot_is_the_last_and_retained() -> None:
    state = after(claim(), snapshot(), snapshot(base=2, cls="weights-only"))

    assert (state.snapshot, state.snapshot_generation, state.resumable, state.retained) == (3, 1, 2, (2, 3))


def test_a_snapshot_forgets_as_it_is_committed() -> None:
    assert after(claim(), snapshot(), snapshot(base=2, forgets=(2,))).retained == (3,)


def test_phases() -> None:
    assert after(claim(), phase("training")) == HELD
    assert after(claim(), phase("notice", seconds=30.0)).notice == (2, 30.0)
    assert after(claim(), phase("notice")).notice is None
    assert SEALED.seal == "preempted"


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        (Complete(by="a", generation=1, snapshot=2), "complete"),
        (Failed(by="a", generation=1, snapshot=2), "failed"),
    ],
)
def test_the_end(entry: Entry, word: str) -> None:
    assert after(claim(), snapshot(), entry).terminal == word


def test_publishing_changes_nothing() -> None:
    assert after(claim(), snapshot(), Published(by="a", generation=1, snapshot=2, target="t")) == SAVED


def test_forget_pin_unpin() -> None:
    two = (claim(), snapshot(), snapshot(base=2))
    pinned = after(*two, Pin(child="c", snapshot=2), Forget(snapshots=(2,)))

    assert (pinned.retained, pinned.pins, pinned.roots) == ((3,), {"c": 2}, {2, 3})
    assert after(*two, Pin(child="c", snapshot=2), Forget(snapshots=(2,)), Unpin(child="c")).roots == {3}
    assert after(*two, Pin(child="c", snapshot=3), Pin(child="d", snapshot=3), Unpin(child="c")).pins == {"d": 3}


def test_fork_and_detach() -> None:
    assert after(Fork(parent="p", snapshot=9)).fork == ("p", 9)
    assert after(Fork(parent="p", snapshot=9), Detach()).detached
    assert after(Aborted()).terminal == "aborted"


def test_machines() -> None:
    rent = RentIntent(intent="i", label="l")

    assert after(rent).intents == ("i",)
    assert after(rent, Rented(intent="i", machine="A")).rented == {"i": "A"}
    assert after(Rented(intent="late", machine="A")).intents == ("late",)
    gone = after(rent, Rented(intent="i", machine="A"), Released(machine="A"))
    assert (gone.intents, gone.rented) == ((), {})
    assert after(rent, Rented(intent="i", machine="A"), Released(intent="i")) == State()
    assert after(rent, Released(intent="i")) == State()
    assert after(rent, rent).intents == ("i",)
    assert after(claim(), Fence(machine="B", reason="loser"), Fence(machine="B", reason="loser")).fences == ("B",)


def test_a_discard_is_of_what_a_machine_had_until_then() -> None:
    assert after(claim(), Discarded(machine="A", user="u")).discarded == ("A",)
    assert after(claim(), Discarded(machine="A"), Discarded(machine="A"), claim(2, "A")).discarded == ()


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "entry", "reason", "fenced", "ended"),
    [
        (DONE, claim(2, "B", 2), "the run is complete", False, True),
        (HELD, claim(3, "B"), "generation 3 cannot follow 1", False, False),
        (HELD, claim(1, "B"), "generation 1 cannot follow 1", False, False),
        (SAVED, claim(2, "B"), "the last snapshot is 2, not 0", False, False),
        (replace(HELD, fences=("B",)), claim(2, "B"), "machine B was fenced off", True, False),
        (TAKEN, snapshot(1, 2), "generation 2 on B has taken the run", True, False),
        (HELD, snapshot(by="a'"), "generation 1 on A has taken the run", True, False),
        (State(), snapshot(), "generation 0 on another machine has taken the run", True, False),
        (replace(HELD, fences=("A",)), snapshot(), "machine A was fenced off", True, False),
        (DONE, snapshot(base=2), "the run is complete", True, True),
        (SEALED, snapshot(base=2), "generation 1 is sealed", True, False),
        (SEALED, phase("stopped", 2), "generation 1 is sealed", True, False),
        (SAVED, snapshot(base=0), "the last snapshot is 2, not 0", False, False),
        (SAVED, snapshot(base=2, forgets=(1,)), "is not retained", False, False),
        (SAVED, snapshot(base=2, cls="none", forgets=(2,)), "the last resumable one are kept", False, False),
        (HELD, phase("stopped"), "no final snapshot", False, False),
        (TAKEN, phase("preempted", 2, "b", generation=2), "no final snapshot", False, False),
        (SAVED, phase("stopped", 1), "no final snapshot", False, False),
        (HELD, Complete(by="a", generation=1, snapshot=0), "no final snapshot", False, False),
        (HELD, Failed(by="a", generation=1, snapshot=0), "no final snapshot", False, False),
        (HELD, Published(by="a", generation=1, snapshot=0, target="t"), "no final snapshot", False, False),
        (SAVED, Forget(snapshots=(7,)), "is not retained", False, False),
        (SAVED, Forget(snapshots=(2,)), "are kept", False, False),
        (replace(SAVED, resumable=1, retained=(1, 2)), Forget(snapshots=(1,)), "are kept", False, False),
        (SAVED, Pin(child="c", snapshot=1), "cannot be pinned", False, False),
        (replace(SAVED, pins={"c": 2}), Pin(child="c", snapshot=2), "cannot be pinned", False, False),
        (SAVED, Unpin(child="c"), "no pin of c", False, False),
        (SAVED, Detach(), "nothing to detach from", False, False),
        (replace(SAVED, fork=("p", 1), detached=True), Detach(), "nothing to detach from", False, False),
        (State(), Fork(n=2, parent="p", snapshot=1), "fork is only ever the first entry", False, False),
        (State(), Aborted(n=2), "aborted is only ever the first entry", False, False),
        (DONE, RentIntent(intent="i", label="l"), "the run is complete", False, True),
        (
            replace(HELD, intents=tuple(map(str, range(MAX_OPEN_MACHINES)))),
            RentIntent(intent="i", label="l"),
            "16 machines are already open",
            False,
            False,
        ),
        (HELD, Fence(machine="A", reason="sealed"), "nothing permits ending machine A", False, False),
        (HELD, Fence(machine="A", reason="discard"), "nothing permits ending machine A", False, False),
        (HELD, Unknown(), "newer SpotWarp", False, False),
    ],
)
def test_an_illegal_entry_is_refused_and_void(state: State, entry: Any, reason: str, fenced: bool, ended: bool) -> None:
    placed = replace(entry, n=entry.n or 9)
    refused = refusal(state, placed)

    assert refused is not None
    assert reason in refused.reason
    assert (refused.fenced, refused.ended) == (fenced, ended)
    assert apply(state, placed) == state


@pytest.mark.parametrize("entry", [Rented(intent="i", machine="m"), Released(intent="i"), Discarded(machine="m")])
@pytest.mark.parametrize("state", [State(), HELD, SEALED, DONE])
def test_bookkeeping_is_always_legal(entry: Entry, state: State) -> None:
    assert refusal(state, entry) is None


# ---- the gate ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "machine", "reason"),
    [
        (State(), "A", None),
        (HELD, "A", None),
        (HELD, "B", "loser"),
        (SAVED, "A", None),
        (SEALED, "A", "sealed"),
        (SEALED, "B", None),
        (replace(SEALED, snapshot_generation=0), "A", None),
        (TAKEN, "A", None),
        (SUCCEEDED, "A", "superseded"),
        (SUCCEEDED, "B", None),
        (DONE, "A", "terminal"),
        (DONE, "B", "terminal"),
        (replace(HELD, discarded=("A",)), "A", "discard"),
    ],
)
def test_what_permits_ending_a_machine(state: State, machine: str, reason: Any) -> None:
    assert permit(state, machine) == reason
    fence = Fence(machine=machine, reason=reason or "loser")
    assert (refusal(state, fence) is None) == (reason is not None)


def test_a_fence_outlives_its_permit_and_keeps_the_machine_from_claiming() -> None:
    """Who wakes late may execute a fence that he finds, and nothing else that he remembers (R14, R15)."""
    fenced = after(claim(), snapshot(), phase("stopped", 2), Fence(machine="A", reason="sealed"))
    taken = apply(fenced, replace(claim(2, "B", 2), n=5))

    assert permit(taken, "A") is None
    assert taken.fences == ("A",)
    assert refusal(taken, replace(claim(3, "A", 2), n=6)) is not None


@pytest.mark.parametrize(
    ("state", "generation", "life", "lost"),
    [(HELD, 1, "a", False), (HELD, 1, "b", True), (TAKEN, 1, "a", True), (DONE, 1, "a", True), (SEALED, 1, "a", False)],
)
def test_who_has_lost_the_run(state: State, generation: int, life: str, lost: bool) -> None:
    assert (lost_run(state, generation=generation, life=life) is not None) == lost
