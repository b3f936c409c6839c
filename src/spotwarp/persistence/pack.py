"""A pack: many coded blobs in one immutable object, with a table of them at its end.

    8 bytes    envelope header, kind PACK
    blobs      coded bytes, back to back
    trailer    msgpack list of [digest, offset, stored, codec, raw, base], in the order of the blobs
    28 bytes   footer: trailer length (u32, little endian), blake3-128 of header and trailer, "SPWPEND\\n"

The table makes a pack readable without its manifest. This module never codes, hashes or judges a blob's bytes, and it
never touches a store but to read. Normative: docs/format.md.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

import msgspec

from spotwarp.errors import CorruptObject
from spotwarp.persistence.envelope import DIGEST_SIZE, HEADER_SIZE, Kind, check_header, digest, header
from spotwarp.persistence.store.api import Buffer, Store

TARGET: Final = 32 << 20
"""Bytes of a full pack, footer included; only a single larger blob makes a larger one."""

END: Final = b"SPWPEND\n"
FOOTER_SIZE: Final = 4 + DIGEST_SIZE + len(END)

_HEADER: Final = header(Kind.PACK)
_ROW_BOUND: Final = 1 + 2 * (2 + DIGEST_SIZE) + 4 * 9
_LIST_BOUND: Final = 5
_TAIL: Final = 64 << 10


class PackedBlob(msgspec.Struct, array_like=True, frozen=True):
    """One row of the trailer: a blob's digest, its place in the pack, its codec, its decoded length in bytes, and the
    digest of the blob that it is coded against (empty: none)."""

    digest: bytes
    offset: int
    stored: int
    codec: int
    raw: int
    base: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[PackedBlob])


class PackBuilder:
    """Fills one reusable buffer with a pack. For one thread at a time; `reset` makes it empty again.

    The memory is mapped, not allocated: what was never written to costs nothing, and what was stays warm.
    """

    def __init__(self, capacity: int = TARGET) -> None:
        self._buffer = mmap.mmap(-1, capacity)
        self._rows: list[PackedBlob] = []
        self._size = 0
        self.reset()

    @property
    def rows(self) -> list[PackedBlob]:
        """The blobs so far."""
        return self._rows

    def fits(self, length: int) -> bool:
        """Whether a blob of `length` bytes may be added; an empty pack takes one of any length."""
        return not self._rows or self._sealed_size(length) <= len(self._buffer)

    def space(self, length: int) -> memoryview:
        """`length` writable bytes where the next blob will lie. Release the view before sealing."""
        if self._sealed_size(length) > len(self._buffer):
            if self._rows:
                raise ValueError(f"{length} bytes do not fit: seal the pack first")
            self._buffer = mmap.mmap(-1, self._sealed_size(length))
            self._buffer[:HEADER_SIZE] = _HEADER
        return memoryview(self._buffer)[self._size : self._size + length]

    def add(self, blob: bytes, codec: int, raw: int, *data: Buffer, base: bytes = b"") -> PackedBlob:
        """Append the coded bytes `data`, given in pieces, of the blob with digest `blob` that decodes to `raw` bytes;
        `base` is the digest of the blob that it is coded against."""
        pieces = [memoryview(piece).cast("B") for piece in data]
        length = sum(piece.nbytes for piece in pieces)
        at = 0
        with self.space(length) as view:
            for piece in pieces:
                view[at : at + piece.nbytes] = piece
                at += piece.nbytes
        return self.keep(blob, codec, raw, length, base=base)

    def keep(self, blob: bytes, codec: int, raw: int, stored: int, *, base: bytes = b"") -> PackedBlob:
        """As `add`, of the `stored` bytes that already lie in the last `space`: nothing is copied."""
        row = PackedBlob(blob, self._size, stored, codec, raw, base)
        self._rows.append(row)
        self._size += stored
        return row

    def seal(self) -> memoryview:
        """The whole object, a view of the buffer: it is valid until `reset`."""
        trailer = _encoder.encode(self._rows)
        tail = trailer + footer(trailer)
        end = self._size + len(tail)
        self._buffer[self._size : end] = tail
        return memoryview(self._buffer)[:end]

    def reset(self) -> None:
        """Empty the pack; the views given out must have been released or be of no more interest."""
        self._rows = []
        self._buffer[:HEADER_SIZE] = _HEADER
        self._size = HEADER_SIZE

    def _sealed_size(self, length: int) -> int:
        """Upper bound in bytes of the object if a blob of `length` were added and the pack sealed."""
        return self._size + length + _LIST_BOUND + _ROW_BOUND * (len(self._rows) + 1) + FOOTER_SIZE


def footer(trailer: bytes) -> bytes:
    """The 28 bytes that follow `trailer`."""
    return struct.pack("<I", len(trailer)) + digest(_HEADER, trailer) + END


def read_trailer(store: Store, key: str, size: int) -> list[PackedBlob]:
    """The table of the pack at `key`, which is `size` bytes long, verified; one request for a common pack.

    Raises `CorruptObject` (also when the pack is shorter), `UnsupportedFormat`, `ObjectMissing`, another `StoreError`.
    """
    if size < HEADER_SIZE + FOOTER_SIZE:
        raise CorruptObject(f"pack {key} is truncated: {size} bytes")
    start = max(0, size - _TAIL)
    tail = store.get_range(key, start, size - start)
    length = _trailer_length(tail, key, size)
    begin = size - FOOTER_SIZE - length
    if begin < start:
        tail = store.get_range(key, begin, size - begin)
        start = begin
    trailer = tail[begin - start : begin - start + length]
    if tail[-FOOTER_SIZE:] != footer(trailer):
        # Before it is called damage: a newer SpotWarp's header would explain it as well.
        check_header(store.get_range(key, 0, HEADER_SIZE), Kind.PACK, f"pack {key}")
        raise CorruptObject(f"pack {key} fails the hash of its table: it was damaged in the store or on the way")
    return _rows(trailer, key, begin)


def parse_pack(data: Buffer, name: str) -> list[PackedBlob]:
    """The table of the whole pack `data`, header and footer verified; `name` is only for messages.

    The blobs' own bytes are not hashed. Raises `CorruptObject` or `UnsupportedFormat`.
    """
    view = memoryview(data)
    check_header(view[:HEADER_SIZE], Kind.PACK, f"pack {name}")
    length = _trailer_length(view, name, view.nbytes)
    begin = view.nbytes - FOOTER_SIZE - length
    trailer = bytes(view[begin : begin + length])
    if bytes(view[-FOOTER_SIZE:]) != footer(trailer):
        raise CorruptObject(f"pack {name} fails the hash of its table: it was damaged in the store or on the way")
    return _rows(trailer, name, begin)


def _trailer_length(tail: Buffer, name: str, size: int) -> int:
    """What the footer at the end of `tail` announces, if it can be true of a pack of `size` bytes."""
    end = bytes(tail[-FOOTER_SIZE:])
    if len(end) < FOOTER_SIZE or end[-len(END) :] != END:
        raise CorruptObject(f"pack {name} has no footer: it is truncated or not a pack")
    (length,) = struct.unpack_from("<I", end)
    if not 0 < length <= size - FOOTER_SIZE - HEADER_SIZE:
        raise CorruptObject(f"pack {name} announces a table of {length} bytes in {size}")
    return int(length)


def _rows(trailer: bytes, name: str, end: int) -> list[PackedBlob]:
    """The rows of `trailer`, each inside the blob region that ends at `end`."""
    try:
        rows = _decoder.decode(trailer)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptObject(f"pack {name} has a table that cannot be read: {error}") from error
    for row in rows:
        if row.offset < HEADER_SIZE or min(row.stored, row.raw) < 0 or row.offset + row.stored > end:
            raise CorruptObject(f"pack {name} has a blob outside itself")
    return rows
