"""Time and chance that a test owns.

`VirtualClock` stands still until somebody sleeps on it, so that hours of waiting take no time; `SeededRng` draws the
same numbers again for the same seed. Neither ever touches the machine's clock.
"""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(2030, 1, 1, tzinfo=UTC)
"""The wall time of monotonic second 0."""


class VirtualClock:
    """A clock that moves only by `sleep`, `wait` and `advance`. Safe to share between threads."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now = start_s
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        """See `Clock`."""
        with self._lock:
            return self._now

    def wall(self) -> datetime:
        """See `Clock`."""
        return EPOCH + timedelta(seconds=self.monotonic())

    def thread_s(self) -> float:
        """See `Clock`: as if whatever takes time took a processor's."""
        return self.monotonic()

    def sleep(self, seconds: float) -> None:
        """See `Clock`; the time passes at once."""
        self.advance(seconds)

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        """See `Clock`; the time passes at once unless the event is set. Without a limit it waits for another thread."""
        if seconds is None:
            return event.wait()
        if not event.is_set():
            self.advance(seconds)
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        with self._lock:
            self._now += max(0.0, seconds)


class SeededRng:
    """Reproducible chance; tokens are unique within one generator, and only there."""

    def __init__(self, seed: int | str = 0) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def token(self, nbytes: int) -> str:
        """See `Rng`."""
        with self._lock:
            return self._random.randbytes(nbytes).hex()

    def uniform(self, low: float, high: float) -> float:
        """See `Rng`."""
        with self._lock:
            return self._random.uniform(low, high)
