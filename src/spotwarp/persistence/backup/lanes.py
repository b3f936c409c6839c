"""The room and the turns of uploads: pack buffers within a fixed number of bytes, and as many packs under way as pay.

More lanes are paid for with smaller packs, never with more memory: a buffer is made only where all of them together
stay within the bound, and one that has become too large is given back. Which number of lanes pays is `concurrency`'s.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from spotwarp.clock import Clock
from spotwarp.persistence.backup.concurrency import START, Concurrency, Window, step
from spotwarp.persistence.pack import PackBuilder

_ROUNDS: Final = 2
"""A window is so many uploads of each lane."""


class Buffers:
    """Pack buffers of together at most `memory` bytes. Not locked: `Lanes` is."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._made: dict[PackBuilder, int] = {}
        self._free: list[PackBuilder] = []

    @property
    def bytes(self) -> int:
        """Of all buffers that there are."""
        return sum(self._made.values())

    def take(self, capacity: int) -> PackBuilder | None:
        """An empty buffer of at most `capacity` bytes, None where one must come back first."""
        for builder in self._free:
            if self._made[builder] <= capacity:
                self._free.remove(builder)
                return builder
        while self._free and self.bytes + capacity > self._memory:
            self._made.pop(self._free.pop())
        if self._made and self.bytes + capacity > self._memory:
            return None
        builder = PackBuilder(capacity)
        self._made[builder] = capacity
        return builder

    def give(self, builder: PackBuilder) -> None:
        """The buffer is of no more use to whoever took it."""
        builder.reset()
        self._free.append(builder)


class Lanes:
    """Buffers and turns for the threads of one backup."""

    def __init__(
        self,
        clock: Clock,
        *,
        buffers: int,
        capacity: int,
        least: int,
        lanes: int = START,
        refusals: Callable[[], int] = lambda: 0,
    ) -> None:
        """`buffers` of `capacity` bytes are what `START` lanes get, and the bound of the memory; a pack is never made
        smaller than `least`. `lanes` is where to begin; `refusals` counts what the store has refused so far."""
        self._clock, self._refusals = clock, refusals
        self._base, self._capacity, self._least = buffers, capacity, least
        self._buffers = Buffers(buffers * capacity)
        self._state = Concurrency(max(1, lanes))
        self._changed = threading.Condition()
        self._busy = self._waiting = 0
        self._window()

    @property
    def lanes(self) -> int:
        """How many packs may be under way now."""
        return self._state.lanes

    @property
    def capacity(self) -> int:
        """Bytes of a full pack now."""
        number = self._base + max(0, self._state.lanes - START)
        return max(min(self._least, self._capacity), min(self._capacity, self._base * self._capacity // number))

    def take(self, seconds: float) -> PackBuilder | None:
        """An empty pack; None when none was free within `seconds`."""
        with self._changed:
            if (builder := self._buffers.take(self.capacity)) is None:
                self._changed.wait(seconds)
                builder = self._buffers.take(self.capacity)
            return builder

    def give(self, builder: PackBuilder) -> None:
        """A pack is acknowledged, and its buffer empty again."""
        with self._changed:
            self._buffers.give(builder)
            self._changed.notify_all()

    @contextmanager
    def turn(self, size: int, stopped: Callable[[], bool], poll_s: float) -> Iterator[None]:
        """While it lasts a pack of `size` bytes is under way; waits for a lane, at most until `stopped`."""
        with self._changed:
            self._waiting += 1
            while self._busy >= self._state.lanes and not stopped():
                self._changed.wait(poll_s)
            self._waiting -= 1
            self._busy += 1
        done = 0
        try:
            yield
            done = size
        finally:
            with self._changed:
                self._busy -= 1
                self._seen(done)
                self._changed.notify_all()

    def _window(self) -> None:
        self._since, self._bytes, self._ended, self._behind = self._clock.monotonic(), 0, 0, 0
        self._refused = self._refusals()

    def _seen(self, size: int) -> None:
        """One upload ended; `size` is 0 when in vain."""
        self._bytes, self._ended = self._bytes + size, self._ended + 1
        self._behind += self._waiting > 0
        refused = self._refusals() - self._refused
        if not refused and self._ended < _ROUNDS * self._state.lanes:
            return
        seconds = self._clock.monotonic() - self._since
        waited = 2 * self._behind >= self._ended
        self._state = step(self._state, Window(self._bytes, seconds, waited, refused))
        self._window()
