"""What names a file's content: its *digests*.

A file below `SMALL` bytes has one digest, 16 bytes. A larger one is cut into pieces of any lengths (see `cuts`), and
its digests are rows of 20 bytes: the piece's length (u32, little endian) and its digest, in the order of the file; 16
zero bytes stand for a hole. One of over a GiB is a row of length 0 with its own length (u64) in front of 8 zero bytes:
a hole takes one row, however large it is. So holes are written in one way only, and equal contents that are cut alike
have equal digests.
Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from spotwarp.persistence.envelope import DIGEST_SIZE
from spotwarp.persistence.manifest import Blob, Entry

SMALL: Final = 256 << 10
"""A file below this many bytes is bundled whole."""
HOLE: Final = bytes(DIGEST_SIZE)
"""Stands for what the file system has nothing of; a real digest of this value will not be met."""
_MOST_HOLE: Final = 1 << 30

_row: Final = struct.Struct(f"<I{DIGEST_SIZE}s")
_large: Final = struct.Struct("<Q8x")
"""In place of a digest: the length of a hole that no u32 need have."""

Part = tuple[int, bytes]
"""A piece's length in bytes, and its digest or `HOLE`."""


def joined(parts: Iterable[Part]) -> bytes:
    """The digests of a large file that consists of `parts`."""
    rows = bytearray()
    hole = 0
    for length, digest in parts:
        if digest == HOLE:
            hole += length
            continue
        if hole:
            rows += _hole(hole)
            hole = 0
        rows += _row.pack(length, digest)
    return bytes(rows + _hole(hole))


def parts(digests: bytes, size: int) -> Sequence[Part]:
    """The pieces of a file of `size` bytes with these digests."""
    if len(digests) == DIGEST_SIZE:  # nearly all files
        return ((size, digests),)
    return [(length, name) if length else (_large.unpack(name)[0], HOLE) for length, name in _row.iter_unpack(digests)]


def names(digests: bytes) -> Iterator[bytes]:
    """The digests of the pieces that are no holes."""
    if len(digests) == DIGEST_SIZE:
        yield digests
        return
    for length, digest in _row.iter_unpack(digests):
        if length and digest != HOLE:
            yield digest


def digests_of(entry: Entry, blobs: Sequence[Blob]) -> bytes | None:
    """The digests of a file's content as a manifest has it, or None when they cannot be told from it."""
    if entry.size < SMALL:
        return entry.digest if entry.digest or entry.size else None
    for extent in entry.extents:
        if extent.inner or extent.length != blobs[extent.blob].raw:
            return None
    return joined(_pieces(entry, blobs))


def _pieces(entry: Entry, blobs: Sequence[Blob]) -> Iterator[Part]:
    end = 0
    for extent in entry.extents:
        if extent.offset > end:
            yield extent.offset - end, HOLE
        yield extent.length, blobs[extent.blob].digest
        end = extent.offset + extent.length
    if entry.size > end:
        yield entry.size - end, HOLE


def _hole(length: int) -> bytes:
    if length > _MOST_HOLE:
        return _row.pack(0, _large.pack(length))
    return _row.pack(length, HOLE) if length else b""
