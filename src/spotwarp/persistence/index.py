"""Where contents lie: the blobs of the base snapshot and of the backup at hand, by content hash.

A file's content is named by its *digests*: 16 bytes for each 4 MiB of it, one after the other, and 16 zero bytes for
4 MiB that the file system has nothing of (a hole). A file below 256 KiB has one digest and lies in a bundle with
others. Only blobs of the base and of this backup are ever known here (P1, P3): nothing is adopted from a listing or a
cache.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from spotwarp.persistence.envelope import DIGEST_SIZE
from spotwarp.persistence.manifest import FILE, Blob, Entry, Extent, Manifest, PackRef
from spotwarp.persistence.pack import PackedBlob
from spotwarp.persistence.scan import Scanned

CHUNK: Final = 4 << 20
"""Bytes of a large file that are hashed, coded and placed as one, at fixed offsets."""
SMALL: Final = 256 << 10
"""A file below this many bytes is bundled whole."""
HOLE: Final = bytes(DIGEST_SIZE)
"""Stands for a chunk that is a hole; a real digest of this value will not be met."""

Place = tuple[int, int]
"""A blob's number and the offset in its decoded bytes."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What earlier backups of this generation had acknowledged, though no snapshot names it: still our own (P3).

    Blobs count their packs from 0 within `packs`, places their blobs within `blobs`.
    """

    packs: tuple[PackRef, ...] = ()
    blobs: tuple[Blob, ...] = ()
    places: Mapping[bytes, Place] = field(default_factory=dict)


class Index:
    """Contents and their places. May be shared by threads."""

    def __init__(self, base: Manifest | None, carried: Carried | None = None) -> None:
        """`carried` is reused like the base, but its packs count as this backup's own."""
        self._lock = threading.Lock()
        self._packs: list[PackRef] = list(base.packs) if base else []
        self._blobs: list[Blob] = list(base.blobs) if base else []
        self._places: dict[bytes, Place] = {blob.digest: (number, 0) for number, blob in enumerate(self._blobs)}
        self._claimed: set[bytes] = set()
        self._old_packs, self._old_blobs = len(self._packs), len(self._blobs)
        for entry in base.entries if base else ():
            if entry.digest and len(entry.extents) == 1:
                self._places.setdefault(entry.digest, (entry.extents[0].blob, entry.extents[0].inner))
        if carried is not None:
            self._take_over(carried)
        self._carried_packs = len(self._packs) - self._old_packs

    def _take_over(self, carried: Carried) -> None:
        packs, blobs = len(self._packs), len(self._blobs)
        self._packs += carried.packs
        self._blobs += (Blob(packs + b.pack, b.offset, b.stored, b.codec, b.raw, b.digest) for b in carried.blobs)
        for digest, (blob, inner) in carried.places.items():
            self._places.setdefault(digest, (blobs + blob, inner))

    def carried(self, acknowledged: Iterable[int]) -> Carried:
        """What a later backup may take over: the packs taken over before, and those in `acknowledged` (numbers)."""
        with self._lock:
            first = self._old_packs
            wanted = sorted({*range(first, first + self._carried_packs), *acknowledged})
            packs = {old: new for new, old in enumerate(wanted)}
            numbers: dict[int, int] = {}
            blobs: list[Blob] = []
            for old in range(self._old_blobs, len(self._blobs)):
                b = self._blobs[old]
                if b.pack in packs:
                    numbers[old] = len(blobs)
                    blobs.append(Blob(packs[b.pack], b.offset, b.stored, b.codec, b.raw, b.digest))
            places = {}
            for digest, (blob, inner) in reversed(self._places.items()):
                if blob < self._old_blobs:
                    break  # the base's come first, and there may be a million
                if blob in numbers:
                    places[digest] = numbers[blob], inner
            return Carried(tuple(self._packs[old] for old in wanted), tuple(blobs), places)

    def unacknowledged(self, acknowledged: Iterable[int]) -> frozenset[int]:
        """The numbers of this backup's own packs that are not in `acknowledged`."""
        return frozenset(range(self._old_packs + self._carried_packs, len(self._packs))) - frozenset(acknowledged)

    def lies_in(self, digests: bytes, packs: frozenset[int]) -> bool:
        """Whether a part of this content lies in one of `packs`, or nowhere yet."""
        for part in parts(digests):
            if part != HOLE:
                place = self._places.get(part)
                if place is None or self._blobs[place[0]].pack in packs:
                    return True
        return False

    def knows(self, digests: bytes) -> bool:
        """Whether every part of a content has its place already."""
        places = self._places
        return all(part in places or part == HOLE for part in parts(digests))

    def claim(self, digest: bytes) -> bool:
        """Whether the caller must store this content; False when it is stored or another thread has claimed it."""
        with self._lock:
            if digest in self._places or digest in self._claimed:
                return False
            self._claimed.add(digest)
            return True

    def new_pack(self, run: str, pack: str) -> int:
        """The number of a pack that is being filled."""
        with self._lock:
            self._packs.append(PackRef(run, pack, 0))
            return len(self._packs) - 1

    def sealed(self, pack: int, size: int) -> PackRef:
        """The pack is complete, `size` bytes long."""
        with self._lock:
            ref = self._packs[pack]
            self._packs[pack] = sealed = PackRef(ref.run, ref.id, size)
            return sealed

    def add(self, pack: int, row: PackedBlob, contents: Iterable[tuple[bytes, int]]) -> None:
        """A blob lies in `pack`; `contents` are the claimed digests in it and where in its decoded bytes they start."""
        with self._lock:
            self._blobs.append(Blob(pack, row.offset, row.stored, row.codec, row.raw, row.digest))
            for digest, inner in contents:
                self._places[digest] = (len(self._blobs) - 1, inner)
                self._claimed.discard(digest)

    def new_packs(self) -> tuple[PackRef, ...]:
        """The packs of this backup."""
        return tuple(self._packs[self._old_packs :])

    def manifest(
        self,
        kept: Iterable[tuple[Scanned, bytes]],
        links: Mapping[bytes, bytes] = MappingProxyType({}),
        *,
        version: int,
        run: str,
        generation: int,
    ) -> Manifest:
        """The manifest of the files, directories and links in `kept`, each with its content's digests.

        `links` gives the first name of those that are further names of a file.
        Names exactly the packs and blobs that are needed, numbered by first use, so that equal workspaces make equal
        manifests.
        """
        numbers = _Numbers(self._blobs)
        entries = tuple(
            _entry(entry, digests, self._extents(entry.size, digests, numbers), links.get(entry.path, b""))
            for entry, digests in kept
        )
        packs, blobs = numbers.tables(self._packs)
        return Manifest(version, run, generation, packs, blobs, entries)

    def _extents(self, size: int, digests: bytes, numbers: _Numbers) -> tuple[Extent, ...]:
        found: list[Extent] = []
        for k, part in enumerate(parts(digests)):
            if part != HOLE:
                blob, inner = self._places[part]
                offset = k * CHUNK
                found.append(Extent(offset, min(CHUNK, size - offset), numbers.number(blob), inner))
        return tuple(found)


class _Numbers:
    """Renumbers blobs by first use, and their packs after them."""

    def __init__(self, blobs: list[Blob]) -> None:
        self._blobs = blobs
        self._new: dict[int, int] = {}

    def number(self, blob: int) -> int:
        return self._new.setdefault(blob, len(self._new))

    def tables(self, packs: list[PackRef]) -> tuple[tuple[PackRef, ...], tuple[Blob, ...]]:
        order: dict[int, int] = {}
        blobs = []
        for old in self._new:
            b = self._blobs[old]
            pack = order.setdefault(b.pack, len(order))
            blobs.append(Blob(pack, b.offset, b.stored, b.codec, b.raw, b.digest))
        return tuple(packs[old] for old in order), tuple(blobs)


def parts(digests: bytes) -> Sequence[bytes]:
    """The single digests of a content."""
    if len(digests) <= DIGEST_SIZE:  # nearly all files
        return (digests,) if digests else ()
    return [digests[at : at + DIGEST_SIZE] for at in range(0, len(digests), DIGEST_SIZE)]


def _entry(entry: Scanned, digests: bytes, extents: tuple[Extent, ...], link: bytes) -> Entry:
    bundled = digests if entry.kind == FILE and entry.size < SMALL else b""
    return Entry(entry.path, entry.kind, entry.mode, entry.mtime_ns, entry.size, extents, entry.target, bundled, link)


def digests_of(entry: Entry, blobs: Sequence[Blob]) -> bytes | None:
    """The digests of a file's content as a manifest has it, or None when its pieces do not lie on our grid."""
    if entry.size < SMALL:
        return entry.digest if entry.digest or entry.size else None
    found = bytearray(-(-entry.size // CHUNK) * DIGEST_SIZE)
    for extent in entry.extents:
        blob = blobs[extent.blob]
        if extent.offset % CHUNK or extent.inner or extent.length != blob.raw:
            return None
        at = extent.offset // CHUNK * DIGEST_SIZE
        found[at : at + DIGEST_SIZE] = blob.digest
    return bytes(found)
