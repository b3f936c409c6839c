"""What happens next beside the training command, and why: `step(state, event)` gives a new state and actions.

Owns the policy of a run's end: who is told, how long it may save, when the final sync starts, what is sealed and which
exit code says so (I6, I10). Pure: no I/O, no clock, no threads; the time is in the events, in monotonic seconds.
Must never order a final sync while the process tree may live, a seal without a final sync that succeeded, or two syncs
at once. The doer (`supervised`) carries out actions in order and reports back with events.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import ClassVar, Literal


class Sig(IntEnum):
    """The signals that mean something here: POSIX's own numbers, because a decider does not import `signal`."""

    HUP = 1
    INT = 2
    TERM = 15


@dataclass(frozen=True, slots=True)
class Policy:
    """How the last seconds are shared out. Seconds throughout.

    `grace_s` is what a SIGTERM is taken to leave us, by the word of `grace_by`; `stop_s` what a stop by the user leaves
    the command. Of what is left at a notice, `sync_share` (at most `sync_max_s`) is kept for the final sync.
    `preempt_signal` tells the command to save; None only writes the notice file. `overrun_s` after the deadline a final
    sync that still runs is given up. A `service` is never complete: that it was quit says nothing of the work.
    """

    grace_s: float = 30.0
    grace_by: str = ""
    sync_share: float = 0.5
    sync_max_s: float = 120.0
    linger_s: float = 10.0
    stop_s: float = 30.0
    kill_after_s: float = 5.0
    overrun_s: float = 1.0
    preempt_signal: int | None = Sig.TERM
    service: bool = False


Reason = Literal["checkpoint", "interval", "hint"]  # why a sync beside the command is started

# --- Events


@dataclass(frozen=True, slots=True)
class Started:
    """The command runs. What came earlier (signals, a notice, a fence) takes effect now."""

    now: float


@dataclass(frozen=True, slots=True)
class ChildExited:
    """The leader of the tree ended. `code` is the shell's number (128 + n for signal n), `words` say it in full."""

    code: int
    words: str
    now: float


@dataclass(frozen=True, slots=True)
class TreeGone:
    """No process of the tree lives. Due once after every `EndTree`, and as soon as a tree is empty by itself.

    `left` names what even SIGKILL could not remove (stuck in the kernel, unable to run its own code again).
    """

    now: float
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Signalled:
    """SpotWarp itself was sent signal `sig`."""

    sig: int
    now: float


@dataclass(frozen=True, slots=True)
class Notice:
    """The platform announced that the machine ends in `seconds_left`; `detail` says how it put that."""

    seconds_left: float
    source: str
    now: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Hint:
    """The platform said that a notice may come: worth a sync, not an end."""

    now: float
    reason: ClassVar[Reason] = "hint"


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """The command finished a checkpoint."""

    now: float
    reason: ClassVar[Reason] = "checkpoint"


@dataclass(frozen=True, slots=True)
class IntervalDue:
    """The sync interval ran out."""

    now: float
    reason: ClassVar[Reason] = "interval"


@dataclass(frozen=True, slots=True)
class SyncFinished:
    """The one sync that was running ended; `ok` when its snapshot is committed (and, if final, read back)."""

    ok: bool
    now: float


@dataclass(frozen=True, slots=True)
class FencedOff:
    """The run has moved on without this machine."""

    reason: str
    now: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; due a few times a second."""

    now: float


Event = (
    Started | ChildExited | TreeGone | Signalled | Notice | Hint | CheckpointCompleted | IntervalDue | SyncFinished
    | FencedOff | Tick
)  # fmt: skip


# --- Actions


@dataclass(frozen=True, slots=True)
class SignalTree:
    """Send `sig` to every process of the tree."""

    sig: int


@dataclass(frozen=True, slots=True)
class EndTree:
    """SIGTERM, up to `term_grace_s`, SIGKILL; then report `TreeGone`. A later one with less grace overtakes."""

    term_grace_s: float


@dataclass(frozen=True, slots=True)
class StartSync:
    """Take a snapshot beside the running command; report `SyncFinished`."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class CancelSync:
    """Let the running sync end at once (its uploads stay of use) and report `SyncFinished`; it may still succeed."""


@dataclass(frozen=True, slots=True)
class FinalSync:
    """Take the last snapshot of a workspace nobody writes any more, until `deadline`; report `SyncFinished`."""

    deadline: float | None


@dataclass(frozen=True, slots=True)
class WriteNotice:
    """Tell the command through its notice file that it has `seconds_left` to save, and the log why: `detail`."""

    seconds_left: float
    source: str
    detail: str = field(default="", compare=False)  # words


@dataclass(frozen=True, slots=True)
class Seal:
    """Append the generation's last entry. If that fails, exit 125 instead of what the `Exit` after it says."""

    kind: Literal["preempted", "stopped", "complete"]
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class Exit:
    """Leave with `code`; the last action of all."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Say:
    """Tell the user."""

    text: str


Action = SignalTree | EndTree | StartSync | CancelSync | FinalSync | WriteNotice | Seal | Exit | Say


# --- State


class Phase(Enum):
    """Where in its life the run is."""

    STARTING = "starting"
    RUNNING = "running"
    LEAVING = "leaving"  # the command ended by itself; processes it left may still live
    SAVING = "saving"  # told of the preemption; it may save until `act_at`
    STOPPING = "stopping"  # told to stop by the user
    ENDING = "ending"  # the tree is being ended
    SYNCING = "syncing"  # the tree is gone; the final sync runs or waits for the sync before it
    DONE = "done"


class Cause(Enum):
    """Why the run ends."""

    EXITED = "exited"
    PREEMPTED = "preempted"
    STOPPED = "stopped"


class Sync(Enum):
    """The one sync that may run."""

    IDLE = "idle"
    ROUTINE = "routine"
    URGENT = "urgent"  # started for a checkpoint that was saved because of a notice
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class State:
    """All that `step` remembers."""

    policy: Policy = field(default_factory=Policy)
    phase: Phase = Phase.STARTING
    cause: Cause | None = None
    exited: ChildExited | None = None
    tree_gone: bool = False
    sync: Sync = Sync.IDLE
    again: bool = False  # a checkpoint was completed while a sync ran
    deadline: float | None = None  # when the machine may be gone
    act_at: float | None = None  # when the patience of this phase is over
    interrupts: int = 0
    terminations: int = 0
    verdict: Exit | None = None  # decided already: no final sync, leave as soon as the tree is gone
    early: tuple[Event, ...] = ()  # came before `Started`
    cut_off: bool = False  # the command ended by itself, but what it left running had to be ended


Step = tuple[State, tuple[Action, ...]]


def step(state: State, event: Event) -> Step:
    """What follows from `event`. After the `Exit` action nothing follows from anything."""
    if state.phase is Phase.DONE:
        return state, ()
    if state.phase is Phase.STARTING:
        return _before_start(state, event)
    match event:
        case Signalled() | Notice() | FencedOff():
            return _told(state, event)
        case ChildExited():
            return _child_exited(state, event)
        case TreeGone():
            return _gone(state, event)
        case SyncFinished():
            return _sync_finished(state, event.ok)
        case CheckpointCompleted() | IntervalDue() | Hint():
            return _sync_wanted(state, event.reason)
        case Tick():
            return _tick(state, event.now)
        case Started():
            return state, ()


def _before_start(state: State, event: Event) -> Step:
    if not isinstance(event, Started):
        keep = isinstance(event, Signalled | Notice | FencedOff)
        return (replace(state, early=(*state.early, event)) if keep else state), ()
    actions: list[Action] = []
    early, state = state.early, replace(state, phase=Phase.RUNNING, early=())
    for one in early:
        state, more = step(state, one)
        actions += more
    return state, tuple(actions)


# --- Being told to end


def _told(state: State, event: Signalled | Notice | FencedOff) -> Step:
    match event:
        case Notice():
            return _preempt(state, event.now, event.seconds_left, event.source, event.detail)
        case FencedOff() if state.verdict is None:
            verdict = Exit(125, f"fenced: {event.reason}; what was stored before is safe, nothing after it counts")
            return _abandon(state, verdict, min(2.0, state.policy.kill_after_s))
        case Signalled(sig=Sig.INT):
            return _interrupted(replace(state, interrupts=state.interrupts + 1), event.now)
        case Signalled(sig=Sig.TERM):
            return _terminated(replace(state, terminations=state.terminations + 1), event.now)
    return state, ()  # SIGHUP above all: a closed terminal stops nothing


def _interrupted(state: State, now: float) -> Step:
    if state.interrupts == 1:
        return _stop(state, now)
    verdict = Exit(130, "stopped at once: work since the last snapshot is not stored")
    return _abandon(state, verdict, 0.0) if state.interrupts == 2 else _leave(state, state.verdict or verdict)


def _terminated(state: State, now: float) -> Step:
    if state.terminations == 1:
        return _preempt(state, now, state.policy.grace_s, "SIGTERM", state.policy.grace_by)
    if state.terminations == 2 and not state.tree_gone:
        return _end_now(state, now, "SIGTERM again: ending the command now")
    verdict = Exit(125, "SIGTERM again: leaving at once, work since the last snapshot is not stored")
    return _abandon(state, verdict, 0.0) if state.terminations <= 3 else _leave(state, state.verdict or verdict)


def _stop(state: State, now: float) -> Step:
    if state.phase is Phase.RUNNING and not state.tree_gone:
        state = replace(state, phase=Phase.STOPPING, cause=Cause.STOPPED, act_at=now + state.policy.stop_s)
        said = f"stopping: the command has {state.policy.stop_s:g} s; Ctrl-C again leaves at once, without a last sync"
        return state, (Say(said), SignalTree(Sig.INT))
    if state.phase is Phase.SAVING:
        return _end_now(replace(state, cause=Cause.STOPPED), now, "stopping: ending the command now")
    if state.phase is Phase.LEAVING:
        return _end_now(state, now, "ending what the command left running")
    if state.verdict is not None:
        return state, ()
    return state, (Say("the command has ended or soon will, then the last snapshot; Ctrl-C again leaves without it"),)


def _preempt(state: State, now: float, seconds_left: float, source: str, detail: str = "") -> Step:
    told_before, why = state.deadline is not None, f"{source}: {detail}" if detail else source
    known = () if state.deadline is None else (state.deadline,)
    deadline = min((now + max(0.0, seconds_left), *known))  # a later one never lengthens
    left = deadline - now
    save_s = left - min(left * state.policy.sync_share, state.policy.sync_max_s)
    state = replace(state, deadline=deadline)
    split = f"{left:.1f} s left: {save_s:.1f} s for the command to save, {left - save_s:.1f} s for the final sync"
    said, notice = Say(f"preemption ({why}): {split}"), WriteNotice(save_s, source, f"{why}; {split}")
    if state.phase is Phase.RUNNING and not state.tree_gone:
        state = replace(state, phase=Phase.SAVING, cause=Cause.PREEMPTED, act_at=now + save_s)
        return state, (said, notice, *_tell(state.policy))
    if state.phase in {Phase.SAVING, Phase.STOPPING, Phase.LEAVING}:
        act_at = now + save_s if state.act_at is None else min(state.act_at, now + save_s)
        tell = _tell(state.policy) if state.phase is Phase.LEAVING and not told_before else ()
        return replace(state, act_at=act_at), (said, notice, *tell)
    cancel = (CancelSync(),) if state.phase is Phase.SYNCING and state.sync is Sync.ROUTINE and not told_before else ()
    return state, (Say(f"preemption ({why}): {left:.1f} s left"), *cancel)


def _tell(policy: Policy) -> tuple[Action, ...]:
    return () if policy.preempt_signal is None else (SignalTree(policy.preempt_signal),)


def _end_now(state: State, now: float, said: str) -> Step:
    if state.phase not in {Phase.LEAVING, Phase.SAVING, Phase.STOPPING}:
        return state, ()
    term_grace_s = state.policy.kill_after_s
    if state.deadline is not None:  # the final sync needs the time more
        term_grace_s = min(term_grace_s, max(0.0, state.deadline - now) / 5)
    return replace(state, phase=Phase.ENDING, act_at=None), (Say(said), EndTree(term_grace_s))


def _abandon(state: State, verdict: Exit, term_grace_s: float) -> Step:
    """Leave without a final sync, as soon as the tree is gone. The first verdict stands."""
    verdict = state.verdict or verdict
    if state.tree_gone:
        return _leave(state, verdict)
    state = replace(state, phase=Phase.ENDING, act_at=None, verdict=verdict)
    return state, (Say(verdict.reason), EndTree(term_grace_s))


# --- The end of the tree


def _child_exited(state: State, event: ChildExited) -> Step:
    if state.exited is not None:
        return state, ()
    state = replace(state, exited=event)
    if state.phase is not Phase.RUNNING:
        return state, ()  # it was told to; the tree decides
    state = replace(state, cause=Cause.EXITED)
    if state.tree_gone:
        return _last(state)
    return replace(state, phase=Phase.LEAVING, act_at=event.now + state.policy.linger_s), ()


def _gone(state: State, event: TreeGone) -> Step:
    if state.tree_gone:
        return state, ()
    state = replace(state, tree_gone=True)
    said = (Say(f"stuck in the kernel, killed but not gone: {', '.join(event.left)}"),) if event.left else ()
    if state.verdict is not None:
        state, more = _leave(state, state.verdict)
    elif state.cause is not None:
        state, more = _last(state)
    else:
        more = ()  # the leader's end is on its way
    return state, (*said, *more)


def _last(state: State) -> Step:
    """The tree is gone and its end explained: the final sync, after the sync that may still run."""
    state = replace(state, phase=Phase.SYNCING, act_at=None, again=False)
    if state.sync is Sync.IDLE:
        return replace(state, sync=Sync.FINAL), (FinalSync(state.deadline),)
    hurry = state.sync is Sync.ROUTINE and state.deadline is not None
    return state, (CancelSync(),) if hurry else ()


def _sync_wanted(state: State, reason: Reason) -> Step:
    saving = state.phase is Phase.SAVING and reason == "checkpoint"
    if not saving and (state.phase is not Phase.RUNNING or state.tree_gone):
        return state, ()  # the final sync will have it
    if state.sync is not Sync.IDLE:
        return replace(state, again=state.again or reason != "interval"), ()
    return replace(state, sync=Sync.URGENT if saving else Sync.ROUTINE), (StartSync(reason),)


def _sync_finished(state: State, ok: bool) -> Step:
    ended, again = state.sync, state.again
    if ended is Sync.IDLE:
        return state, ()
    state = replace(state, sync=Sync.IDLE, again=False)
    if ended is Sync.FINAL:
        return _conclude(state, ok)
    if state.phase is Phase.SYNCING:
        return _last(state)
    return _sync_wanted(state, "checkpoint") if again else (state, ())


def _conclude(state: State, ok: bool) -> Step:
    code = None if state.exited is None else state.exited.code
    words = "" if state.exited is None else f"; the command {state.exited.words}"
    if not ok:
        return _leave(state, Exit(125, f"the final sync failed: only what earlier snapshots hold is stored{words}"))
    interrupted = state.cut_off and state.deadline is not None  # what was ended may have been the work itself
    if state.cause is Cause.PREEMPTED or (interrupted and code == 0):
        seal, end = Seal("preempted", code), Exit(75, f"preempted, everything is stored{words}")
    elif state.cause is Cause.STOPPED:
        seal, end = Seal("stopped", code), Exit(130, f"stopped, everything is stored{words}")
    elif code == 0 and state.policy.service:
        seal, end = Seal("stopped", code), Exit(0, "the command was quit, everything is stored; `spotwarp run` goes on")
    elif code == 0 and state.cut_off:  # nobody can say that the work was done: perhaps it was only started
        words = "the command ended but left processes running, which were ended: not complete; everything is stored"
        seal, end = Seal("stopped", code), Exit(125, words)
    elif code == 0:
        seal, end = Seal("complete", code), Exit(0, "complete, everything is stored")
    else:
        seal, end = Seal("stopped", code), Exit(125 if code is None else code, f"everything is stored{words}")
    state, last = _leave(state, end)
    return state, (seal, *last)


def _leave(state: State, verdict: Exit) -> Step:
    tidy = () if state.tree_gone else (EndTree(0.0),)
    return replace(state, phase=Phase.DONE), (*tidy, verdict)


def _tick(state: State, now: float) -> Step:
    if state.deadline is not None and now >= state.deadline + state.policy.overrun_s:
        late = "the final sync did not finish before the deadline: only what earlier snapshots hold is stored"
        return _leave(state, state.verdict or Exit(125, late))
    if state.act_at is None or now < state.act_at:
        return state, ()
    if state.phase is Phase.LEAVING:
        state = replace(state, cut_off=True)
    said = {
        Phase.LEAVING: f"the command ended but left processes running for {state.policy.linger_s:g} s: ending them",
        Phase.SAVING: "the time to save is over: ending the command",
        Phase.STOPPING: "the command did not stop in time: ending it",
    }
    return _end_now(state, now, said.get(state.phase, ""))
