"""Does what is on disk equal what a snapshot says? By content only: sizes and times are never taken as proof.

`holds` and `hash_local` read; `plan` is pure. Nothing here writes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spotwarp import system
from spotwarp.persistence.beneath import ELSEWHERE, Tree
from spotwarp.persistence.envelope import digest
from spotwarp.persistence.manifest import DIRECTORY, FILE, SYMLINK, Blob, Entry, Extent
from spotwarp.persistence.store.api import Buffer

_STEP: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class LocalFile:
    """What is at a path of the workspace now: its kind, size in bytes, link target.

    `holds` says whether a file's content equals an entry's; it is asked only when kind and size agree.
    """

    kind: int
    size: int = 0
    target: bytes = b""
    holds: Callable[[Entry], bool] = lambda _: False


@dataclass(frozen=True, slots=True)
class Plan:
    """What separates a workspace from a snapshot."""

    keep: tuple[Entry, ...]
    """Already here with the same content (mode and times may differ)."""
    fetch: tuple[Entry, ...]
    """Of the snapshot and not here, or here with other content."""
    differing: tuple[bytes, ...]
    """Paths of `fetch` that are here with other content or of another kind."""
    gone: tuple[bytes, ...]
    """Here, not in the snapshot, and `tracked`: the run knew them and dropped them."""
    extra: tuple[bytes, ...]
    """Here, not in the snapshot, and never tracked: this workspace's own work."""


def plan(entries: Sequence[Entry], local: Mapping[bytes, LocalFile], tracked: Container[bytes]) -> Plan:
    """Compare a snapshot's `entries` with what is here.

    `tracked` holds the paths of the snapshot that the workspace came from.
    """
    keep: list[Entry] = []
    fetch: list[Entry] = []
    for entry in entries:
        found = local.get(entry.path)
        (keep if found is not None and _same(entry, found) else fetch).append(entry)
    known = {entry.path for entry in entries}
    alone = sorted(path for path in local if path not in known)
    return Plan(
        tuple(keep),
        tuple(fetch),
        tuple(entry.path for entry in fetch if entry.path in local),
        tuple(path for path in alone if path in tracked),
        tuple(path for path in alone if path not in tracked),
    )


def _same(entry: Entry, found: LocalFile) -> bool:
    if entry.kind != found.kind:
        return False
    if entry.kind == FILE:
        return entry.size == found.size and found.holds(entry)
    return entry.kind == DIRECTORY or entry.target == found.target


def hash_local(root: Path, entry: Entry, blobs: Sequence[Blob]) -> bool:
    """Whether what is at `entry.path` beneath `root` is exactly `entry`: kind, target, every byte of its content."""
    with Tree(root) as tree:
        return matches(tree, entry, blobs)


def matches(tree: Tree, entry: Entry, blobs: Sequence[Blob]) -> bool:
    """See `hash_local`. What cannot be read does not match."""
    try:
        return _matches(tree, entry, blobs)
    except OSError as error:
        if error.errno not in ELSEWHERE:
            raise
        return False


def _matches(tree: Tree, entry: Entry, blobs: Sequence[Blob]) -> bool:
    found = tree.lstat(entry.path)
    if found is None:
        return False
    if entry.kind == DIRECTORY:
        return stat.S_ISDIR(found.st_mode)
    if entry.kind == SYMLINK:
        fd, name = tree.locate(entry.path)
        return stat.S_ISLNK(found.st_mode) and os.readlink(name, dir_fd=fd) == entry.target
    if not stat.S_ISREG(found.st_mode) or found.st_size != entry.size:
        return False
    fd = tree.open(entry.path, os.O_RDONLY | system.NONBLOCK)
    try:
        return len(holds(fd, entry, blobs)) == len(entry.extents) and _holes(fd, entry)
    finally:
        os.close(fd)


def holds(fd: int, entry: Entry, blobs: Sequence[Blob]) -> list[int]:
    """Which of a file's extents (by number) the open file `fd` already has, byte for byte."""
    return [number for number, _ in pieces(fd, entry, blobs, range(len(entry.extents)))]


def pieces(fd: int, entry: Entry, blobs: Sequence[Blob], numbers: Iterable[int]) -> Iterator[tuple[int, Buffer]]:
    """Those of a file's extents `numbers` that the open file `fd` already has, byte for byte, each with its bytes."""
    for number in numbers:
        extent = entry.extents[number]
        expected = _digest_of(entry, extent, blobs)
        if expected is None or not _has_data(fd, extent):
            continue
        data = _read(fd, extent.offset, extent.length)
        if data is not None and digest(data) == expected:
            yield number, data


def _digest_of(entry: Entry, extent: Extent, blobs: Sequence[Blob]) -> bytes | None:
    """What the extent's bytes must hash to; None when only a part of a blob is known of them."""
    blob = blobs[extent.blob]
    if extent.inner == 0 and extent.length == blob.raw:
        return blob.digest
    return entry.digest if entry.digest and extent.length == entry.size else None


def _has_data(fd: int, extent: Extent) -> bool:
    """Whether the file system has anything but a hole for the extent; saves hashing what was never written."""
    start = _seek(fd, extent.offset, os.SEEK_DATA)
    return start is not None and start < extent.offset + extent.length


def _read(fd: int, offset: int, length: int) -> bytes | None:
    """Exactly these bytes, or None where the file is shorter. A piece is read whole: it was written from memory too."""
    data = os.pread(fd, length, offset)
    while len(data) < length:  # a signal, or more than the system gives at once
        more = os.pread(fd, length - len(data), offset + len(data))
        if not more:
            return None
        data += more
    return data


def _holes(fd: int, entry: Entry) -> bool:
    """Whether what no extent covers reads as zeros."""
    end = 0
    for extent in entry.extents:
        if not _zeros(fd, end, extent.offset):
            return False
        end = extent.offset + extent.length
    return _zeros(fd, end, entry.size)


def _zeros(fd: int, start: int, end: int) -> bool:
    while start < end:
        data = _seek(fd, start, os.SEEK_DATA)
        if data is None or data >= end:
            return True
        part = os.pread(fd, min(end - data, _STEP), data)
        if not part or part.count(0) != len(part):
            return False
        start = data + len(part)
    return True


def _seek(fd: int, offset: int, whence: int) -> int | None:
    try:
        return os.lseek(fd, offset, whence)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole from here on
            return None
        raise
