"""Time and randomness: their one home.

Everything else takes a `Clock` and an `Rng`, so that tests own both. Monotonic seconds (float) inside, aware UTC
datetimes only for people. Nothing here ever compares two machines' clocks.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A source of time. `monotonic` is in seconds and only differences of it mean something."""

    def monotonic(self) -> float:
        """Seconds on this machine's own monotonic clock."""
        ...

    def wall(self) -> datetime:
        """Now, aware, UTC; for people only."""
        ...

    def thread_s(self) -> float:
        """Processor seconds that the calling thread has used; only differences mean something."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        """Return True as soon as `event` is set, False after `seconds`."""
        ...


class Rng(Protocol):
    """A source of randomness."""

    def token(self, nbytes: int) -> str:
        """`nbytes` random bytes as lower-case hex; unguessable and unique."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """A number in [low, high); for jitter."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def wall(self) -> datetime:
        """See `Clock`."""
        return datetime.now(UTC)

    def thread_s(self) -> float:
        """See `Clock`."""
        return time.thread_time()

    def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        """See `Clock`."""
        return event.wait(seconds)


class SystemRng:
    """The operating system's randomness."""

    def token(self, nbytes: int) -> str:
        """See `Rng`."""
        return secrets.token_hex(nbytes)

    def uniform(self, low: float, high: float) -> float:
        """See `Rng`."""
        return random.uniform(low, high)  # noqa: S311 - jitter, not a secret
