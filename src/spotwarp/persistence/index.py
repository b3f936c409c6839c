"""Where contents lie: the blobs of the base snapshot and of the backup at hand, by content hash.

Only blobs of the base and of this backup are ever known here (P1, P3): nothing is adopted from a listing or a cache.
How a file's content is named is told in `content`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from spotwarp.persistence.content import HOLE, digests_of, names, parts
from spotwarp.persistence.envelope import DIGEST_SIZE
from spotwarp.persistence.manifest import (
    FILE,
    NO_BASE,
    Blob,
    Entry,
    Extent,
    Manifest,
    PackRef,
    RecordsBuilder,
    tabled,
)
from spotwarp.persistence.pack import PackedBlob
from spotwarp.persistence.places import Places
from spotwarp.persistence.scan import Scanned
from spotwarp.persistence.table import Cursor


@dataclass(frozen=True, slots=True)
class Carried:
    """What earlier backups of this generation had acknowledged, though no snapshot names it: still our own (P3).

    Blobs count their packs from 0 within `packs`; what one is coded against is told by its digest, since the base
    snapshot may be another the next time. `places` has more than is carried, and counts otherwise: `numbers` has the
    blob in `blobs` for each number in it that is.
    """

    packs: tuple[PackRef, ...] = ()
    blobs: tuple[Blob, ...] = ()
    bases: Mapping[int, bytes] = field(default_factory=dict)
    """The digests of what blobs are coded against, by their index in `blobs`."""
    places: Places = field(default_factory=Places)
    numbers: Mapping[int, int] = field(default_factory=dict)


class Index:
    """Contents and their places. May be shared by threads."""

    def __init__(self, base: Manifest | None, carried: Carried | None = None) -> None:
        """`carried` is reused like the base, but its packs count as this backup's own."""
        self._lock = threading.Lock()
        self._base = base
        table = tabled(base.entries) if base else None
        self._entries = Cursor(table) if table is not None else None
        self._leaders = Cursor(table) if table is not None else None
        """For the first names of further ones: a place of its own in the table."""
        self._packs: list[PackRef] = list(base.packs) if base else []
        self._blobs: list[Blob] = list(base.blobs) if base else []
        self._old_packs, self._old_blobs = len(self._packs), len(self._blobs)
        self._carried = carried or Carried()
        self._packs += self._carried.packs
        self._lost: set[int] = set()
        """Carried blobs whose base the base snapshot has not any more."""
        self._take_over()
        self._claimed: set[bytes] = set()
        self._known: Places | None = None

    def _take_over(self) -> None:
        """The carried blobs are known from now on, each with its base where that is in this base snapshot."""
        bases = self._carried.bases
        known = {b.digest: n for n, b in enumerate(self._blobs) if b.base == NO_BASE} if bases else {}
        for number, one in enumerate(self._carried.blobs):
            base = known.get(bases[number], NO_BASE) if number in bases else NO_BASE
            if number in bases and base == NO_BASE:
                self._lost.add(len(self._blobs))
            self._blobs.append(replace(one, pack=self._old_packs + one.pack, base=base))

    def carried(self, acknowledged: Collection[int]) -> Carried:
        """What a later backup may take over: the packs taken over before, and those in `acknowledged` (numbers)."""
        with self._lock:
            first = self._old_packs
            if not self._carried.packs and not acknowledged:
                return Carried()
            wanted = sorted({*range(first, first + len(self._carried.packs)), *acknowledged})
            packs = {old: new for new, old in enumerate(wanted)}
            numbers: dict[int, int] = {}
            blobs: list[Blob] = []
            bases: dict[int, bytes] = {}
            for old in range(self._old_blobs, len(self._blobs)):
                b = self._blobs[old]
                if b.pack in packs and old not in self._lost:
                    numbers[old] = len(blobs)
                    if b.base != NO_BASE:
                        bases[len(blobs)] = self._blobs[b.base].digest
                    blobs.append(replace(b, pack=packs[b.pack], base=NO_BASE))
            return Carried(tuple(self._packs[old] for old in wanted), tuple(blobs), bases, self._places(), numbers)

    def unacknowledged(self, acknowledged: Iterable[int]) -> frozenset[int]:
        """The numbers of this backup's own packs that are not in `acknowledged`."""
        own = range(self._old_packs + len(self._carried.packs), len(self._packs))
        return frozenset(own) - frozenset(acknowledged)

    def lies_in(self, digests: bytes, packs: frozenset[int]) -> bool:
        """Whether a part of this content lies in one of `packs`, or nowhere yet."""
        with self._lock:
            for name in names(digests):
                place = self._places().get(name)
                if place is None or self._blobs[place[0]].pack in packs:
                    return True
        return False

    def knows(self, path: bytes, digests: bytes) -> bool:
        """Whether every part of the content of the file `path` has its place already.

        Quick for what lies in the base under the same path, when asked in the order of the paths. For one thread.
        """
        if not digests or self._in_base(path, digests) is not None:
            return True
        with self._lock:
            places = self._places()
            return all(name in places for name in names(digests))

    def claim(self, digest: bytes) -> bool:
        """Whether the caller must store this content; False when it is stored or another thread has claimed it."""
        with self._lock:
            if digest in self._claimed or digest in self._places():
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

    def add(self, pack: int, row: PackedBlob, contents: Iterable[tuple[bytes, int]], *, base: int = NO_BASE) -> None:
        """A blob lies in `pack`; `contents` are the claimed digests in it and where in its decoded bytes they start.

        `base` is the number of the base snapshot's blob that it is coded against.
        """
        with self._lock:
            self._blobs.append(Blob(pack, row.offset, row.stored, row.codec, row.raw, row.digest, base))
            for digest, inner in contents:
                self._places().add(digest, len(self._blobs) - 1, inner)
                self._claimed.discard(digest)

    def new_packs(self) -> frozenset[PackRef]:
        """The packs of this backup."""
        return frozenset(self._packs[self._old_packs :])

    def manifest(
        self, kept: Iterable[tuple[Scanned, bytes | None, bytes]], *, version: int, run: str, generation: int
    ) -> Manifest:
        """The manifest of the files, directories and links in `kept`, in path order.

        Each comes with its content's digests (None: it is what the base has under that path) and, if it is a further
        name of a file, the first.
        Names exactly the packs and blobs that are needed, numbered by first use, so that equal workspaces make equal
        manifests.
        """
        made = RecordsBuilder(self._packs, self._blobs)
        for entry, digests, link in kept:
            if digests is None:
                made.add(self._again(entry.path))
            else:
                made.add(_entry(entry, digests, self._extents(entry, digests, link), link))
        entries = made.records()
        return Manifest(version, run, generation, made.packs, made.blobs, entries)

    def _again(self, path: bytes) -> Entry:
        """The base's entry of `path`, as a file of one name."""
        found = self._entries.find(path) if self._entries is not None else None
        if found is None:
            raise KeyError(path)
        return replace(found, link=b"") if found.link else found

    def _extents(self, entry: Scanned, digests: bytes, link: bytes) -> tuple[Extent, ...]:
        if not digests:
            return ()
        # A content may lie in two places: all names of a file have it where the first one has it.
        base = self._in_base(link, digests, self._leaders) if link else self._in_base(entry.path, digests)
        if base is not None:
            return base.extents
        found: list[Extent] = []
        offset = 0
        for length, name in parts(digests, entry.size):
            if name != HOLE:
                place = self._places().get(name)
                if place is None:
                    raise KeyError(name)
                found.append(Extent(offset, length, place[0], place[1]))
            offset += length
        return tuple(found)

    def _in_base(self, path: bytes, digests: bytes, at: Cursor[Entry] | None = None) -> Entry | None:
        """The base's entry of the file `path`, if its content is the one that `digests` name; looked up by `at`."""
        cursor = at or self._entries
        if self._base is None or cursor is None:
            return None
        entry = cursor.find(path)
        if entry is None or entry.kind != FILE or digests_of(entry, self._base.blobs) != digests:
            return None
        return entry

    def _places(self) -> Places:
        """Of all contents; the base's are taken in when first asked for: most backups read little."""
        if self._known is None:
            self._known = places = Places(len(self._blobs) + (len(self._base.entries) if self._base else 0))
            for number, one in enumerate(self._blobs):
                if number not in self._lost:
                    places.add(one.digest, number, 0)
            for entry in self._base.entries if self._base else ():
                if entry.digest and len(entry.extents) == 1:
                    places.add(entry.digest, entry.extents[0].blob, entry.extents[0].inner)
            for digest, old, inner in self._carried.places.items():
                blob = self._carried.numbers.get(old)
                if blob is not None and self._old_blobs + blob not in self._lost:
                    places.add(digest, self._old_blobs + blob, inner)
        return self._known


def _entry(entry: Scanned, digests: bytes, extents: tuple[Extent, ...], link: bytes) -> Entry:
    bundled = digests if entry.kind == FILE and len(digests) == DIGEST_SIZE else b""
    return Entry(entry.path, entry.kind, entry.mode, entry.mtime_ns, entry.size, extents, entry.target, bundled, link)
