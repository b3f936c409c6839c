"""From tensors to pieces: how a file is cut so that the same part of a tensor is a piece of its own in every save.

Owns the rules, knows no format. A tensor is cut at multiples of `CHUNK` from its own beginning, so that a header of
another length before it changes no piece. What is left of it, and small tensors, share pieces while they follow each
other, are of one width and stand in step; a few bytes between two tensors go to the piece before them, at whose end
they disturb no element. Everything else is cut like a file of unknown content.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

CHUNK: Final = 4 << 20
"""Bytes of a large file that are hashed, coded and placed as one, at most."""
_SMALL: Final = 256 << 10
"""A part of a tensor below this many bytes shares a piece with its neighbours."""
_SHARED: Final = 1 << 20
"""Bytes of small parts in one piece, about."""
_GLUE: Final = 4 << 10
"""So many bytes between two tensors, at most, go to the piece before them."""
_FREE: Final = 1024
_EACH: Final = 64 << 10
"""A file has at most so many pieces beyond one for each so many bytes: a piece costs room in every manifest."""


class Tensor(NamedTuple):
    """A range of a file that holds the elements of one tensor."""

    start: int
    length: int
    """In bytes."""
    width: int
    """Bytes of an element (of a complex number's half): 1, 2, 4, 8; 0 where unknown."""
    name: str


@dataclass(frozen=True, slots=True)
class Cuts:
    """The pieces of a file of `size` bytes: in order, without a gap, each of 1 to `CHUNK` bytes."""

    size: int
    starts: Sequence[int]
    """The offset of each piece."""
    widths: bytes = b""
    keys: Sequence[str] = ()
    """As `width` and `key` tell them; both are empty where nothing is known of any piece."""

    def __len__(self) -> int:
        """How many pieces."""
        return len(self.starts)

    def length(self, number: int) -> int:
        """Bytes of piece `number`, counted from 0."""
        following = number + 1
        return (self.starts[following] if following < len(self.starts) else self.size) - self.starts[number]

    def width(self, number: int) -> int:
        """Bytes of each element in piece `number`, counted from its beginning; 0 where unknown. At its end there may
        be less than an element."""
        return self.widths[number] if self.widths else 0

    def key(self, number: int) -> str:
        """What piece `number` is: the same in every save of a file; empty where unknown."""
        return self.keys[number] if self.keys else ""


def grid(size: int) -> Cuts:
    """A file of which nothing is known; costs nothing, however large it is."""
    return Cuts(size, range(0, size, CHUNK))


def cover(size: int, tensors: Iterable[Tensor]) -> Cuts:
    """A file of `size` bytes with these tensors, in order of their offsets.

    Raises `ValueError` when they do not lie in the file one behind the other, or are too many for its size.
    """
    pieces = _Pieces()
    at = 0
    for start, length, width, name in tensors:
        if start < at or length < 1 or start + length > size:
            raise ValueError(f"tensor {name!r} is not behind the one before it, or not in the file")
        pieces.between(at, start)
        for offset in range(0, length, CHUNK):
            pieces.part(start + offset, min(CHUNK, length - offset), width, f"{name}+{offset // CHUNK}")
        at = start + length
        if len(pieces.starts) > _FREE + size // _EACH:
            raise ValueError("too many pieces")
    pieces.between(at, size)
    return Cuts(size, pieces.starts, bytes(pieces.widths), pieces.keys)


def lined_up(mine: Cuts, theirs: Cuts, those: Iterable[int] | None = None) -> Mapping[int, int]:
    """For pieces of one save of a file, the pieces of another that are the same part of it, of equal length and width:
    of all of the other's pieces or only of `those`.

    Two files of one size of which nothing is known line up as they lie.
    """
    those = range(len(theirs)) if those is None else those
    if not mine.keys and not theirs.keys:
        return {number: number for number in those} if mine.size == theirs.size else {}
    numbers = {theirs.key(number): number for number in those}
    found = {}
    for number in range(len(mine)):
        other = numbers.get(mine.key(number)) if mine.key(number) else None
        if (
            other is not None
            and mine.length(number) == theirs.length(other)
            and mine.width(number) == theirs.width(other)
        ):
            found[number] = other
    return found


class _Pieces:
    """Pieces, from the first to the last; the last may still grow."""

    def __init__(self) -> None:
        self.starts = array("Q")
        self.widths = bytearray()
        self.keys: list[str] = []
        self._open = False
        """Whether the last piece consists of small parts and takes more of them."""

    def part(self, start: int, length: int, width: int, key: str) -> None:
        """A part of a tensor begins where the last piece ends."""
        small = length < _SMALL
        if small and self._open and self.widths[-1] == width:
            inside = start - self.starts[-1]
            if inside % max(width, 1) == 0 and inside + length <= _SHARED:
                return
        self._begin(start, width, key)
        self._open = small

    def between(self, start: int, end: int) -> None:
        """What belongs to no tensor begins where the last piece ends."""
        if self.keys and self.keys[-1] and end - start <= _GLUE and end - self.starts[-1] <= CHUNK:
            return
        for at in range(start, end, CHUNK):
            self._begin(at, 0, "")
            self._open = False

    def _begin(self, start: int, width: int, key: str) -> None:
        self.starts.append(start)
        self.widths.append(width)
        self.keys.append(key)
