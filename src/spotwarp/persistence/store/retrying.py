"""A store that tries again, so that a hiccup is not a failure and a storm is not made worse.

Owns the wait between tries and the pace between calls, both shared by all threads that use the store. It retries only
verbs whose repetition is harmless; `put_new` is made once, because its caller must read the slot. Where the store says
how long it wants to be left alone (Retry-After), nothing but a heartbeat and a look at the log is sent before. The same
go past a limit of bandwidth.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar, runtime_checkable

from spotwarp.clock import Clock, Rng
from spotwarp.errors import StoreUnavailable
from spotwarp.persistence.store.api import Buffer, ObjectMeta, Store
from spotwarp.persistence.store.bandwidth import Bandwidth
from spotwarp.persistence.store.metered import Usage, usage_of
from spotwarp.retry import Backoff, call

T = TypeVar("T")

_ITS_WISH: Final = "It is overloaded, or limits this account. It is tried again after that."


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long one verb may be retried (seconds), and how the waits grow."""

    budget_s: float = 60.0
    backoff: Backoff = Backoff()


class Pace:
    """The gap between the starts of calls: doubled by refusals, shrunk by successes, shared by all threads.

    With no refusals it is zero and costs nothing. The refusals of calls that were under way together count once.
    """

    FIRST_S = 0.02
    MOST_S = 0.25
    PAUSE_S = 300.0
    """The longest pause that a store may ask for; beyond that it is tried again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._gap_s = 0.0
        self._next = float("-inf")
        self._slowed = float("-inf")
        self._resume = float("-inf")
        self._pressing = False

    @property
    def gap_s(self) -> float:
        """Seconds between two starts at present."""
        with self._lock:
            return self._gap_s

    def turn_s(self) -> float:
        """Take the next turn; seconds to wait for it."""
        with self._lock:
            now = self._clock.monotonic()
            if not self._gap_s:
                return max(0.0, self._resume - now)
            start = max(now, self._next, self._resume)
            self._next = start + self._gap_s
            return start - now

    def pause_s(self) -> float:
        """Seconds left of the pause that the store asked for."""
        with self._lock:
            return max(0.0, self._resume - self._clock.monotonic())

    def pause(self, seconds: float) -> None:
        """The store asked to be left alone for `seconds`."""
        with self._lock:
            if not self._pressing:
                self._resume = max(self._resume, self._clock.monotonic() + min(seconds, self.PAUSE_S))

    def press_on(self) -> None:
        """From now on no pause is kept: the machine ends before it would."""
        with self._lock:
            self._pressing, self._resume, self._next = True, float("-inf"), float("-inf")

    def slower(self, started: float) -> None:
        """The store refused, or did not answer, a call that began at `started` (monotonic)."""
        with self._lock:
            if started < self._slowed:
                return
            self._slowed = self._clock.monotonic()
            self._gap_s = min(self.MOST_S, max(self.FIRST_S, self._gap_s * 2))

    def faster(self) -> None:
        """The store obeyed."""
        with self._lock:
            self._gap_s = self._gap_s * 0.7 if self._gap_s > self.FIRST_S else 0.0


@runtime_checkable
class Patient(Protocol):
    """A store that tries again, or a view of one."""

    @property
    def cancel(self) -> threading.Event:
        """Once set, nothing waits any more."""
        ...

    @property
    def limited(self) -> bool:
        """Whether bulk is held to a limit of bandwidth."""
        ...

    def with_budget(self, seconds: float) -> Store:
        """The same store, giving up after `seconds` of trying."""
        ...

    def press_on(self) -> None:
        """Keep no pause that the store asks for, from now on."""
        ...


class RetryingStore:
    """`inner`, with `put`, `get`, `get_range`, `head`, `list` and `delete` retried while their error is retryable.

    Setting `cancel` ends all waiting at once, now and later; calls are still made, once each.
    """

    def __init__(
        self,
        inner: Store,
        *,
        clock: Clock,
        rng: Rng,
        policy: RetryPolicy = RetryPolicy(),
        cancel: threading.Event | None = None,
        bandwidth: float | None = None,
    ) -> None:
        """`bandwidth` is the most bytes a second, each way, None for no limit."""
        self._inner = inner
        self._clock = clock
        self._rng = rng
        self._policy = policy
        self._cancel = cancel or threading.Event()
        self._pace = Pace(clock)
        self._bandwidth = Bandwidth(bandwidth, clock) if bandwidth else None
        self._queues = True

    @property
    def url(self) -> str:
        """See `Store`."""
        return self._inner.url

    @property
    def cancel(self) -> threading.Event:
        """Once set, nothing waits any more."""
        return self._cancel

    @property
    def usage(self) -> Usage | None:
        """What counts the requests, every try of them."""
        return usage_of(self._inner)

    @property
    def limited(self) -> bool:
        """Whether bulk is held to a limit of bandwidth."""
        return self._bandwidth is not None

    def with_budget(self, seconds: float) -> RetryingStore:
        """The same store for small, urgent objects (beats, log entries): retried for at most `seconds`.

        It does not queue behind the throttled bulk, nor keep its limit, so that a lease is not lost to it, but its
        refusals count.
        """
        urgent = copy.copy(self)
        urgent._policy = replace(self._policy, budget_s=seconds)
        urgent._queues = False
        return urgent

    def press_on(self) -> None:
        """Keep no pause that the store asks for and no limit, from now on: for the last seconds of a machine."""
        self._pace.press_on()
        if self._bandwidth is not None:
            self._bandwidth.lift()

    def put(self, key: str, data: Buffer) -> None:
        """See `Store`; retried."""
        if self._bandwidth is not None and self._queues:  # once, and before the time for the tries begins
            self._bandwidth.up(memoryview(data).nbytes, self._cancel.is_set)
        self._try(lambda: self._inner.put(key, data))

    def put_new(self, key: str, data: Buffer) -> None:
        """See `Store`; not retried, but not made before the store wants to be asked again."""
        if self._pace.pause_s() > 0:
            self._await_turn(self._clock.monotonic())
        try:
            self._inner.put_new(key, data)
        except StoreUnavailable as error:
            self._asked_s(error)
            raise

    def get(self, key: str) -> bytes:
        """See `Store`; retried."""
        return self._try(lambda: self._inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `Store`; retried."""
        if self._bandwidth is not None and self._queues:
            self._bandwidth.down(length, self._cancel.is_set)
        return self._try(lambda: self._inner.get_range(key, start, length))

    def head(self, key: str) -> ObjectMeta:
        """See `Store`; retried."""
        return self._try(lambda: self._inner.head(key))

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """See `Store`; retried as a whole, so that what it yields is one listing."""
        return iter(self._try(lambda: tuple(self._inner.list(prefix))))

    def delete(self, key: str) -> None:
        """See `Store`; retried."""
        self._try(lambda: self._inner.delete(key))

    def _try(self, verb: Callable[[], T]) -> T:
        begun = self._clock.monotonic()

        def once() -> T:
            if self._queues:
                self._await_turn(begun)
            started = self._clock.monotonic()
            try:
                result = verb()
            except StoreUnavailable as error:
                self._pace.slower(started)
                self._asked_s(error)
                raise
            self._pace.faster()
            return result

        return call(
            once,
            clock=self._clock,
            rng=self._rng,
            budget_s=self._policy.budget_s,
            backoff=self._policy.backoff,
            cancel=self._cancel,
            at_least_s=lambda _: self._pace.pause_s(),
        )

    def _await_turn(self, begun: float) -> None:
        """Wait for the turn; give up where the store wants to be left alone for longer than we may try."""
        pause_s = self._pace.pause_s()
        if not self._cancel.is_set() and pause_s > self._policy.budget_s - (self._clock.monotonic() - begun):
            error = StoreUnavailable(f"{self.url} asks to be left alone for {pause_s:.0f} s more", hint=_ITS_WISH)
            error.retry_after_s = pause_s
            raise error
        if (turn_s := self._pace.turn_s()) > 0:
            self._clock.wait(self._cancel, turn_s)

    def _asked_s(self, error: StoreUnavailable) -> None:
        if error.retry_after_s:
            self._pace.pause(error.retry_after_s)
