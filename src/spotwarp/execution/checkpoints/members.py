"""The files of one checkpoint directory: listed, told apart, opened to be read.

Owns every file descriptor of this package. Only regular files are opened, never a FIFO or a device; a link is judged
through its target if that is a regular file inside the workspace, and is a fault otherwise, because a machine that
restores the workspace would not have it. Nothing is written.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from spotwarp import system

MAX_FILES = 100_000
MAX_DEPTH = 16

Signature = tuple[tuple[bytes, int, int, int, int], ...]
"""Of every file below a directory: name, size in bytes, mtime and ctime in ns, inode."""


class Unsound(Exception):
    """A file or a directory is not what it must be; the text is the reason and names it."""


@dataclass(frozen=True, slots=True)
class Member:
    """One file; `name` is relative to the checkpoint and safe to print only through `show`."""

    name: str
    path: bytes
    size: int
    fault: str = ""
    """Why it cannot be read as a file; empty if it can."""


@dataclass(frozen=True, slots=True)
class Source:
    """An open file of known size; reads are exact or a fault."""

    name: str
    size: int
    descriptor: int

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes at `offset`. Raises `Unsound` if the file has no such bytes."""
        parts = []
        while length > 0:
            try:
                part = os.pread(self.descriptor, length, offset)
            except OSError as error:
                raise Unsound(f"{show(self.name)} cannot be read: {error.strerror}") from error
            if not part:
                raise Unsound(f"{show(self.name)} is cut short")
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return b"".join(parts)

    def hole(self) -> int | None:
        """Where the first range that was never written starts; None if the file system knows of none."""
        try:
            start = os.lseek(self.descriptor, 0, os.SEEK_HOLE)
        except OSError:
            return None
        return start if start < self.size else None


def show(name: str) -> str:
    """A name from outside, short and safe to print."""
    text = name if name.isascii() and name.isprintable() else ascii(name)[1:-1]
    return text if len(text) <= 120 else f"{text[:117]}..."


def members(root: Path, path: bytes, *, deep: bool) -> list[Member]:
    """The files of the directory `path` of the workspace `root`, all levels of it if `deep`, in order of name.

    Raises `Unsound` if the directory cannot be listed or is beyond any bound.
    """
    workspace = os.fsencode(root)
    found = []
    for name, full, found_stat in _entries(workspace, path, deep=deep):
        text = name.decode("utf-8", "surrogateescape")
        if stat.S_ISLNK(found_stat.st_mode):
            found.append(_linked(workspace, text, full))
        elif stat.S_ISREG(found_stat.st_mode):
            found.append(Member(text, full, found_stat.st_size))
        else:
            found.append(Member(text, full, 0, "is not a regular file"))
    return sorted(found, key=lambda member: member.name)


def seen(root: Path, path: bytes) -> Signature:
    """What `stat` says of every file of the directory; two equal answers some time apart are a quiet directory.

    Empty for a directory that is empty, absent or unreadable.
    """
    try:
        found = list(_entries(os.fsencode(root), path, deep=True))
    except Unsound:
        return ()
    return tuple(sorted((n, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for n, _, s in found))


@contextmanager
def opened(member: Member) -> Iterator[Source]:
    """The member's bytes. Raises `Unsound` if it cannot be opened or is not a regular file."""
    if member.fault:
        raise Unsound(f"{show(member.name)} {member.fault}")
    # O_NONBLOCK: should a FIFO have taken the name since it was listed, opening it must not wait for a writer.
    flags = os.O_RDONLY | system.NONBLOCK | system.NOFOLLOW | system.CLOEXEC
    try:
        descriptor = os.open(member.path, flags)
    except FileNotFoundError as error:
        raise Unsound(f"{show(member.name)} vanished while it was read") from error
    except OSError as error:
        raise Unsound(f"{show(member.name)} cannot be read: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Unsound(f"{show(member.name)} is not a regular file")
        yield Source(member.name, found.st_size, descriptor)
    finally:
        os.close(descriptor)


def _entries(workspace: bytes, path: bytes, *, deep: bool) -> Iterator[tuple[bytes, bytes, os.stat_result]]:
    """Name, path and `lstat` of every file; what vanishes meanwhile is left out."""
    base = os.path.join(workspace, path)  # noqa: PTH118 - bytes: names need not be text
    pending = [(b"", 0)]
    count = 0
    while pending:
        here, depth = pending.pop()
        for leaf, full, found in _listed(os.path.join(base, here)):  # noqa: PTH118
            name = os.path.join(here, leaf)  # noqa: PTH118
            if not stat.S_ISDIR(found.st_mode):
                count += 1
                yield name, full, found
            elif deep:
                pending.append((name, depth + 1))
            if count + len(pending) > MAX_FILES or depth > MAX_DEPTH:
                raise Unsound(f"it has more than {MAX_FILES} files or {MAX_DEPTH} levels of folders")


def _listed(directory: bytes) -> list[tuple[bytes, bytes, os.stat_result]]:
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in islice(entries, MAX_FILES + 1):
                with suppress(FileNotFoundError):
                    found.append((entry.name, entry.path, entry.stat(follow_symlinks=False)))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Unsound("the directory vanished while it was read") from error
    except OSError as error:
        raise Unsound(f"the directory cannot be read: {error.strerror}") from error
    return found


def _linked(workspace: bytes, name: str, full: bytes) -> Member:
    home = os.path.realpath(workspace)
    target = os.path.realpath(full)
    try:
        found = os.lstat(target)
    except OSError:
        return Member(name, full, 0, "is a link to nothing")
    if not target.startswith(os.path.join(home, b"")):  # noqa: PTH118
        return Member(name, full, 0, "is a link out of the workspace")
    if not stat.S_ISREG(found.st_mode):
        return Member(name, full, 0, "is not a regular file")
    return Member(name, target, found.st_size)
