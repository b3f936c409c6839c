"""How a long restore is said to go: how much is in place, how fast it goes now, how long it still takes.

Pure but for the clock. Says nothing of what is over before anybody wonders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from spotwarp.clock import Clock
from spotwarp.model import human_bytes, human_seconds
from spotwarp.persistence.restore import FetchProgress

EVERY_S: Final = 5.0
WINDOW_S: Final = 20.0
"""The rate is that of the last seconds: what was here already, or came before a pause of the store, tells nothing."""
_BIG: Final = 256 << 20


def progress_said(say: Callable[[str], None], clock: Clock, total: int) -> Callable[[FetchProgress], None] | None:
    """Progress in words every few seconds; None when `total` bytes are too few to wonder about."""
    if total < _BIG:
        return None
    pace = Pace(clock)

    def tell(progress: FetchProgress) -> None:
        if (words := pace.words(progress)) is not None:
            say(words)

    return tell


class Pace:
    """Progress over time. For one caller at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said_s = clock.monotonic()
        self._marks: deque[tuple[float, int]] = deque()
        """When how many bytes were in place."""

    def words(self, progress: FetchProgress) -> str | None:
        """How it goes, for people; None while that was said a moment ago, or nothing can be told yet."""
        now = self._clock.monotonic()
        self._marks.append((now, progress.done))
        while len(self._marks) > 2 and now - self._marks[1][0] >= WINDOW_S:
            self._marks.popleft()
        if now - self._said_s < EVERY_S:
            return None
        since, before = self._marks[0]
        if progress.done == before or now == since:
            return None
        self._said_s = now
        rate = (progress.done - before) / (now - since)
        return (
            f"{human_bytes(progress.done)} of {human_bytes(progress.total)} "
            f"({100 * progress.done // max(1, progress.total)} %), {human_bytes(rate)}/s, "
            f"{human_seconds((progress.total - progress.done) / rate)} left"
        )
