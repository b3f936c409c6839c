"""Reading and appending a run's log over a store that may lose replies, conflict or be slow.

An append is a decision on exactly the prefix below it: `decide` sees the head, its entry is created at head + 1 if
absent, and a collision means reading on and deciding again (R1, R2). A lost reply is settled by reading the slot (R3).
This module never deletes an entry (R6) and never lists (the tail is found by the hint and by probing).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

from msgspec.structs import replace

from spotwarp.clock import Clock, Rng
from spotwarp.errors import (
    AlreadyExists,
    CorruptObject,
    CredentialsExpired,
    Fenced,
    LeaseError,
    ObjectMissing,
    RunEnded,
    RunMissing,
    SpotWarpError,
    StoreConflict,
    StoreUnavailable,
    UnsupportedFormat,
)
from spotwarp.persistence import layout
from spotwarp.persistence.envelope import Kind, seal, unseal
from spotwarp.persistence.reads import twice
from spotwarp.persistence.runlog.entry import AnyEntry, Entry, State, Unknown, decode, encode
from spotwarp.persistence.runlog.fold import apply, refusal
from spotwarp.persistence.store.api import Store

HINT_EVERY = 16
KEPT_ENTRIES = 4096
APPEND_BUDGET_S = 60.0

E = TypeVar("E", bound=Entry)


@dataclass(frozen=True, slots=True)
class Head:
    """The newest entry's number (0: none) and the fold of everything up to and including it."""

    n: int
    state: State
    readonly: str = ""
    """Why nothing may be appended: an entry of a newer SpotWarp."""


class Stands(Exception):
    """Raised by a `decide`: what it would append is in the log already, by an earlier try that got no answer (R3)."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(f"entry {entry.n}")
        self.entry = entry


class RunLog:
    """One run's log, as one process life sees it. Safe to use from several threads."""

    def __init__(
        self, store: Store, run: str, *, life: str, clock: Clock, rng: Rng, append_budget_s: float = APPEND_BUDGET_S
    ) -> None:
        self.run = run
        self.life = life
        self._store = store
        self._clock = clock
        self._rng = rng
        self._append_budget_s = append_budget_s
        self._count = 0
        self._lock = threading.RLock()
        self._entries: OrderedDict[int, AnyEntry | Unknown] = OrderedDict()
        self._head = Head(0, State())

    # ---- reading ---------------------------------------------------------------------------------------------------

    def read(self, n: int) -> AnyEntry | Unknown:
        """Entry `n`. Raises `ObjectMissing` when there is none, `CorruptObject` when it is damaged."""
        with self._lock:
            known = self._entries.get(n)
        if known is not None:
            return known
        key = layout.log_key(self.run, n)
        entry = twice(lambda: decode(self._store.get(key), n, key))
        self._remember(n, entry)
        return entry

    def entries(self, numbers: Iterable[int] | None = None) -> Iterator[AnyEntry | Unknown]:
        """The entries of the given numbers, or all, in order; fetched several at a time."""
        from concurrent.futures import ThreadPoolExecutor

        wanted = range(1, self.head().n + 1) if numbers is None else numbers
        with ThreadPoolExecutor(16, thread_name_prefix="log-read") as pool:
            yield from pool.map(self.read, wanted)

    def head(self) -> Head:
        """The head as it is now: one GET when nothing was appended since the last call.

        No lock is held while the store is asked, so that a slow answer to one thread never delays another's beat.
        """
        with self._lock:
            known = self._head.n
        last = self._probe(known or self._hinted())
        return self._advance(self._fold(last)) if last > known else self._advance(None)

    def _advance(self, seen: Head | None) -> Head:
        """Entries never change, so of two heads the higher one is the newer; the newest that any thread saw."""
        with self._lock:
            if seen is not None and seen.n > self._head.n:
                self._head = seen
            return self._head

    def existing_head(self) -> Head:
        """As `head`, but `RunMissing` when the run has no entry."""
        head = self.head()
        if not head.n:
            if self._known():
                raise RunMissing(
                    f"run {self.run!r} has not begun: nothing is stored in it yet",
                    hint="`spotwarp run --command '…'` or `spotwarp sync` begins it.",
                )
            raise RunMissing(
                f"there is no run {self.run!r} here", hint="`spotwarp runs` lists the runs of this repository."
            )
        return head

    def _hinted(self) -> int:
        """The number in the hint object if an entry with that number exists, else 0. Never trusted beyond that."""
        try:
            hint = int(unseal(self._store.get(layout.hint_key(self.run)), Kind.HINT, "hint"))
        except (ObjectMissing, CorruptObject, UnsupportedFormat, ValueError):
            return 0
        return hint if hint > 0 and self._exists(hint) else 0

    def _known(self) -> bool:
        """Whether the repository lists the run, as `init` has it do before anything is stored."""
        try:
            self._store.head(layout.name_key(self.run))
        except ObjectMissing:
            return False
        return True

    def _exists(self, n: int) -> bool:
        try:
            self.read(n)
        except ObjectMissing:
            return False
        except (CorruptObject, UnsupportedFormat):
            return True  # there, if unreadable: such an entry is not the end of the log
        return True

    def _probe(self, known: int) -> int:
        """The last existing number, given that `known` exists (0 always does); there are no holes (R1)."""
        step = 1
        low = known
        while self._exists(known + step):
            low = known + step
            step *= 2
        high = known + step
        while high - low > 1:
            middle = (low + high) // 2
            if self._exists(middle):
                low = middle
            else:
                high = middle
        return low

    def _fold(self, n: int) -> Head:
        """The head at `n`. An entry that cannot be understood makes it read-only on what lies below (R5)."""
        problem = ""
        for below in range(n, 0, -1):
            try:
                entry = self.read(below)
            except CorruptObject as damage:
                problem = problem or f"entry {below} is damaged ({damage})"
                continue
            except UnsupportedFormat as newer:
                problem = problem or f"entry {below} was written by a newer SpotWarp ({newer})"
                continue
            if isinstance(entry, Unknown):
                problem = problem or f"entry {below} was written by a newer SpotWarp (format {entry.v})"
                continue
            return Head(n, apply(entry.state, entry), problem)
        return Head(n, State(), problem)

    def _remember(self, n: int, entry: AnyEntry | Unknown) -> None:
        with self._lock:
            self._entries[n] = entry
            while len(self._entries) > KEPT_ENTRIES:
                self._entries.popitem(last=False)

    # ---- appending -------------------------------------------------------------------------------------------------

    def append(self, decide: Callable[[Head], E], *, budget_s: float | None = None) -> E:
        """Append what `decide` makes of the head; it is called again after every collision, and may raise to refuse.

        `decide` raises `Stands` when it recognises its own earlier entry, which is then the result. Returns the entry
        as it stands in the log. Raises `Fenced` or `RunEnded` when the log says so, `LeaseError` when the entry is
        illegal there, `UnsupportedFormat` on a log with entries of a newer SpotWarp, and `StoreUnavailable` after
        `budget_s` (None: the log's own) without a usable answer: then the entry may or may not stand, which the next
        append finds out by reading.
        """
        deadline = self._clock.monotonic() + (self._append_budget_s if budget_s is None else budget_s)
        delay = 0.05
        while True:
            head = self.head()
            try:
                entry = self._complete(head, decide(head))
            except Stands as found:
                return cast(E, found.entry)
            if self._create(entry, deadline):
                self._remember(entry.n, cast(AnyEntry, entry))
                self._advance(Head(entry.n, apply(head.state, cast(AnyEntry, entry))))
                self._leave_hint(entry.n)
                return entry
            delay = self._back_off(delay)

    def _complete(self, head: Head, draft: E) -> E:
        if head.readonly:
            raise UnsupportedFormat(
                f"run {self.run!r} cannot be written: {head.readonly}",
                hint="Its snapshots can still be restored. Upgrade SpotWarp, or use another run (`--run NAME`).",
            )
        with self._lock:
            self._count += 1
            nonce = f"{self.life}.{self._count}"
        wall = self._clock.wall().isoformat(timespec="milliseconds")
        entry = replace(draft, n=head.n + 1, nonce=nonce, by=self.life, wall=wall, state=head.state)
        refused = refusal(head.state, entry)
        if refused is not None:
            raise refused_error(self.run, refused.reason, fenced=refused.fenced, ended=refused.ended)
        return entry

    def _create(self, entry: Entry, deadline: float) -> bool:
        """Create the slot: True when it is ours, False when another's entry is there."""
        key, data = layout.log_key(self.run, entry.n), encode(entry)
        delay = 0.05
        while True:
            error: SpotWarpError
            try:
                self._store.put_new(key, data)
                return True
            except AlreadyExists:
                # Also the answer to our own earlier, unanswered try: only the nonce tells (R3).
                mine = self._slot_is_mine(key, entry)
                if mine is not None:
                    return mine
                error = StoreUnavailable(f"{key} is taken, but cannot be read")
            except (StoreConflict, CredentialsExpired) as conflict:  # R4: nothing was decided
                error = conflict
            except StoreUnavailable as silence:
                mine = self._slot_is_mine(key, entry)
                if mine is not None:
                    return mine
                error = silence
            if self._clock.monotonic() >= deadline:
                raise StoreUnavailable(
                    f"the store gave no usable answer for {key}: {error}",
                    hint="Whether the entry stands is found out at the next try; nothing is lost.",
                ) from error
            delay = self._back_off(delay)

    def _slot_is_mine(self, key: str, entry: Entry) -> bool | None:
        """Whose entry stands there: True ours, False another's, None unknown or nobody's yet."""
        try:
            return decode(self._store.get(key), entry.n, key).nonce == entry.nonce
        except UnsupportedFormat:
            return False
        except (ObjectMissing, CorruptObject, StoreUnavailable, StoreConflict, CredentialsExpired):
            return None

    def _back_off(self, delay: float) -> float:
        self._clock.sleep(self._rng.uniform(delay / 2, delay))
        return min(delay * 2, 2.0)

    def _leave_hint(self, n: int) -> None:
        if n % HINT_EVERY:
            return
        try:
            self._store.put(layout.hint_key(self.run), seal(Kind.HINT, str(n).encode()))
        except SpotWarpError:
            return  # a late hint only costs probes


def refused_error(run: str, reason: str, *, fenced: bool, ended: bool) -> LeaseError:
    """The typed error for a refusal."""
    if fenced and not ended:
        return Fenced(
            f"run {run!r} has moved on: {reason}",
            hint="This machine's later work is only here; `spotwarp status` shows who has the run.",
        )
    if ended:
        return RunEnded(f"run {run!r} is closed: {reason}", hint="Start another with `spotwarp init --run NAME`.")
    return LeaseError(f"run {run!r} does not allow this: {reason}")
