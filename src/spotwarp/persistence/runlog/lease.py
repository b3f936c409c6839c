"""Who has the run, and when another may take it: heartbeats, staleness, the wait before a claim.

A heartbeat is one plain object per process life, overwritten by its owner alone. Staleness is judged on the
observer's own monotonic clock: the same beat at a read made after the whole lease ran out (R8). No two machines' clocks
are ever compared, and not seeing something is never taken for its death (I9).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from spotwarp.clock import Clock
from spotwarp.errors import CorruptObject, LeaseHeld, ObjectMissing, SpotWarpError
from spotwarp.persistence import layout
from spotwarp.persistence.envelope import FORMAT_VERSION, Kind, seal, unseal
from spotwarp.persistence.runlog.entry import Claim, State
from spotwarp.persistence.runlog.fold import Refusal, lost_run
from spotwarp.persistence.runlog.log import Head, RunLog, Stands, refused_error
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.store.metered import charged


class Beat(msgspec.Struct, frozen=True, omit_defaults=True):
    """One heartbeat. `life` and `count` make its value unique; the rest is for people."""

    v: int
    life: str
    count: int
    wall: str = ""
    phase: str = ""
    facts: dict[str, str | int | float | bool | None] = {}


_decoder = msgspec.json.Decoder(Beat)


def read_beat(store: Store, run: str, life: str) -> Beat | None:
    """The beat of `life` as it stands, None when there is none or it is unreadable."""
    try:
        return _decoder.decode(unseal(store.get(layout.beat_key(run, life)), Kind.BEAT, "heartbeat"))
    except (ObjectMissing, CorruptObject, msgspec.DecodeError, RecursionError):
        return None


class BeatWatch:
    """Decides whether a beat has stood still for the lease. Pure but for what it remembers."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._value: tuple[str, int] | None = None
        self._seen: tuple[str, int] | None = None
        self._since: float | None = None
        self.moved = False
        """The beat was seen to change: its owner is alive."""

    def observe(self, beat: Beat | None, *, asked_at: float, answered_at: float) -> bool:
        """Take in a read that was asked for and answered at these monotonic times. True: the beat is stale.

        A beat that cannot be seen is a value like any other: it must stay away for the whole lease, and proves no life.
        """
        value = (beat.life, beat.count) if beat else None
        if self._since is not None and value == self._value:
            return asked_at - self._since >= self._lease_s
        if value is not None:
            self.moved = self._since is not None and value != self._seen
            self._seen = value
        self._value, self._since = value, answered_at
        return False


@dataclass(frozen=True, slots=True)
class Turn:
    """This life may claim over generation `over`; `cause` is why (R7)."""

    over: int
    cause: str


def wait_for_turn(
    log: RunLog,
    store: Store,
    *,
    lease_s: float,
    clock: Clock,
    takeover: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Turn:
    """Return as soon as this life may claim the run (R7). The caller beats already: no claim is born stale.

    Raises `LeaseHeld` when another life holds it and is seen to be alive, `RunEnded` when the run is closed.
    `takeover` claims over a silent or living holder alike: the user's word.
    """
    watch: BeatWatch | None = None
    watched, noticed_at = "", 0.0
    notice: tuple[int, float] | None = None
    while True:
        head = log.head()
        state = head.state
        cause = _free_cause(log.run, state, takeover)
        if cause:
            return Turn(state.generation, cause)
        if watch is None or watched != state.life:
            held = _claim_of(log, state)
            theirs = held.lease_s if held else lease_s
            watch, watched = BeatWatch(max(lease_s, theirs)), state.life
            say(
                f"generation {state.generation} {holder(log, state)} holds the run; "
                f"waiting for its heartbeat to stand still for {max(lease_s, theirs):g} s"
            )
        now = clock.monotonic()
        if state.notice != notice:
            notice, noticed_at = state.notice, now
        if notice is not None and now - noticed_at >= notice[1]:
            return Turn(state.generation, f"deadline@{notice[0]}")
        beat = read_beat(store, log.run, state.life)
        if watch.observe(beat, asked_at=now, answered_at=clock.monotonic()):
            return Turn(state.generation, "stale beat")
        if watch.moved and notice is None:
            raise LeaseHeld(
                f"run {log.run!r} is held {holder(log, state)}, which is alive; left alone",
                hint="Stop it there, wait for it, use another run (`--run NAME`), or take it over with `--takeover`.",
            )
        clock.sleep(min(1.0, lease_s / 8))


def _free_cause(run: str, state: State, takeover: bool) -> str:
    if state.terminal:
        raise refused_error(run, f"it is {state.terminal}", fenced=False, ended=True)
    if not state.generation:
        return "first"
    if state.seal:
        return f"sealed@{state.generation}"
    return "takeover" if takeover else ""


def claim(log: RunLog, turn: Turn, draft: Claim) -> Claim:
    """Claim the run; `draft` says who and what, the rest is filled in. Its `base` is where this life must start (R10).

    Raises `LeaseHeld` when another took the turn meanwhile (wait again: that life may be alive), `RunEnded`, `Fenced`,
    and `StoreUnavailable`; after that the same call finds a claim that was made all the same.
    """

    def decide(head: Head) -> Claim:
        state = head.state
        if state.life == log.life and state.generation > turn.over:
            raise Stands(log.read(state.claim))
        if state.generation > turn.over and not state.terminal:
            raise LeaseHeld(
                f"run {log.run!r} was taken first by {holder(log, state)}", hint="Wait for it, or leave the run to it."
            )
        return replace(draft, generation=state.generation + 1, cause=turn.cause, base=state.snapshot)

    return log.append(decide)


def holder(log: RunLog, state: State) -> str:
    """The holder in words: host, process, since when."""
    held = _claim_of(log, state)
    if held is None:
        return f"on {state.machine}"
    return f"on {held.host or held.machine} (process {held.pid}, since {held.wall})"


def _claim_of(log: RunLog, state: State) -> Claim | None:
    """The current claim, None when that entry is damaged: all that counts of it is in the state."""
    try:
        entry = log.read(state.claim)
    except CorruptObject:
        return None
    return entry if isinstance(entry, Claim) else None


@dataclass(frozen=True, slots=True)
class Holding:
    """What a holder is fenced by: its generation and life."""

    generation: int
    life: str


class Heart:
    """Beats every quarter of the lease in a thread of its own, and looks each time whether the run was lost.

    `facts` is called for each beat; `on_lost` is called once, from the beating thread, when the log says that this life
    no longer holds the run. Failing beats are counted, never raised: the store may come back.
    """

    def __init__(
        self,
        log: RunLog,
        store: Store,
        *,
        lease_s: float,
        clock: Clock,
        facts: Callable[[], tuple[str, dict[str, str | int | float | bool | None]]],
        on_lost: Callable[[Refusal], None],
    ) -> None:
        self._log = log
        self._store = store
        self._lease_s = lease_s
        self._clock = clock
        self._facts = facts
        self._on_lost = on_lost
        self._count = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.holding: Holding | None = None
        self.error: str = ""
        """Why the last beat failed; empty when it did not."""

    def start(self) -> None:
        """Beat once, now (a candidate beats before it claims), then go on in the background.

        Raises `StoreError` when even the first beat cannot be written.
        """
        self.beat()
        self._thread.start()

    def stop(self) -> None:
        """Stop beating; returns when the thread is gone or busy with its last request."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(min(1.0, self._lease_s))

    def _run(self) -> None:
        period = self._lease_s / 4
        due = self._clock.monotonic() + period
        while not self._clock.wait(self._stop, max(0.0, due - self._clock.monotonic())):
            self.tick()
            # At fixed times, so that a slow store does not stretch the period; what was missed is not made up for.
            due = max(due + period, self._clock.monotonic())

    def tick(self) -> None:
        """One beat, then one look at the log: what the thread does every quarter of the lease. Never raises."""
        try:
            self.beat()
            self.error = ""
        except SpotWarpError as error:
            self.error = str(error)
        try:
            lost = self.lost()
        except SpotWarpError as error:
            self.error = str(error)
            return
        if lost is not None and not self._stop.is_set():
            self._stop.set()
            self._on_lost(lost)

    def beat(self) -> None:
        """Write the next heartbeat. Raises `StoreError`."""
        self._count += 1
        phase, facts = self._facts()
        beat = Beat(
            v=FORMAT_VERSION,
            life=self._log.life,
            count=self._count,
            wall=self._clock.wall().isoformat(timespec="seconds"),
            phase=phase,
            facts={**facts, **charged(self._store)},
        )
        self._store.put(layout.beat_key(self._log.run, self._log.life), seal(Kind.BEAT, msgspec.json.encode(beat)))

    def lost(self) -> Refusal | None:
        """Why the log says that this life has lost the run; None while it has it, or holds nothing yet."""
        holding = self.holding
        if holding is None:
            return None
        head: Head = self._log.head()
        return lost_run(head.state, generation=holding.generation, life=holding.life)
