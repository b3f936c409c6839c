"""Which files need which blobs: for each blob the extents that lie in it, eight bytes each.

A million small files lie in some hundred blobs; as Python objects their extents would be most of a restore's memory.
Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from itertools import accumulate

from spotwarp.persistence.manifest import Entry
from spotwarp.persistence.table import Table

Part = tuple[int, int]
"""An extent of a file: the entry's number, and the extent's number in it."""


class Uses:
    """Made once, then only asked; may be shared by threads."""

    def __init__(
        self, entries: Table[Entry], blobs: int, rank: Callable[[bytes], int], *, have: Callable[[int, int], bool]
    ) -> None:
        """`rank` says how soon a path is needed, `have(number, part)` which extents need nothing more."""
        counts = array("I", bytes(4 * blobs))
        self._ranks = array("B", bytes([255]) * blobs)
        for number, entry in enumerate(entries):
            for part, extent in enumerate(entry.extents):
                if not have(number, part):
                    counts[extent.blob] += 1
                    self._ranks[extent.blob] = min(self._ranks[extent.blob], rank(entry.path))
        self._starts = array("Q", [0, *accumulate(counts)])
        self._numbers = array("I", bytes(4 * self._starts[-1]))
        self._parts = array("I", bytes(4 * self._starts[-1]))
        free = array("Q", self._starts)
        for number, entry in enumerate(entries):
            for part, extent in enumerate(entry.extents):
                if not have(number, part):
                    at = free[extent.blob]
                    self._numbers[at], self._parts[at] = number, part
                    free[extent.blob] = at + 1

    def blobs(self) -> list[int]:
        """Those that anybody needs."""
        return [blob for blob in range(len(self._starts) - 1) if self._starts[blob] < self._starts[blob + 1]]

    def rank(self, blob: int) -> int:
        """How soon the file that needs `blob` soonest is needed."""
        return self._ranks[blob]

    def of(self, blob: int) -> Iterator[Part]:
        """The extents that lie in `blob`, in the order of the entries."""
        for at in range(self._starts[blob], self._starts[blob + 1]):
            yield self._numbers[at], self._parts[at]
