"""A limit to the bytes a second that go to and come from a store.

Owns when the next bytes may begin to move; moves none. It is for bulk alone: log entries and heartbeats have a view of
the store that never asks. What was begun is not slowed down, so it is the mean that keeps the limit, not each moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spotwarp.clock import Clock

BURST_S: Final = 1.0
"""So much of what was not used may be made up for, in seconds of the limit."""
_POLL_S: Final = 0.2


@dataclass(slots=True)
class Bucket:
    """Tokens as a debt: each turn is granted at once, and the next one waits until it is paid off. Pure."""

    rate: float
    """Tokens a second."""
    _paid: float = float("-inf")
    """When all that was taken is paid off."""

    def turn_s(self, now: float, size: float) -> float:
        """Take `size` tokens at `now` (monotonic seconds); how long to wait before they are used."""
        start = max(self._paid, now - BURST_S)
        self._paid = start + size / self.rate
        return max(0.0, start - now)


class Bandwidth:
    """The limit of one store, `rate` bytes a second each way, for all threads that use it."""

    def __init__(self, rate: float, clock: Clock) -> None:
        self.rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._up, self._down = Bucket(rate), Bucket(rate)
        self._lifted = threading.Event()

    def up(self, size: int, stopped: Callable[[], bool]) -> None:
        """Wait until `size` bytes may be sent, until `stopped`, or until the limit is lifted."""
        self._await(self._up, size, stopped)

    def down(self, size: int, stopped: Callable[[], bool]) -> None:
        """As `up`, for bytes that are fetched."""
        self._await(self._down, size, stopped)

    def lift(self) -> None:
        """No limit from now on, and nobody waits any more: the machine ends soon."""
        self._lifted.set()

    def _await(self, bucket: Bucket, size: int, stopped: Callable[[], bool]) -> None:
        if self._lifted.is_set():
            return
        with self._lock:
            now = self._clock.monotonic()
            until = now + bucket.turn_s(now, size)
        while (left := until - self._clock.monotonic()) > 0 and not stopped():
            if self._clock.wait(self._lifted, min(left, _POLL_S)):
                return
