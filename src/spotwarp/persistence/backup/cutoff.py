"""The moment at which a backup stops moving bytes, so that what it has can still be committed.

A machine that is about to go leaves so many seconds. Reading and uploading end at the cut; what is not acknowledged by
then is *late*: it is left out, or kept as the snapshot before has it, and named. Owns the reckoning only. Without a cut
(the common case) it never stops anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spotwarp.clock import Clock

_PARTS: Final = 8
"""A pack under a cut takes at most this part of the time left, so that most of what was sent by then counts."""


_TAIL_MOST: Final = 0.5
"""What is kept for committing and proving takes at most such a part of the time there is."""


def cut_before(deadline: float, began: float, tail_s: float, last: int, rate: float | None) -> float:
    """The cut of a backup that `began` then, so that everything after it is over at `deadline`. Pure.

    After the cut the manifest is put, of about `last` bytes at `rate` (bytes a second; None: unknown, and nothing is
    reckoned for it), and what takes `tail_s`. Without the manifest nothing counts, so it has all the time it needs.
    """
    put = deadline - (last / rate if rate else 0.0)
    return put - min(tail_s, max(0.0, put - began) * _TAIL_MOST)


class TimeUp(Exception):
    """The cut has come. Never leaves the backup."""


@dataclass(frozen=True, slots=True)
class Cutoff:
    """`until` gives the cut in monotonic seconds, None while there is none; it may come, or come nearer, meanwhile."""

    clock: Clock
    until: Callable[[], float | None] = lambda: None
    rate: float | None = None
    """Bytes a second that uploads are known to reach, None when nothing is known yet."""

    def left(self) -> float | None:
        """Seconds to the cut, at least 0; None when there is none."""
        until = self.until()
        return None if until is None else max(0.0, until - self.clock.monotonic())

    def passed(self) -> bool:
        """Whether the cut has come."""
        return self.left() == 0.0

    def fits(self, size: int, rate: float | None) -> bool:
        """Whether `size` bytes at `rate` (or at the known rate) are through before the cut; yes where nobody knows."""
        left = self.left()
        rate = rate or self.rate
        return left is None or (left > 0 and (not rate or size / rate <= left))

    def capacity(self, most: int, least: int) -> int:
        """Bytes of a full pack: `most`, or as much less as a slow link and little time ask for, never under `least`."""
        left = self.left()
        if left is None or not self.rate:
            return most
        return int(min(most, max(least, left * self.rate / _PARTS)))
