"""What a log means: a pure fold over its entries, and which entry is legal where.

`refusal` is the one rule book: the writer asks it before it appends, the reader before it believes (R5), so an entry
of a zombie, a broken writer or an older version is void rather than believed. No I/O, no clock. Keeps I4, I6, I7 and
the retention half of I3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from msgspec.structs import replace

from spotwarp.persistence.runlog.entry import (
    SEALS,
    Aborted,
    AnyEntry,
    Claim,
    Complete,
    Detach,
    Discarded,
    Entry,
    Failed,
    Fence,
    FenceReason,
    Forget,
    Fork,
    HolderEntry,
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

MachineEntry: TypeAlias = RentIntent | Rented | Released | Fence | Discarded
LineageEntry: TypeAlias = Forget | Pin | Unpin | Fork | Detach | Aborted

MAX_OPEN_MACHINES = 16
"""Keeps an entry, state included, small: a race wider than this is a mistake."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an entry is void on a prefix. `fenced`: the writer has lost the run. `ended`: nobody can have it."""

    reason: str
    fenced: bool = False
    ended: bool = False


def refusal(state: State, entry: Entry) -> Refusal | None:
    """Why `entry` may not follow a log whose fold is `state`, or None when it may."""
    match entry:
        case Claim():
            return _refuse_claim(state, entry)
        case Snapshot() | Phase() | Published() | Complete() | Failed():
            return _refuse_holder(state, entry)
        case RentIntent() | Rented() | Released() | Fence() | Discarded():
            return _refuse_machine(state, entry)
        case Forget() | Pin() | Unpin() | Fork() | Detach() | Aborted():
            return _refuse_lineage(state, entry)
    return Refusal("an entry of a newer SpotWarp")


def _refuse_claim(state: State, entry: Claim) -> Refusal | None:
    if state.terminal:
        return Refusal(f"the run is {state.terminal}", ended=True)
    if entry.machine in state.fences:
        return Refusal(f"machine {entry.machine} was fenced off", fenced=True)
    if entry.generation != state.generation + 1:
        return Refusal(f"generation {entry.generation} cannot follow {state.generation}")
    if entry.base != state.snapshot:
        return Refusal(f"the last snapshot is {state.snapshot}, not {entry.base}")
    return None


def _refuse_holder(state: State, entry: HolderEntry) -> Refusal | None:
    lost = lost_run(state, generation=entry.generation, life=entry.by)
    if lost is not None:
        return lost
    if state.seal:
        return Refusal(f"generation {state.generation} is sealed ({state.seal})", fenced=True)
    if isinstance(entry, Snapshot):
        if entry.base != state.snapshot:
            return Refusal(f"the last snapshot is {state.snapshot}, not {entry.base}")
        return _refuse_forgetting(state, entry.forgets, set() if entry.cls == "resumable" else {state.resumable})
    if isinstance(entry, Phase) and entry.phase not in SEALS:
        return None
    if state.snapshot_generation != entry.generation or entry.snapshot != state.snapshot:
        return Refusal("no final snapshot of this generation comes before it")
    return None


def _refuse_machine(state: State, entry: MachineEntry) -> Refusal | None:
    match entry:
        case RentIntent() if state.terminal:
            return Refusal(f"the run is {state.terminal}", ended=True)
        case RentIntent() if len(state.intents) >= MAX_OPEN_MACHINES:
            return Refusal(f"{MAX_OPEN_MACHINES} machines are already open")
        case Fence() if permit(state, entry.machine) is None:
            return Refusal(f"nothing permits ending machine {entry.machine}")
    return None


def _refuse_lineage(state: State, entry: LineageEntry) -> Refusal | None:
    match entry:
        case Forget():
            return _refuse_forgetting(state, entry.snapshots, {state.snapshot, state.resumable})
        case Pin() if entry.snapshot not in state.roots or entry.child in state.pins:
            return Refusal(f"snapshot {entry.snapshot} cannot be pinned")
        case Unpin() if entry.child not in state.pins:
            return Refusal(f"no pin of {entry.child}")
        case Detach() if state.fork is None or state.detached:
            return Refusal("nothing to detach from")
        case Fork() | Aborted() if entry.n != 1:
            return Refusal(f"{entry.__struct_config__.tag} is only ever the first entry")
    return None


def _refuse_forgetting(state: State, snapshots: tuple[int, ...], kept: set[int]) -> Refusal | None:
    """The last snapshot and the last resumable one are what the next machine starts from: they are never forgotten."""
    if not set(snapshots) <= set(state.retained):
        return Refusal("a snapshot to forget is not retained")
    if kept & set(snapshots):
        return Refusal("the last snapshot and the last resumable one are kept")
    return None


def lost_run(state: State, *, generation: int, life: str) -> Refusal | None:
    """Why the holder (`generation`, `life`) no longer holds the run, or None while it does (R2)."""
    if state.terminal:
        return Refusal(f"the run is {state.terminal}", fenced=True, ended=True)
    if state.generation != generation or state.life != life:
        return Refusal(
            f"generation {state.generation} on {state.machine or 'another machine'} has taken the run", fenced=True
        )
    if state.machine in state.fences:
        return Refusal(f"machine {state.machine} was fenced off", fenced=True)
    return None


def permit(state: State, machine: str) -> FenceReason | None:
    """Why `machine` may be ended on this prefix (R14), or None when nothing permits it."""
    generation = state.claimed.get(machine, 0)
    if state.terminal:
        return "terminal"
    if machine in state.discarded:
        return "discard"
    if generation == 0:
        # Under a seal an unclaimed machine is wanted as successor.
        return "loser" if state.generation and not state.seal else None
    if generation < state.generation and state.snapshot_generation > generation:
        return "superseded"
    if generation == state.generation and state.seal and state.snapshot_generation == generation:
        return "sealed"
    return None


def apply(state: State, entry: AnyEntry | Unknown) -> State:
    """The fold one entry further; a void entry changes nothing."""
    if refusal(state, entry) is not None:
        return state
    match entry:
        case Claim():
            return _after_claim(state, entry)
        case Snapshot():
            return _after_snapshot(state, entry)
        case Phase():
            return _after_phase(state, entry)
        case Complete() | Failed() | Aborted():
            return replace(state, terminal=str(entry.__struct_config__.tag))
        case RentIntent() | Rented() | Released() | Fence() | Discarded():
            return _after_machine(state, entry)
        case Forget() | Pin() | Unpin() | Fork() | Detach():
            return _after_lineage(state, entry)
    return state


def _after_claim(state: State, entry: Claim) -> State:
    return replace(
        state,
        generation=entry.generation,
        claim=entry.n,
        life=entry.by,
        machine=entry.machine,
        seal="",
        notice=None,
        claimed=_claimed(state, entry),
        discarded=_others(state.discarded, entry.machine),
    )


def _after_phase(state: State, entry: Phase) -> State:
    if entry.phase in SEALS:
        return replace(state, seal=entry.phase)
    if entry.phase == "notice" and entry.seconds is not None:
        return replace(state, notice=(entry.n, entry.seconds))
    return state


def _after_lineage(state: State, entry: Forget | Pin | Unpin | Fork | Detach) -> State:
    match entry:
        case Forget():
            return replace(state, retained=_without(state.retained, entry.snapshots))
        case Pin():
            return replace(state, pins={**state.pins, entry.child: entry.snapshot})
        case Unpin():
            return replace(state, pins={k: v for k, v in state.pins.items() if k != entry.child})
        case Fork():
            return replace(state, fork=(entry.parent, entry.snapshot))
    return replace(state, detached=True)


def _claimed(state: State, entry: Claim) -> dict[str, int]:
    """Who claimed which generation. Machines whose generation a committed later one has superseded are dropped beyond
    a number: to the gate they are then machines that never claimed, which it may end under the same condition.
    """
    superseded = sorted(g for g in state.claimed.values() if g < state.snapshot_generation)
    oldest = superseded[-MAX_OPEN_MACHINES] if len(superseded) > MAX_OPEN_MACHINES else 0
    kept = {machine: g for machine, g in state.claimed.items() if g >= oldest}
    return {**kept, entry.machine: entry.generation}


def _after_snapshot(state: State, entry: Snapshot) -> State:
    return replace(
        state,
        snapshot=entry.n,
        snapshot_generation=entry.generation,
        resumable=entry.n if entry.cls == "resumable" else state.resumable,
        retained=(*_without(state.retained, entry.forgets), entry.n),
    )


def _after_machine(state: State, entry: MachineEntry) -> State:
    match entry:
        case RentIntent():
            return replace(state, intents=(*_others(state.intents, entry.intent), entry.intent))
        case Rented():
            return replace(
                state,
                intents=(*_others(state.intents, entry.intent), entry.intent),
                rented={**state.rented, entry.intent: entry.machine},
            )
        case Fence():
            return replace(state, fences=(*_others(state.fences, entry.machine), entry.machine))
        case Discarded():
            return replace(state, discarded=(*_others(state.discarded, entry.machine), entry.machine))
    machine = entry.machine or state.rented.get(entry.intent, "")
    gone = {i for i, m in state.rented.items() if m == machine} | {entry.intent}
    return replace(
        state,
        intents=tuple(i for i in state.intents if i not in gone),
        rented={i: m for i, m in state.rented.items() if i not in gone},
    )


def _without(numbers: tuple[int, ...], gone: tuple[int, ...]) -> tuple[int, ...]:
    dropped = set(gone)
    return tuple(n for n in numbers if n not in dropped)


def _others(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(n for n in names if n != name)
