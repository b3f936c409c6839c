"""The entries of a manifest in segments that are complete in themselves.

Each segment names the packs and blobs that its own entries need and counts them by itself. So what has not changed in
one part of a workspace is written in the same bytes whatever happened elsewhere, and snapshots can share it. In memory
all entries of a manifest count blobs alike.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import force_setattr, replace

from spotwarp.errors import CorruptObject
from spotwarp.persistence.manifest.rows import LEVEL, NO_BASE, Blob, Entry, Extent, PackRef, weight
from spotwarp.persistence.table import Segment, Table, TableBuilder, unpacked


class _Record(msgspec.Struct, array_like=True, frozen=True):
    """What is written for a segment."""

    packs: tuple[PackRef, ...]
    blobs: tuple[Blob, ...]
    entries: list[Entry]


_decoder = msgspec.msgpack.Decoder(_Record)
_END: Final = 1 << 63
"""Sizes, offsets and times are below this, as everywhere in an operating system."""


class Records(Table[Entry]):
    """Entries whose segments count their own blobs."""

    def __init__(self, segments: Sequence[Segment], numbers: Mapping[bytes, array[int]]) -> None:
        """`numbers` has, by the path that a segment begins with, the manifest's number of each of its blobs."""
        super().__init__(Entry, segments)
        self._numbers = numbers

    def _decoded(self, segment: Segment) -> list[Entry]:
        record = unpacked(segment, _decoder)
        segment.check(record.entries)
        numbers = self._numbers[segment.first]
        for entry in record.entries:
            for extent in entry.extents:
                force_setattr(extent, "blob", numbers[extent.blob])  # it is nobody else's yet
        return record.entries


class _Union:
    """The packs and blobs of all segments, each once, counted by first use."""

    def __init__(self) -> None:
        self.packs: dict[PackRef, int] = {}
        self.blobs: list[Blob] = []
        self._blobs: dict[tuple[int, int], int] = {}

    def add(self, packs: Sequence[PackRef], blobs: Sequence[Blob]) -> array[int]:
        """The numbers of a segment's blobs. Raises `CorruptObject` when an earlier one says other things of a blob.

        So no blob has a base that has one, as long as that is true of each segment by itself.
        """
        refs = [self.packs.setdefault(ref, len(self.packs)) for ref in packs]
        places = [(refs[blob.pack], blob.offset) for blob in blobs]
        numbers = array("I", [self._blobs.setdefault(place, len(self._blobs)) for place in places])
        for blob, place, number in zip(blobs, places, numbers, strict=True):
            made = replace(blob, pack=place[0], base=NO_BASE if blob.base == NO_BASE else numbers[blob.base])
            if number == len(self.blobs):
                self.blobs.append(made)
            elif self.blobs[number] != made:
                raise CorruptObject("two of its parts say different things of one blob")
        return numbers


class RecordsBuilder(TableBuilder[Entry]):
    """Makes a manifest's entries, packs and blobs of entries that count the blobs of a larger list."""

    def __init__(self, packs: Sequence[PackRef], blobs: Sequence[Blob]) -> None:
        super().__init__(Entry, level=LEVEL, weigh=weight)
        self._all_packs, self._all_blobs = packs, blobs
        self._union = _Union()
        self._numbers: dict[bytes, array[int]] = {}

    def records(self) -> Records:
        """Everything added; after it `packs` and `blobs` are those that are needed, and no others."""
        return Records(self.table().segments, self._numbers)

    @property
    def packs(self) -> tuple[PackRef, ...]:
        """Counted by first use."""
        return tuple(self._union.packs)

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Counted by first use, a base after what is coded against it."""
        return tuple(self._union.blobs)

    def _form(self, rows: list[Entry]) -> _Record:
        mine = _Mine(self._all_packs, self._all_blobs)
        record = _Record((), (), [mine.entry(row) for row in rows])
        record = replace(record, packs=tuple(mine.packs), blobs=tuple(mine.blobs))
        self._numbers[rows[0].path] = self._union.add(record.packs, record.blobs)
        return record


class _Mine:
    """The packs and blobs of one segment."""

    def __init__(self, packs: Sequence[PackRef], blobs: Sequence[Blob]) -> None:
        self._all_packs, self._all_blobs = packs, blobs
        self._numbers: dict[int, int] = {}
        self.packs: dict[PackRef, int] = {}
        self.blobs: list[Blob] = []

    def entry(self, row: Entry) -> Entry:
        if not row.extents:
            return row
        extents = tuple([Extent(x.offset, x.length, self._number(x.blob), x.inner) for x in row.extents])
        return Entry(row.path, row.kind, row.mode, row.mtime_ns, row.size, extents, row.target, row.digest, row.link)

    def _number(self, old: int) -> int:
        found = self._numbers.get(old)
        if found is None:
            found = self._numbers[old] = len(self.blobs)
            blob = self._all_blobs[old]
            pack = self.packs.setdefault(self._all_packs[blob.pack], len(self.packs))
            self.blobs.append(replace(blob, pack=pack, base=NO_BASE))
            if blob.base != NO_BASE:
                self.blobs[found] = replace(self.blobs[found], base=self._number(blob.base))
        return found


def recorded(entries: Iterable[Entry], packs: Sequence[PackRef], blobs: Sequence[Blob]) -> Records:
    """`entries` of a manifest with these packs and blobs, sorted already or not, as they are written."""
    if isinstance(entries, Records):
        return entries
    made = RecordsBuilder(packs, blobs)
    for entry in entries if isinstance(entries, Table) else sorted(entries, key=lambda entry: entry.path):
        made.add(entry)
    return made.records()


def read(segments: Sequence[Segment]) -> tuple[Records, tuple[PackRef, ...], tuple[Blob, ...]]:
    """The entries in `segments`, and the packs and blobs they need. Raises `CorruptObject`.

    Every index points inside its table, every number is one that a system can have, the segments agree about what they
    share, and the entries are in order, each path once: who goes over them later meets no surprise.
    """
    union = _Union()
    numbers: dict[bytes, array[int]] = {}
    last = b""
    for segment in segments:
        record = unpacked(segment, _decoder)
        segment.check(record.entries)
        _check_blobs(record)
        last = _check_entries(record, last)
        numbers[segment.first] = union.add(record.packs, record.blobs)
    return Records(segments, numbers), tuple(union.packs), tuple(union.blobs)


def _check_blobs(record: _Record) -> None:
    packs, blobs = record.packs, record.blobs
    for blob in blobs:
        if not 0 <= blob.pack < len(packs) or min(blob.offset, blob.stored, blob.raw) < 0 or blob.raw >= _END:
            raise CorruptObject("it has a blob outside its packs")
        if blob.offset + blob.stored > packs[blob.pack].size:
            raise CorruptObject("it has a blob outside its packs")
        if blob.base != NO_BASE and not (0 <= blob.base < len(blobs) and blobs[blob.base].base == NO_BASE):
            raise CorruptObject("it has a blob whose base is none")


def _check_entries(record: _Record, last: bytes) -> bytes:
    blobs = record.blobs
    for entry in record.entries:
        if entry.path <= last:
            raise CorruptObject("it has its entries in another order than that of their paths, or one twice")
        if not 0 <= entry.size < _END or entry.mtime_ns >= _END:
            raise CorruptObject("it has a file of a size or time that none can have")
        last = entry.path
        for extent in entry.extents:
            if not 0 <= extent.blob < len(blobs) or min(extent.offset, extent.length, extent.inner) < 0:
                raise CorruptObject("it has a file that points outside its blobs")
            if extent.inner + extent.length > blobs[extent.blob].raw or extent.offset + extent.length > entry.size:
                raise CorruptObject("it has a file that reaches outside its blob or itself")
    return last
