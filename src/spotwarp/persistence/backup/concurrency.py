"""How many packs are put at the same time: one more while that makes the whole faster, fewer when the store refuses.

A pure decider over what was seen of some uploads in a row (`Window`). It asks for more only while the uploads are what
everybody waits for, and gives back what did not pay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

LEAST: Final = 1
MOST: Final = 8
START: Final = 2
PAYS: Final = 1 / 3
"""Of what one more upload would bring if all were independent, what it must bring at least."""
_REST: Final = 4
"""Windows without another try after one that did not pay; doubled each time."""
_MOST_REST: Final = 64


@dataclass(frozen=True, slots=True)
class Window:
    """Some uploads in a row: bytes acknowledged, in so many seconds."""

    bytes: int
    seconds: float
    waited: bool
    """Whether full packs waited for their turn."""
    refused: int = 0
    """Tries that the store refused or did not answer."""

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Concurrency:
    """The decision that is in force."""

    lanes: int = START
    before: float = 0.0
    """The rate with one lane less, while one more is being tried; 0 while none is."""
    rest: int = 0
    """Windows until the next try."""
    last_rest: int = 0


def step(now: Concurrency, seen: Window) -> Concurrency:
    """What follows from one window."""
    if seen.refused:
        rest = _longer(now.last_rest)
        return Concurrency(max(LEAST, now.lanes // 2), rest=rest, last_rest=rest)
    if not seen.waited:
        return replace(now, before=0.0)  # reading or coding is slower than this many lanes
    if now.before and seen.rate < now.before * (1 + PAYS / (now.lanes - 1)):
        rest = _longer(now.last_rest)
        return Concurrency(now.lanes - 1, rest=rest, last_rest=rest)
    if now.before:
        now = replace(now, before=0.0, last_rest=0)  # it paid: the next one at once
    if now.rest:
        return replace(now, rest=now.rest - 1)
    if now.lanes >= MOST:
        return now
    return replace(now, lanes=now.lanes + 1, before=seen.rate)


def _longer(rest: int) -> int:
    return min(_MOST_REST, max(_REST, 2 * rest))
