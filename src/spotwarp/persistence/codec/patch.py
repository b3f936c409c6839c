"""Codec 4: the pages of a chunk that differ from those of another blob.

For files that are rewritten in place or appended to. Which pages differ is told by their fingerprints, so the base need
not be read; their seed is a secret, since pages with equal ones could be made by hand where it is known. Layout:
docs/format.md, section 6.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spotwarp.errors import CorruptObject
from spotwarp.persistence.codec.numbers import PAGE
from spotwarp.persistence.codec.scratch import scratch
from spotwarp.persistence.store.api import Buffer

_FINGERPRINT: Final = np.dtype([("low", "<u8"), ("high", "<u8")])
_MOST: Final = 4
"""A patch holds at most one page in so many: of more, a chunk of its own is better, which needs no base."""

_Mask = NDArray[np.bool_]


def fingerprints(data: Buffer, seed: bytes) -> bytes:
    """xxh3_64 of each page under either half of `seed`, 16 bytes a page."""
    from xxhash import xxh3_64_digest

    low, high = (int.from_bytes(half, "little") for half in (seed[:8], seed[8:]))
    view = memoryview(data)
    found = bytearray()
    for at in range(0, view.nbytes, PAGE):
        page = view[at : at + PAGE]
        found += xxh3_64_digest(page, low) + xxh3_64_digest(page, high)
    return bytes(found)


@dataclass(frozen=True, slots=True)
class Changed:
    """The pages to store, and which of all they are."""

    mask: _Mask
    content: memoryview

    def header(self, codec: int) -> bytes:
        """What precedes the content in the blob when `codec` is what that is coded with."""
        return bytes((codec,)) + np.packbits(self.mask, bitorder="little").tobytes()


def changed(data: Buffer, new: bytes, old: bytes, old_length: int) -> Changed | None:
    """The pages of `data` that the base of `old_length` bytes has not; None where they are too many.

    `new` and `old` are fingerprints. The content lies in this thread's scratch.
    """
    mine, theirs = np.frombuffer(data, np.uint8), np.frombuffer(old, _FINGERPRINT)
    wanted = np.frombuffer(new, _FINGERPRINT)
    mask = np.ones(len(wanted), bool)
    shared = min(len(wanted), len(theirs), (old_length + PAGE - 1) // PAGE)
    mask[:shared] = wanted[:shared] != theirs[:shared]
    if shared and min(shared * PAGE, mine.nbytes) > old_length:
        mask[shared - 1] = True
    if np.count_nonzero(mask) * _MOST > len(mask):
        return None
    content = scratch("pages", _length(mask, mine.nbytes))
    whole = np.flatnonzero(mask[: mine.nbytes // PAGE])
    np.take(_pages(mine), whole, axis=0, out=_pages(content[: len(whole) * PAGE]), mode="clip")
    rest = content[len(whole) * PAGE :]
    np.copyto(rest, mine[mine.nbytes - rest.nbytes :])
    return Changed(mask, content.data)


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch that was read: which pages it has, and how they are coded."""

    mask: _Mask
    codec: int
    coded: memoryview
    length: int
    """Of the decoded pages, in bytes."""

    def applied(self, base: Buffer, content: Buffer, raw_length: int, out: memoryview | None) -> memoryview:
        """The `raw_length` bytes that `base` becomes with the decoded `content`; in `out`, or in new memory."""
        before, pages = np.frombuffer(base, np.uint8), np.frombuffer(content, np.uint8)
        result = np.empty(raw_length, np.uint8) if out is None else np.frombuffer(out, np.uint8)
        kept = min(raw_length, before.nbytes)
        np.copyto(result[:kept], before[:kept])
        whole = np.flatnonzero(self.mask[: raw_length // PAGE])
        _pages(result)[whole] = _pages(pages)[: len(whole)]
        rest = pages[len(whole) * PAGE :]
        np.copyto(result[raw_length - rest.nbytes :], rest)
        return result.data


def read(data: Buffer, raw_length: int, base_length: int) -> Patch:
    """The patch `data` of a base of `base_length` bytes. Raises `CorruptObject`."""
    coded = memoryview(data)
    count = (raw_length + PAGE - 1) // PAGE
    start = 1 + (count + 7) // 8
    if coded.nbytes < start:
        raise CorruptObject("a patch ends before its list of pages does")
    bits = np.unpackbits(np.frombuffer(coded[1:start], np.uint8), bitorder="little").astype(bool)
    mask, beyond = bits[:count], bits[count:]
    kept = np.flatnonzero(~mask)
    if beyond.any() or (len(kept) and min((int(kept[-1]) + 1) * PAGE, raw_length) > base_length):
        raise CorruptObject("a patch has pages beyond its end, or lacks some that its base has not")
    return Patch(mask, coded[0], coded[start:], _length(mask, raw_length))


def _length(mask: _Mask, size: int) -> int:
    """Bytes of the marked pages of `size` bytes."""
    short = size % PAGE
    missing = PAGE - short if short and mask[-1] else 0
    return int(np.count_nonzero(mask)) * PAGE - missing


def _pages(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The whole pages in `data`, one a row."""
    count = data.nbytes // PAGE
    return data[: count * PAGE].reshape(count, PAGE)
