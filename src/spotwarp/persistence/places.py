"""Where contents lie, by their hashes: a map from 16-byte digests to two small numbers, in little memory.

A dictionary of a million digests is a quarter of a gigabyte; here one costs 24 bytes, and the room it is given. A
dictionary is several times as quick, though, so while there are few they lie in one. Not for several threads.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import Final

_WORDS: Final = 3
"""Of 64 bits, for each slot: the digest in two, and the place plus one (0: the slot is free)."""
_INNER_BITS: Final = 32
_FULL: Final = 0.7
_FEW: Final = 1 << 16
_split, _join = struct.Struct("<QQ").unpack, struct.Struct("<QQ").pack


class Places:
    """Open addressing with linear probing: digests are random already, so their first word is the hash."""

    def __init__(self, room: int = 0) -> None:
        """`room` is how many digests are expected; more are welcome."""
        self._few: dict[bytes, int] | None = {}
        self._count = 0
        self._bits = 0
        self._slots = array("Q")
        if room > _FEW:
            self._spread(room)

    def __len__(self) -> int:
        """How many digests are known."""
        return self._count

    def get(self, digest: bytes) -> tuple[int, int] | None:
        """The blob's number and the offset in its decoded bytes."""
        value = self._value(digest)
        return divmod(value - 1, 1 << _INNER_BITS) if value else None

    def __contains__(self, digest: bytes) -> bool:
        """Whether the digest is known."""
        return self._value(digest) != 0

    def add(self, digest: bytes, blob: int, inner: int) -> None:
        """Note a place, unless one is known for `digest`."""
        self._add(digest, (blob << _INNER_BITS | inner) + 1)

    def items(self) -> Iterator[tuple[bytes, int, int]]:
        """Every digest with its place, in no order."""
        if self._few is not None:
            for digest, value in self._few.items():
                yield (digest, *divmod(value - 1, 1 << _INNER_BITS))
            return
        for at in range(0, len(self._slots), _WORDS):
            low, high, value = self._slots[at : at + _WORDS]
            if value:
                yield (_join(low, high), *divmod(value - 1, 1 << _INNER_BITS))

    def _value(self, digest: bytes) -> int:
        if self._few is not None:
            return self._few.get(digest, 0)
        return self._slots[self._find(*_split(digest)) + 2]

    def _add(self, digest: bytes, value: int) -> None:
        if self._few is not None:
            self._few.setdefault(digest, value)
            self._count = len(self._few)
            if self._count > _FEW:
                self._spread(2 * _FEW)
            return
        low, high = _split(digest)
        at = self._find(low, high)
        if self._slots[at + 2]:
            return
        self._slots[at : at + _WORDS] = array("Q", (low, high, value))
        self._count += 1
        if self._count > _FULL * (1 << self._bits):
            self._grow()

    def _spread(self, room: int) -> None:
        """From the dictionary to slots, for `room` digests."""
        few, self._few, self._count = self._few or {}, None, 0
        self._bits = int(room / _FULL).bit_length()
        self._slots = array("Q", bytes(8 * _WORDS << self._bits))
        for digest, value in few.items():
            self._add(digest, value)

    def _find(self, low: int, high: int) -> int:
        """Where the digest's slot begins, or the free one in which it belongs."""
        slots, mask = self._slots, (1 << self._bits) - 1
        at = low & mask
        while slots[at * _WORDS + 2]:
            if slots[at * _WORDS] == low and slots[at * _WORDS + 1] == high:
                break
            at = (at + 1) & mask
        return at * _WORDS

    def _grow(self) -> None:
        old = self._slots
        self._bits += 1
        self._slots = array("Q", bytes(8 * _WORDS << self._bits))
        for at in range(0, len(old), _WORDS):
            if old[at + 2]:
                new = self._find(old[at], old[at + 1])
                self._slots[new : new + _WORDS] = old[at : at + _WORDS]
