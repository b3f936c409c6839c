"""The processor time that a backup's threads take, and a limit to it.

Each thread says when it is through with a piece of work; what it took is counted, and if all of them together took more
than their share, it rests. Measured in the thread's own processor seconds, so that a busy machine does not count twice.
"""

from __future__ import annotations

import threading

from spotwarp.clock import Clock
from spotwarp.persistence.store.bandwidth import Bucket


class CpuShare:
    """Of one backup: `cores` (1.5 is one and a half) for all its threads together, None for no limit."""

    def __init__(self, clock: Clock, cores: float | None) -> None:
        self._clock = clock
        self._bucket = Bucket(cores) if cores else None
        self._lock = threading.Lock()
        self._mine = threading.local()
        self.used_s = 0.0
        """Processor seconds so far."""

    def begin(self) -> None:
        """This thread's work begins."""
        self._mine.since_s = self._clock.thread_s()

    def pay(self, *, hurried: bool = False) -> None:
        """This thread is through with a piece of work: count it, and rest where that is due; not when `hurried`."""
        now_s = self._clock.thread_s()
        took_s, self._mine.since_s = now_s - self._mine.since_s, now_s
        with self._lock:
            self.used_s += took_s
            rest_s = self._bucket.turn_s(self._clock.monotonic(), took_s) if self._bucket and not hurried else 0.0
        if rest_s > 0:
            self._clock.sleep(rest_s)
