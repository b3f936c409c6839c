"""How the pieces of big files are cut and coded, given what is known of them already.

Three things make a piece small. Its bytes are numbers: they are split into planes. The same tensor lies in an earlier
save that is still here: it is coded as the difference. The file was here before, under the same name: what was appended
is a piece of its own, and of what was rewritten only the pages that differ are kept. What a piece is coded against (its
*base*) is a blob of the base snapshot that has no base itself, and its bytes are used only after they were hashed.
Reads files and the page cache; never writes to the workspace or the store.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from spotwarp.persistence import codec
from spotwarp.persistence.backup.live import open_file, pread_into
from spotwarp.persistence.backup.pages import FilePages, Pages
from spotwarp.persistence.backup.plan import REST, BigFile
from spotwarp.persistence.backup.saves import Saves, keys
from spotwarp.persistence.beneath import Tree
from spotwarp.persistence.cuts import CHUNK, Cuts, cuts, lined_up
from spotwarp.persistence.envelope import digest
from spotwarp.persistence.manifest import FILE, NO_BASE, Blob, Entry, Manifest, tabled
from spotwarp.persistence.store.api import Buffer
from spotwarp.persistence.table import Cursor

Mode = Literal["raw", "planes", "delta"]
"""What numbers are coded as: not at all, in planes, or as the difference to an earlier save where that is smaller."""

_MOST_HOLE: Final = 256 << 30
"""Bytes of a file that were no data before: one with more is not cut as before, since all of them must be gone over."""
_APPENDS: Final = 64
"""Pieces in one chunk's worth of an appended file; at so many they become one."""


class Coded(NamedTuple):
    """A piece as it is stored."""

    codec: int
    data: Sequence[Buffer]
    base: int = NO_BASE
    """The number of the base snapshot's blob that it is coded against."""
    base_digest: bytes = b""


@dataclass(frozen=True, slots=True)
class _Earlier:
    """A piece of an earlier save: an open file, where it lies there, and its blob's number."""

    fd: int
    offset: int
    blob: int


class Coding:
    """What one backup knows for all its files. May be shared by threads."""

    def __init__(
        self, base: Manifest | None, mode: Mode, level: int, pages: Pages | None = None, *, files: Iterable[bytes] = ()
    ) -> None:
        """`level` is zstd's; `pages` is the cache of page fingerprints, without which pages are never told apart.

        `files` are those that will be asked for, in the order of their paths: looked up one after the other they cost
        next to nothing.
        """
        self.base, self.mode, self.level, self.pages = base, mode, level, pages
        self._entries = Cursor(tabled(base.entries)) if base is not None else None
        self._before = {path: self._find(path) for path in files}
        self._saves = Saves(base)

    def of(self, tree: Tree, job: BigFile) -> FileCoding:
        """How a file is coded. For one thread."""
        path = job.file.path
        before = self._before.pop(path) if path in self._before else self._find(path)
        pages = self.pages.of(job.file.path) if self.pages is not None and job.group == REST else None
        return FileCoding(self, tree, job.file.path, before, pages)

    def _find(self, path: bytes) -> Entry | None:
        found = self._entries.find(path) if self._entries is not None else None
        return found if found is not None and found.kind == FILE and found.extents else None

    def earlier(self, path: bytes) -> Sequence[Entry]:
        """The same file in earlier saves that this one may be coded against, the newest first. For one thread."""
        if self.mode != "delta" or self.base is None:
            return ()
        return keys(self._saves.earlier(path), self.base.blobs)


class FileCoding:
    """How one file's pieces are coded. May be shared by threads; owns descriptors until `close`."""

    def __init__(self, coding: Coding, tree: Tree, path: bytes, before: Entry | None, pages: FilePages | None) -> None:
        """`before` is the base snapshot's entry of the same path."""
        self._coding, self._path, self._before, self._pages = coding, path, before, pages
        self._blobs = coding.base.blobs if coding.base is not None else ()
        self._lock = threading.Lock()
        self._opened: list[tuple[int, Entry]] = []
        self._earlier: dict[int, _Earlier] | None = None
        for entry in coding.earlier(path):
            with suppress(OSError):
                fd, status = open_file(tree, entry.path)
                if status.st_size == entry.size:
                    self._opened.append((fd, entry))
                else:
                    os.close(fd)

    def close(self) -> None:
        """Close what was opened; more than once does no harm."""
        while self._opened:
            os.close(self._opened.pop()[0])

    def cut(self, fd: int, size: int) -> Cuts:
        """Where the file is cut: along its tensors, else as it was cut before and at what was appended."""
        found = cuts(fd, size)
        if found.keys or self._before is None:
            return found
        return _as_before(self._before, self._blobs, size) or found

    def plain(self, cut: Cuts, piece: int) -> bool:
        """Whether a piece is stored as it is, without a look at it."""
        return self._coding.mode == "raw" and bool(cut.key(piece))

    def saw(self, cut: Cuts, piece: int, name: bytes, data: memoryview) -> None:
        """A piece of a file without tensors was read."""
        if self._pages is None or cut.key(piece):
            return
        offset = cut.starts[piece]
        self._pages.saw(offset, name, data)
        number = self._at(offset)
        if number == NO_BASE or self._blobs[number].digest != name:
            return
        if (base := self._blobs[number].base) != NO_BASE:  # unchanged, and a patch already
            self._pages.patched(offset, self._blobs[base].digest)

    def encode(self, cut: Cuts, piece: int, data: memoryview) -> Coded:
        """Code a piece that is not in the store; good until this thread's next call."""
        level = self._coding.level
        if (patch := self._patch(cut.starts[piece], data)) is not None:
            return patch
        found = self._of_earlier(cut, piece, data.nbytes)
        before = self._read(found) if found is not None else None
        how, parts = codec.encode(data, level=level, width=cut.width(piece), base=before)
        if found is not None and codec.needs_base(how):
            return Coded(how, parts, found.blob, self._blobs[found.blob].digest)
        return Coded(how, parts)

    # ---------------------------------------------------------------------------------------- the same file before

    def settled(self) -> None:
        """All of the file was read."""
        if self._pages is not None:
            self._pages.settled()

    def _at(self, offset: int) -> int:
        """The number of the blob that the base snapshot has at `offset` of this file, or `NO_BASE`."""
        extents = self._before.extents if self._before is not None else ()
        at = bisect_left(extents, offset, key=lambda extent: extent.offset)
        if at == len(extents) or extents[at].offset != offset or extents[at].inner:
            return NO_BASE
        return extents[at].blob

    def _patch(self, offset: int, data: memoryview) -> Coded | None:
        """The pages that differ from what was here, if they are few."""
        number = self._at(offset)
        if self._pages is None or number == NO_BASE:
            return None
        if self._blobs[number].base != NO_BASE:
            number = self._blobs[number].base
        blob = self._blobs[number]
        old, new = self._pages.known(blob.digest), self._pages.seen(offset)
        if old is None or new is None:
            return None
        parts = codec.encode_patch(data, new, old, blob.raw, level=self._coding.level)
        if parts is None:
            return None
        self._pages.patched(offset, blob.digest)
        return Coded(codec.PATCH, parts, number, blob.digest)

    # ------------------------------------------------------------------------------------------------ earlier saves

    def _of_earlier(self, cut: Cuts, piece: int, length: int) -> _Earlier | None:
        with self._lock:
            if self._earlier is None:
                self._earlier = self._lined_up(cut)
        found = self._earlier.get(piece)
        return found if found is not None and self._blobs[found.blob].raw == length else None

    def _lined_up(self, cut: Cuts) -> dict[int, _Earlier]:
        found: dict[int, _Earlier] = {}
        for fd, entry in self._opened:
            theirs = cuts(fd, entry.size)
            blobs = {extent.offset: extent.blob for extent in entry.extents if extent.inner == 0}
            for mine, other in lined_up(cut, theirs, _numbers(theirs, blobs)).items():
                offset = theirs.starts[other]
                blob = blobs.get(offset)
                if blob is not None and self._blobs[blob].base == NO_BASE:
                    found.setdefault(mine, _Earlier(fd, offset, blob))
        return found

    def _read(self, earlier: _Earlier) -> memoryview | None:
        """The bytes of an earlier piece, if they are still those that its blob has."""
        blob = self._blobs[earlier.blob]
        space = _room(blob.raw)
        try:
            got = pread_into(earlier.fd, space, earlier.offset)
        except OSError:
            return None
        return space if got == blob.raw and digest(space) == blob.digest else None


class _Mine(threading.local):
    """A thread's room for the bytes of one base."""

    space = bytearray()


_mine = _Mine()


def _room(length: int) -> memoryview:
    if len(_mine.space) < length:
        _mine.space = bytearray(max(length, CHUNK))
    return memoryview(_mine.space)[:length]


def _numbers(cut: Cuts, offsets: Iterable[int]) -> Iterator[int]:
    """The numbers of the pieces that begin at `offsets`: not of those in holes, of which there may be very many."""
    for offset in offsets:
        number = bisect_left(cut.starts, offset)
        if number < len(cut) and cut.starts[number] == offset:
            yield number


def _as_before(before: Entry, blobs: Sequence[Blob], size: int) -> Cuts | None:
    """The cuts of a file that was cut before and has `size` bytes now; None when it was in no pieces of its own."""
    if size < before.size or before.size == 0:
        return None
    if size - sum(extent.length for extent in before.extents) > _MOST_HOLE:
        return None
    starts: list[int] = []
    end = 0
    for extent in before.extents:
        if extent.inner or extent.length != blobs[extent.blob].raw:
            return None
        starts += _grid(end, extent.offset)
        starts.append(extent.offset)
        end = extent.offset + extent.length
    starts += _grid(end, size)
    return Cuts(size, list(_short(_joined(starts), size)))


def _grid(start: int, end: int) -> Iterable[int]:
    """Where the part from `start` to `end` is cut: at its start, and at multiples of `CHUNK`."""
    if start < end:
        yield start
        yield from range((start // CHUNK + 1) * CHUNK, end, CHUNK)


def _joined(starts: list[int]) -> list[int]:
    """`starts` without those inside a chunk that has too many of them."""
    kept: list[int] = []
    at = 0
    while at < len(starts):
        chunk = starts[at] // CHUNK
        end = bisect_left(starts, (chunk + 1) * CHUNK, at)
        kept += starts[at : at + 1] if end - at >= _APPENDS else starts[at:end]
        at = end
    return kept


def _short(starts: list[int], size: int) -> Iterator[int]:
    """`starts`, and more where a piece of the `size` bytes would be longer than it may be."""
    for start, following in zip(starts, [*starts[1:], size], strict=True):
        yield from range(start, following, CHUNK)
