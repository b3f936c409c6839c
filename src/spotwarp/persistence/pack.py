"""A pack: many coded blobs in one immutable object, with a table of them at its end.

    8 bytes    envelope header, kind PACK
    blobs      coded bytes, back to back
    trailer    msgpack list of [digest, offset, stored, codec, raw, base], in the order of the blobs
    28 bytes   footer: trailer length (u32, little endian), blake3-128 of header and trailer, "SPWPEND\\n"

In an encrypted repository each blob and the trailer are boxes, bound to the pack, and a blob to its place in it. The
table makes a pack readable without its manifest. This module never codes, hashes or judges a blob's bytes, and it never
touches a store but to read. Normative: docs/format.md.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

import msgspec

from spotwarp.errors import CorruptObject
from spotwarp.persistence.encryption.cipher import BOX_EXTRA, Box
from spotwarp.persistence.encryption.sealed import box_for
from spotwarp.persistence.envelope import DIGEST_SIZE, HEADER_SIZE, PLAIN, SEALED, Kind, check_header, digest, header
from spotwarp.persistence.store.api import Buffer, Store

_LARGE: Final = 256 << 10
TARGET: Final = 32 << 20
"""Bytes of a full pack, footer included; only a single larger blob makes a larger one."""

END: Final = b"SPWPEND\n"
FOOTER_SIZE: Final = 4 + DIGEST_SIZE + len(END)

_TABLE: Final = b"table"
_PLAIN: Final = header(Kind.PACK)
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

    def __init__(self, capacity: int = TARGET, *, box: Box | None = None) -> None:
        self._buffer = mmap.mmap(-1, capacity)
        self._scratch: bytearray = bytearray()
        self._rows: list[PackedBlob] = []
        self._size = 0
        self.reset(box)

    @property
    def rows(self) -> list[PackedBlob]:
        """The blobs so far."""
        return self._rows

    def fits(self, length: int) -> bool:
        """Whether a blob of `length` bytes may be added; an empty pack takes one of any length."""
        return not self._rows or self._sealed_size(length) <= len(self._buffer)

    def space(self, length: int) -> memoryview:
        """`length` writable bytes where the next blob will lie. Release the view before sealing."""
        self._make_room(length)
        if self._box is not None:  # what is closed on its way into the pack must not lie there
            if length > len(self._scratch):
                self._scratch = bytearray(length)
            return memoryview(self._scratch)[:length]
        return memoryview(self._buffer)[self._size : self._size + length]

    def add(self, blob: bytes, codec: int, raw: int, *data: Buffer, base: bytes = b"") -> PackedBlob:
        """Append the coded bytes `data`, given in pieces, of the blob with digest `blob` that decodes to `raw` bytes;
        `base` is the digest of the blob that it is coded against."""
        pieces = [memoryview(piece).cast("B") for piece in data]
        length = sum(piece.nbytes for piece in pieces)
        self._make_room(length)
        stored = length if self._box is None else length + BOX_EXTRA
        with memoryview(self._buffer)[self._size : self._size + stored] as into:
            if self._box is not None:
                self._box.close_into(into, blob_context(self._size), *pieces)
            else:
                at = 0
                for piece in pieces:
                    _copy(into, at, piece)
                    at += piece.nbytes
        return self._kept(PackedBlob(blob, self._size, stored, codec, raw, base))

    def keep(self, blob: bytes, codec: int, raw: int, stored: int, *, base: bytes = b"") -> PackedBlob:
        """As `add`, of the `stored` bytes that already lie in the last `space`: nothing is copied."""
        if self._box is None:
            return self._kept(PackedBlob(blob, self._size, stored, codec, raw, base))
        with memoryview(self._scratch)[:stored] as data:
            return self.add(blob, codec, raw, data, base=base)

    def _make_room(self, length: int) -> None:
        if self._sealed_size(length) > len(self._buffer):
            if self._rows:
                raise ValueError(f"{length} bytes do not fit: seal the pack first")
            self._buffer = mmap.mmap(-1, self._sealed_size(length))
            self._buffer[:HEADER_SIZE] = _header(self._box)

    def _kept(self, row: PackedBlob) -> PackedBlob:
        self._rows.append(row)
        self._size += row.stored
        return row

    def seal(self) -> memoryview:
        """The whole object, a view of the buffer: it is valid until `reset`."""
        trailer = _encoder.encode(self._rows)
        if self._box is not None:
            trailer = self._box.close(trailer, _TABLE)
            self._scratch = bytearray()  # there are more packs under way than are being filled
        tail = trailer + footer(trailer, _header(self._box))
        end = self._size + len(tail)
        self._buffer[self._size : end] = tail
        return memoryview(self._buffer)[:end]

    def reset(self, box: Box | None = None) -> None:
        """Empty the pack; the views given out must have been released or be of no more interest.

        `box` closes all that is added from now on; it is for the pack's key in the store.
        """
        self._rows = []
        self._box = box
        self._buffer[:HEADER_SIZE] = _header(box)
        self._size = HEADER_SIZE

    def _sealed_size(self, length: int) -> int:
        """Upper bound in bytes of the object if a blob of `length` were added and the pack sealed."""
        boxes = 2 * BOX_EXTRA if self._box is not None else 0
        return self._size + length + boxes + _LIST_BOUND + _ROW_BOUND * (len(self._rows) + 1) + FOOTER_SIZE


def _copy(into: memoryview, at: int, piece: memoryview) -> None:
    if piece.nbytes < _LARGE:
        into[at : at + piece.nbytes] = piece
        return
    import numpy as np  # it lets other threads run meanwhile

    np.copyto(np.frombuffer(into, np.uint8, piece.nbytes, at), np.frombuffer(piece, np.uint8))


def _header(box: Box | None) -> bytes:
    return header(Kind.PACK, encryption=PLAIN if box is None else SEALED)


def blob_context(offset: int) -> bytes:
    """What the box of the blob at `offset` of a pack is bound to, beside the pack."""
    return b"blob" + struct.pack("<Q", offset)


def footer(trailer: bytes, begins: bytes = _PLAIN) -> bytes:
    """The 28 bytes that follow `trailer` in a pack that begins so."""
    return struct.pack("<I", len(trailer)) + digest(begins, trailer) + END


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
    box = box_for(store, key)
    if tail[-FOOTER_SIZE:] != footer(trailer, _header(box)):
        # Before it is called damage: a newer SpotWarp's header would explain it as well.
        encryption = PLAIN if box is None else SEALED
        check_header(store.get_range(key, 0, HEADER_SIZE), Kind.PACK, f"pack {key}", encryption=encryption)
        raise CorruptObject(f"pack {key} fails the hash of its table: it was damaged in the store or on the way")
    if box is not None:
        trailer = box.open(trailer, _TABLE, f"the table of pack {key}")
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
