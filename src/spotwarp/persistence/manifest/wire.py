"""A manifest as an object in the bucket: a head, and the segments of its entries.

A segment lies behind the head, or in a pack where several snapshots find it (`Shared`). Each is told by its digest, so
the manifest's own address vouches for all of it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from spotwarp.errors import CorruptObject
from spotwarp.persistence.envelope import Kind, digest, seal, unsealed
from spotwarp.persistence.manifest.records import read, recorded
from spotwarp.persistence.manifest.rows import (
    LEVEL,
    NO_BASE,
    Blob,
    CheckpointFact,
    FileFact,
    Manifest,
    PackRef,
    Shared,
    Skipped,
)
from spotwarp.persistence.store.api import Buffer
from spotwarp.persistence.table import LIMIT, Segment, plausible

MAX_HEAD: Final = 1 << 30
"""Upper bound in bytes of a decompressed head; a larger announcement is damage, not data."""
_END: Final = 1 << 63
INLINE: Final = -1
"""Stands for a pack: the segment lies behind the head."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_ID: Final = re.compile(r"[0-9]{1,18}-[0-9a-zA-Z]{1,64}")

Fetch = Callable[[Sequence[PackRef], Sequence[Blob]], Sequence[Buffer]]
"""Gives the bytes of blobs, which count these packs, verified. Raises `CorruptObject` and a store's errors."""


class _Place(msgspec.Struct, array_like=True, frozen=True):
    """Where a segment is: the path it begins with, its entries, its bytes, and the pack (index) or `INLINE`."""

    first: bytes
    count: int
    length: int
    pack: int = INLINE
    offset: int = 0
    stored: int = 0
    digest: bytes = b""


class _Head(msgspec.Struct, array_like=True, frozen=True):
    version: int
    run: str
    generation: int
    packs: tuple[PackRef, ...]
    segments: tuple[_Place, ...]
    checkpoints: tuple[CheckpointFact, ...]
    skipped: tuple[Skipped, ...]
    versions: tuple[FileFact, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Head)


def encode(manifest: Manifest) -> bytes:
    """The object to put."""
    import zstandard

    shared = {one.first: one for one in manifest.shared}
    packs = {ref: number for number, ref in enumerate(manifest.packs)}
    places: list[_Place] = []
    inline: list[Buffer] = []
    for segment in recorded(manifest.entries, manifest.packs, manifest.blobs).segments:
        size, one = len(segment.data), shared.get(segment.first)
        if one is None or one.digest != digest(segment.data):  # what lies there is another version of this part
            inline.append(segment.data)
            places.append(_Place(segment.first, segment.count, size))
        else:
            pack = packs.setdefault(one.pack, len(packs))
            places.append(_Place(segment.first, segment.count, size, pack, one.offset, one.stored, one.digest))
    head = _Head(
        manifest.version,
        manifest.run,
        manifest.generation,
        tuple(packs),
        tuple(places),
        manifest.checkpoints,
        manifest.skipped,
        manifest.versions,
    )
    coded = zstandard.ZstdCompressor(level=LEVEL).compress(_encoder.encode(head))
    return seal(Kind.MANIFEST, struct.pack("<I", len(coded)), coded, *inline)


def decode(data: bytes, name: str, *, expected: str | None = None, fetch: Fetch | None = None) -> Manifest:
    """The manifest in the object `data`; `expected` is its address as a snapshot entry names it (`address`).

    The entries stay where they are in `data`; those that it shares with others are had by `fetch`. Raises
    `CorruptObject` (damaged, or not the object the entry named), `UnsupportedFormat`, and what `fetch` does.
    """
    head, body = _checked(data, name, expected)
    try:
        segments, shared = _segments(head, body, fetch)
        entries, packs, blobs = read(segments)
    except CorruptObject as error:
        raise CorruptObject(f"{name}: {error.message}", hint=error.hint) from error
    needed = set(packs)
    if not needed.issubset(head.packs):
        raise CorruptObject(f"{name} does not name all packs that its files need")
    return Manifest(
        head.version,
        head.run,
        head.generation,
        (*packs, *(ref for ref in head.packs if ref not in needed)),
        blobs,
        entries,
        head.checkpoints,
        head.skipped,
        head.versions,
        shared,
    )


def packs(data: bytes, name: str, *, expected: str) -> tuple[PackRef, ...]:
    """The packs that the manifest in `data` needs, without a look at its entries. Raises as `decode` does."""
    return _checked(data, name, expected)[0].packs


def _checked(data: bytes, name: str, expected: str | None) -> tuple[_Head, memoryview]:
    """The head, and what lies behind it."""
    if expected is not None and address(data) != expected:
        raise CorruptObject(f"{name} is not the manifest its snapshot entry names (hash differs)")
    head, body = _head(unsealed(data, Kind.MANIFEST, name), name)
    for ref in head.packs:
        if not _NAME.fullmatch(ref.run) or not _ID.fullmatch(ref.id) or not 0 <= ref.size < _END:
            raise CorruptObject(f"{name} names a pack that cannot be one: {ref.id!r}")
    if len({(ref.run, ref.id) for ref in head.packs}) < len(head.packs):
        raise CorruptObject(f"{name} names a pack twice")
    return head, body


def _segments(head: _Head, body: memoryview, fetch: Fetch | None) -> tuple[list[Segment], tuple[Shared, ...]]:
    away = [place for place in head.segments if place.pack != INLINE]
    _check_away(away, head.packs)
    if away and fetch is None:
        raise CorruptObject("a part of it lies elsewhere")
    blobs = [Blob(one.pack, one.offset, one.stored, 0, one.length, one.digest, NO_BASE) for one in away]
    fetched = iter(fetch(head.packs, blobs) if fetch is not None and away else ())
    segments: list[Segment] = []
    at = 0
    for place in head.segments:
        if place.count < 1 or place.length < 1 or (segments and place.first <= segments[-1].first):
            raise CorruptObject("a table's directory does not fit its segments")
        if place.pack != INLINE:
            segments.append(Segment(place.first, place.count, next(fetched)))
            continue
        if at + place.length > body.nbytes:
            raise CorruptObject("a table's directory does not fit its segments")
        segments.append(Segment(place.first, place.count, body[at : at + place.length]))
        at += place.length
    if at != body.nbytes:
        raise CorruptObject("there is more than a table's directory knows of")
    shared = tuple(Shared(one.first, head.packs[one.pack], one.offset, one.stored, one.digest) for one in away)
    return segments, shared


def _check_away(places: Sequence[_Place], packs: Sequence[PackRef]) -> None:
    """Raise `CorruptObject` unless `places` lie side by side in `packs`: so they are had in no more memory than what
    lies there takes, however little it took to name it often."""
    if any(not 0 <= place.pack < len(packs) or place.offset < 0 for place in places):
        raise CorruptObject("a part of it lies outside its packs")
    end = (0, 0)
    for place in sorted(places, key=lambda place: (place.pack, place.offset)):
        start, end = end, (place.pack, place.offset + place.stored)
        if (place.pack, place.offset) < start or not 1 <= place.length <= place.stored <= LIMIT:
            raise CorruptObject("a part of it lies where another one does, or is not as long as it says")
        if end[1] > packs[place.pack].size:
            raise CorruptObject("a part of it lies outside its packs")


def _head(body: memoryview, name: str) -> tuple[_Head, memoryview]:
    import zstandard

    length = struct.unpack_from("<I", body)[0] if body.nbytes >= 4 else 0
    if not 0 < length <= body.nbytes - 4:
        raise CorruptObject(f"{name} announces a head of {length} bytes in {body.nbytes}")
    coded = body[4 : 4 + length]
    try:
        size = zstandard.frame_content_size(coded)
        if not plausible(size, length, MAX_HEAD):
            raise CorruptObject(f"{name} announces {size} bytes")
        return _decoder.decode(zstandard.ZstdDecompressor().decompress(coded)), body[4 + length :]
    except (zstandard.ZstdError, msgspec.DecodeError, RecursionError) as error:
        raise CorruptObject(f"{name} cannot be decoded: {error}") from error


def address(data: bytes) -> str:
    """blake3-128 of a whole manifest object, hex: how a snapshot entry names its bytes."""
    return digest(data).hex()
