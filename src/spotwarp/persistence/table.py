"""Many rows in the order of their paths, in little memory: a table of independently coded segments.

A segment is one zstd frame of msgpack with about two thousand rows, and only the segment in hand is decoded: a row
costs some tens of bytes, not the hundreds of a Python object. Who reads in the order of the paths decodes each segment
once; any other order is correct and slow. Where a segment ends is a matter of its paths alone, so that two tables that
differ in little share most segments byte for byte. Knows nothing of what the rows mean. Normative: docs/format.md.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Generic, Protocol, TypeVar, overload

import msgspec

from spotwarp.errors import CorruptObject
from spotwarp.persistence.store.api import Buffer

HEAVY: Final = 512
"""A row that weighs this much has a segment of its own, so that no other moves where it begins."""
MOST: Final = 8192
"""A segment ends at the latest when its rows weigh this much."""
_MASK: Final = 2047
"""A segment ends before a path whose CRC-32 has these bits clear: one in 2048."""
MOST_TIMES: Final = 2000
FREE: Final = 64 << 20
"""How many times its coded size anything may decode to beyond so many bytes: rows of like names stay far below it,
bombs do not. (The digests of a sparse file of 300 GB are a megabyte of zeros, in some hundred bytes.)"""
KEPT: Final = 1 << 15
"""Tables of at most so many rows may be held decoded: some ten megabytes."""
LIMIT: Final = 1 << 30
"""Bytes that one segment may decode to; more is damage."""


def plausible(size: int, coded: int, most: int) -> bool:
    """Whether `coded` bytes may decode to `size`: not unknown (-1), not more than `most`, and no bomb."""
    return 0 <= size <= min(most, max(FREE, coded * MOST_TIMES))


class Row(Protocol):
    """What a table holds: a msgspec structure that is an array on the wire and has a path."""

    @property
    def path(self) -> bytes:
        """Relative to the workspace."""
        ...


R = TypeVar("R", bound=Row)


@dataclass(frozen=True, slots=True)
class Segment:
    """Some neighbouring rows: the first's path, how many, and their code."""

    first: bytes
    count: int
    data: Buffer

    def same(self, other: Segment) -> bool:
        """Whether both hold the same rows for certain."""
        return self.count == other.count and self.first == other.first and bytes(self.data) == bytes(other.data)

    def check(self, rows: Sequence[Row]) -> None:
        """Raise `CorruptObject` unless `rows` are what the segment announces."""
        if len(rows) != self.count or not rows or rows[0].path != self.first:
            raise CorruptObject(f"a segment of {len(self.data)} bytes does not hold the rows that it announces")


Packed = TypeVar("Packed")


def unpacked(segment: Segment, decoder: msgspec.msgpack.Decoder[Packed]) -> Packed:
    """What the code of a segment stands for, not yet checked against it. Raises `CorruptObject`."""
    import zstandard

    try:
        if not plausible(zstandard.frame_content_size(segment.data), len(segment.data), LIMIT):
            raise CorruptObject(f"a segment of {len(segment.data)} bytes announces an impossible length")
        return decoder.decode(zstandard.ZstdDecompressor().decompress(segment.data))
    except (zstandard.ZstdError, msgspec.DecodeError, RecursionError) as error:
        raise CorruptObject(f"a segment of {len(segment.data)} bytes cannot be decoded: {error}") from error


class Table(Sequence[R], Generic[R]):
    """Rows of one type in ascending order of their paths. Never changes; may be shared by threads."""

    def __init__(self, row: type[R], segments: Sequence[Segment]) -> None:
        self.row = row
        self.segments = tuple(segments)
        self.firsts = [segment.first for segment in self.segments]
        self.starts = [0, *accumulate(segment.count for segment in self.segments)]
        self._decoder: msgspec.msgpack.Decoder[list[R]] = msgspec.msgpack.Decoder(list[row])  # type: ignore[valid-type]
        self._cursor = Cursor(self)
        self._kept: dict[int, list[R]] | None = None
        """Decoded segments by their identity, where they are held."""

    def kept(self) -> Table[R]:
        """The same table for who goes over its rows many times: unless it is large, each segment is decoded once."""
        table = copy(self)
        table._cursor = Cursor(table)
        table._kept = {} if len(self) <= KEPT else None
        return table

    @classmethod
    def of(cls, row: type[R], rows: Iterable[R], *, weigh: Callable[[R], int] | None = None) -> Table[R]:
        """The table of `rows`, sorted already or not; a table is taken as it is."""
        if isinstance(rows, Table):
            return rows
        builder = TableBuilder(row, weigh=weigh)
        for one in sorted(rows, key=lambda one: one.path):
            builder.add(one)
        return builder.table()

    def __len__(self) -> int:
        """How many rows."""
        return self.starts[-1]

    def __iter__(self) -> Iterator[R]:
        """The rows in order."""
        for segment in self.segments:
            yield from self.rows(segment)

    def __reversed__(self) -> Iterator[R]:
        """The rows from the last to the first: what lies deeper comes earlier."""
        for segment in reversed(self.segments):
            yield from reversed(self.rows(segment))

    @overload
    def __getitem__(self, number: int) -> R: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[R]: ...
    def __getitem__(self, number: int | slice) -> R | Sequence[R]:
        """Row `number`; for many use a `Cursor`."""
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        return Cursor(self).at(number + len(self) if number < 0 else number)

    def __eq__(self, other: object) -> bool:
        """Whether `other`, any sequence, has equal rows in the same order."""
        if not isinstance(other, Sequence):
            return NotImplemented
        if len(self) != len(other):
            return False
        if isinstance(other, Table):
            mine, theirs = apart(self, other)
            return all(a == b for a, b in zip(mine, theirs, strict=True))
        return all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """For messages."""
        return f"Table({self.row.__name__}, {len(self)} rows)"

    def find(self, path: bytes) -> R | None:
        """The row of `path`, or None. For one thread at a time; another has a `Cursor` of its own."""
        return self._cursor.find(path)

    def beneath(self, path: bytes) -> Iterator[R]:
        """The row of `path` and of everything that lies in it; of an empty path all rows."""
        if not path:
            yield from self
            return
        begin = max(0, bisect_right(self.firsts, path) - 1)
        inside, end = path + b"/", path + b"0"  # what follows the slash
        for segment in self.segments[begin:]:
            if segment.first >= end:
                return
            yield from (row for row in self.rows(segment) if row.path == path or inside <= row.path < end)

    def rows(self, segment: Segment) -> list[R]:
        """The rows of one of the segments, not to be changed. Raises `CorruptObject` when it is damaged."""
        if self._kept is None:
            return self._decoded(segment)
        rows = self._kept.get(id(segment))
        if rows is None:
            rows = self._kept[id(segment)] = self._decoded(segment)
        return rows

    def _decoded(self, segment: Segment) -> list[R]:
        rows = unpacked(segment, self._decoder)
        segment.check(rows)
        return rows


class Cursor(Generic[R]):
    """One thread's place in a table; moving within a segment costs nothing."""

    def __init__(self, table: Table[R]) -> None:
        self._table = table
        self._number = -1
        self._from, self._to = b"", b""
        self._start = self._end = 0
        """The numbers of the rows in hand."""
        self._rows: list[R] = []
        self._by_path: dict[bytes, R] | None = None

    def at(self, number: int) -> R:
        """Row `number`. Raises `IndexError`."""
        if not self._start <= number < self._end:
            if not 0 <= number < len(self._table):
                raise IndexError(number)
            self._enter(bisect_right(self._table.starts, number) - 1)
        return self._rows[number - self._start]

    def find(self, path: bytes) -> R | None:
        """The row of `path`, or None."""
        if not (self._number >= 0 and self._from <= path and (path < self._to or not self._to)):
            segment = bisect_right(self._table.firsts, path) - 1
            if segment < 0:
                return None
            self._enter(segment)
        if self._by_path is None:
            self._by_path = {row.path: row for row in self._rows}
        return self._by_path.get(path)

    def _enter(self, number: int) -> None:
        if number == self._number:
            return
        firsts = self._table.firsts
        self._rows, self._by_path = self._table.rows(self._table.segments[number]), None
        self._start, self._end = self._table.starts[number], self._table.starts[number + 1]
        self._from, self._to = firsts[number], firsts[number + 1] if number + 1 < len(firsts) else b""
        self._number = number


class TableBuilder(Generic[R]):
    """Makes a table row by row."""

    def __init__(self, row: type[R], *, level: int = 1, weigh: Callable[[R], int] | None = None) -> None:
        """`level` is zstd's; `weigh` says how many common rows a row is worth (1, when not given)."""
        import zstandard

        self._row = row
        self._compress = zstandard.ZstdCompressor(level=level).compress
        self._encode = msgspec.msgpack.Encoder().encode
        self._weigh = weigh
        self._segments: list[Segment] = []
        self._rows: list[R] = []
        self._last = b""
        self._weight = 0
        self.count = 0

    def add(self, row: R) -> None:
        """Append a row, whose path must not sort before the last one's. Raises `ValueError`."""
        path = row.path
        if path < self._last:
            raise ValueError(f"{path!r} comes after {self._last!r}")
        self._last = path
        weight = 1 if self._weigh is None else self._weigh(row)
        if not zlib.crc32(path) & _MASK or self._weight >= MOST or weight >= HEAVY:
            self._cut()
        self._rows.append(row)
        self._weight += weight
        self.count += 1
        if weight >= HEAVY:
            self._cut()

    def table(self) -> Table[R]:
        """The table of everything added; the builder is of no more use."""
        self._cut()
        return Table(self._row, self._segments)

    def _form(self, rows: list[R]) -> object:
        """What is written for a segment with these rows."""
        return rows

    def _cut(self) -> None:
        if self._rows:
            coded = self._compress(self._encode(self._form(self._rows)))
            data = memoryview(coded).tobytes()  # the library's own keeps room for what did not shrink
            self._segments.append(Segment(self._rows[0].path, len(self._rows), data))
            self._rows, self._weight = [], 0


def apart(one: Table[R], other: Table[R]) -> tuple[Iterator[R], Iterator[R]]:
    """The rows of both tables without those in segments that they share."""
    theirs = {segment.first: segment for segment in other.segments}
    shared = {s.first for s in one.segments if (same := theirs.get(s.first)) is not None and s.same(same)}

    def rest(table: Table[R]) -> Iterator[R]:
        for segment in table.segments:
            if segment.first not in shared:
                yield from table.rows(segment)

    return rest(one), rest(other)


Directory = list[tuple[bytes, int, int]]
"""For each segment the path of its first row, its rows, its bytes: what a table needs beside its segments."""


def directory(table: Table[R]) -> Directory:
    """What must be written beside the segments of `table`, which follow each other, to read it again."""
    return [(segment.first, segment.count, len(segment.data)) for segment in table.segments]


def placed(row: type[R], listed: Directory, body: memoryview) -> Table[R]:
    """The table whose segments lie back to back in `body`, uncopied. Raises `CorruptObject`."""
    segments: list[Segment] = []
    at = 0
    for first, count, length in listed:
        if count < 1 or length < 1 or at + length > body.nbytes or (segments and first < segments[-1].first):
            raise CorruptObject("a table's directory does not fit its segments")
        segments.append(Segment(first, count, body[at : at + length]))
        at += length
    if at != body.nbytes:
        raise CorruptObject("there is more than a table's directory knows of")
    return Table(row, segments)
