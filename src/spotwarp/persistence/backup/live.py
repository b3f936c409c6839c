"""Reading a file that somebody may be writing.

A pass reads the bytes between two looks at the status. When both agree, what was read is what the file was. When
not, the file is read again, at most three times; a file that only grows is kept as the prefix of the size first seen,
once two passes agree on it. After the last pass what was read is kept: its length and hashes are those of the bytes
stored, whatever the file has become. Never opens by anything but a descriptor walk, and never follows a link.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from spotwarp import system
from spotwarp.persistence.beneath import Tree
from spotwarp.persistence.content import HOLE, SMALL, Part, joined
from spotwarp.persistence.cuts import Cuts
from spotwarp.persistence.manifest import FILE
from spotwarp.persistence.scan import Scanned, scanned

PASSES: Final = 4
"""One reading and three more."""
SPAN: Final = 32 << 20
"""Bytes of a big file that one worker reads in a row."""
GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
"""The path is no longer the file that the scan saw."""

Cut = Callable[[int, int], Cuts]
"""Says where a file is cut, by its descriptor and its length in bytes."""

# A FIFO put in a file's place must not block the open.
_FLAGS: Final = os.O_RDONLY | system.NONBLOCK


def open_file(tree: Tree, path: bytes) -> tuple[int, os.stat_result]:
    """A descriptor of the regular file `path` and its status. Raises `OSError` (one of `GONE` when it is no file)."""
    fd = tree.open(path, _FLAGS)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.ENOENT, "is no longer a file")
    except OSError:
        os.close(fd)
        raise
    return fd, status


def same(before: os.stat_result, after: os.stat_result) -> bool:
    """Whether nobody wrote between two looks. To lose a name moves the change time, and no byte."""
    if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
        return False
    return before.st_ctime_ns == after.st_ctime_ns or after.st_nlink < before.st_nlink


@dataclass(frozen=True, slots=True)
class SmallContent:
    """A small file as it was read."""

    entry: Scanned
    data: bytes
    stable: bool
    """Whether nobody wrote meanwhile."""


def read_small(tree: Tree, file: Scanned, opened: int | None = None) -> SmallContent:
    """The content of a file that the scan saw below `SMALL`; `opened` is its descriptor, if it has one already.

    Raises `OSError`, one of `GONE` when it vanished.
    """
    fd, before = (opened, os.fstat(opened)) if opened is not None else open_file(tree, file.path)
    try:
        # What has outgrown a bundle meanwhile is kept as far as the scan saw it.
        length = before.st_size if before.st_size < SMALL else file.size
        previous: bytes | None = None
        for _ in range(PASSES):
            data = _pread(fd, length)
            after = os.fstat(fd)
            stable = same(before, after) and len(data) == length
            if stable or (after.st_size >= before.st_size and data == previous):
                break
            previous, before, length = data, after, min(length, after.st_size)
        return SmallContent(_entry(file.path, before, len(data)), data, stable)
    finally:
        os.close(fd)


class BigContent:
    """A big file while it is read, in spans, perhaps by several threads; owns its descriptor until `close`."""

    def __init__(self, tree: Tree, file: Scanned, cut: Cut, opened: int | None = None) -> None:
        """`cut` says where the file is cut; `opened` is its descriptor, if it has one already.

        Raises `OSError`, one of `GONE` when the file vanished.
        """
        self.path = file.path
        self.fd, self._before = (opened, os.fstat(opened)) if opened is not None else open_file(tree, file.path)
        self._cut = cut
        self.cuts = cut(self.fd, self._before.st_size)
        self.stable = False
        self.error: OSError | None = None
        """Why the file cannot be read, if it cannot."""
        self._lock = threading.Lock()
        self._previous: dict[int, bytes] | None = None
        self._passes = 0
        self._end = self._left = 0
        try:
            self._start()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptor; more than once does no harm."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def took(self, piece: int, digest: bytes, got: int) -> None:
        """Piece number `piece` was read: `got` bytes of it, with this digest (zeros: a hole)."""
        if digest != HOLE:
            self._digests[piece] = digest
        if got < self.cuts.length(piece):
            with self._lock:
                self._end = min(self._end, self.cuts.starts[piece] + got)

    def span_done(self) -> bool:
        """One of the first pass's `spans` was dealt with; True for the last of them."""
        with self._lock:
            self._left -= 1
            return self._left == 0

    def settled(self) -> bool:
        """After a pass: whether what was read can be kept. If not, all `spans` must be read again."""
        after = os.fstat(self.fd)
        digests = self._digests
        length = self.cuts.size
        self.stable = same(self._before, after) and self._end == length
        self._passes += 1
        grown = after.st_size >= self._before.st_size and digests == self._previous
        if self.stable or grown or self._passes == PASSES:
            return True
        self._previous, self._before = digests, after
        if after.st_size < length:
            self.cuts, self._previous = self._cut(self.fd, after.st_size), None
        self._start()
        return False

    def content(self) -> tuple[Scanned, bytes]:
        """The entry and the digests of what was read and settled."""
        size = min(self._end, self.cuts.size)
        parts = list(self._parts(size))
        # What has shrunk to a small file meanwhile is named like one, where its digest is known.
        digests = parts[0][1] if size < SMALL and len(parts) == 1 and parts[0][1] != HOLE else joined(parts)
        return _entry(self.path, self._before, size), digests

    def _parts(self, size: int) -> Iterator[Part]:
        at = 0
        for piece, digest in sorted(self._digests.items()):
            start = self.cuts.starts[piece]
            if start >= size:
                break
            if start > at:
                yield start - at, HOLE
            at = min(start + self.cuts.length(piece), size)
            yield at - start, digest
        if at < size:
            yield size - at, HOLE

    def _start(self) -> None:
        self._digests: dict[int, bytes] = {}
        """By piece; all others are holes, which cost nothing."""
        self._end = self.cuts.size
        self.spans = _spans(self.fd, self.cuts)
        self._left = len(self.spans)


def pread_into(fd: int, view: memoryview, offset: int) -> int:
    """Fill `view` from `offset` of `fd`; gives the bytes read, fewer only at the end of the file."""
    done = 0
    while done < view.nbytes:
        with view[done:] as rest:
            got = os.preadv(fd, [rest], offset + done)
        if got == 0:
            break
        done += got
    return done


def _pread(fd: int, length: int) -> bytes:
    data = os.pread(fd, length, 0)
    while len(data) < length and (more := os.pread(fd, length - len(data), len(data))):
        data += more
    return data


def _entry(path: bytes, status: os.stat_result, size: int) -> Scanned:
    """The entry of what was read: the status before the reading, the size of what was read."""
    entry = scanned(path, status, FILE)
    if entry.size == size:
        return entry
    return msgspec.structs.replace(entry, size=size)


def _spans(fd: int, cuts: Cuts) -> list[range]:
    """The pieces that hold data, in runs of about `SPAN` bytes; one empty run when there are none."""
    spans: list[range] = []
    for first, end in _data(fd, cuts):
        start, size = first, 0
        for piece in range(first, end):
            size += cuts.length(piece)
            if size >= SPAN:
                spans.append(range(start, piece + 1))
                start, size = piece + 1, 0
        if start < end:
            spans.append(range(start, end))
    return spans or [range(0)]


def _data(fd: int, cuts: Cuts) -> Iterator[tuple[int, int]]:
    """Runs of piece numbers with data in them, in order, without overlap."""
    at = done = 0
    while at < cuts.size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
            hole = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # nothing but a hole up to the end
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            start, hole = at, cuts.size  # the file system does not tell: all of it may be data
        if start >= cuts.size:
            return
        first = max(bisect_right(cuts.starts, start) - 1, done)
        end = bisect_left(cuts.starts, min(hole, cuts.size))
        if first < end:
            yield first, end
            done = end
        at = max(hole, cuts.starts[end] if end < len(cuts) else cuts.size)
