"""A live directory seen once: every entry with its status, nothing opened but directories.

Walks by descriptors, one name at a time, so that neither PATH_MAX nor a link put in the way matters, and in the order
of the paths, so that a million entries go straight into a table. Types come from lstat alone: special files are named
as skipped and never opened, links are links. What cannot be read is named with its reason; what vanishes meanwhile is
no news. Never reads a file's content.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import Final, Protocol

import msgspec

from spotwarp import system
from spotwarp.errors import WorkspaceFault
from spotwarp.persistence.beneath import Tree
from spotwarp.persistence.manifest import DIRECTORY, FILE, SYMLINK, Skipped
from spotwarp.persistence.table import Table, TableBuilder

_DIRECTORY: Final = os.O_RDONLY | system.DIRECTORY | system.NOFOLLOW | system.CLOEXEC
_VANISHED: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
OURS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Failures of this process, not of a path: skipping on would silently drop half a workspace."""
_CODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
_OPEN: Final = 64
"""Directories kept open on the way down; deeper trees reopen their upper ones on the way back."""
_TELL_EVERY: Final = 1024
"""Entries between two calls of `on_progress` within one directory."""

_KINDS: Final = {stat.S_IFREG: FILE, stat.S_IFDIR: DIRECTORY, stat.S_IFLNK: SYMLINK}
"""The manifest's numbers for types; of special files there are none."""
_SPECIAL: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Scanned(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One file, directory or link, as lstat saw it."""

    path: bytes
    kind: int
    """`manifest.FILE`, `DIRECTORY` or `SYMLINK`."""
    mode: int
    """Permission bits."""
    mtime_ns: int
    ctime_ns: int
    size: int
    """Bytes of a file; 0 for the others."""
    ino: int
    dev: int
    blocks: int
    """512-byte blocks that the file system says it spends."""
    target: bytes = b""
    """Of a link."""
    nlink: int = 1
    """Names of a file, those outside the workspace included."""


class Scan(msgspec.Struct, frozen=True):
    """What one walk saw, in the order of the paths' bytes."""

    entries: Table[Scanned]
    skipped: list[Skipped]
    unreadable: frozenset[bytes]
    """Those of `skipped` that should have been read; the others are special files."""
    fs_time_ns: int
    """The file system's own clock just before the walk, or 0 when it could not be had."""
    root: tuple[int, int]
    """Device and inode of the workspace."""
    several: frozenset[int] = frozenset()
    """Hashes of the device and inode of files that have several names in the workspace; see `names_hash`."""


class ExcludeRule(Protocol):
    """Decides what a walk leaves out; see `excludes.Excludes`."""

    def excluded(self, path: bytes, is_dir: bool) -> bool:
        """Whether `path` is left out, given that its directory is not."""
        ...

    def reason(self, path: bytes, is_dir: bool) -> str:
        """What the snapshot is to say of a path that is left out; empty: nothing."""
        ...

    def may_exclude(self, directory: bytes, names: Sequence[str]) -> bool:
        """Whether any of `names` in `directory` may be left out; False is certain."""
        ...


def scan(root: Path, excludes: ExcludeRule, *, on_progress: Callable[[int], None] | None = None) -> Scan:
    """Everything beneath `root` that `excludes` leaves in; `on_progress` gets the number of entries so far.

    Raises `WorkspaceFault` when `root` is missing, unreadable or was replaced meanwhile, or when this process runs out
    of descriptors or memory.
    """
    try:
        with Tree(root) as tree:
            top = os.fstat(tree.directory(b""))
            walk = _Walk(tree, excludes, on_progress)
            fs_time_ns = _fs_time_ns(tree.directory(b""))
            walk.run()
        now = root.stat()
    except OSError as error:
        raise WorkspaceFault(
            f"the workspace {root} cannot be read: {error.strerror}", hint="Is it there, mounted and readable?"
        ) from error
    if (now.st_dev, now.st_ino) != (top.st_dev, top.st_ino):
        raise WorkspaceFault(
            f"the workspace {root} was replaced while it was being read", hint="Start again in the new one."
        )
    walk.skipped.sort(key=lambda skipped: skipped.path)
    return Scan(
        walk.entries.table(),
        walk.skipped,
        frozenset(walk.unreadable),
        fs_time_ns,
        (top.st_dev, top.st_ino),
        frozenset(walk.several),
    )


def names_hash(entry: Scanned) -> int:
    """What all names of one file share."""
    return hash((entry.dev, entry.ino))


class _Level:
    """One directory on the way: its descriptor (-1 while closed), and what in it is still to be seen."""

    def __init__(self, fd: int, path: bytes) -> None:
        self.fd = fd
        self.path = path
        self.names: list[bytes] = []
        """Still to be looked at; the next one is the last."""
        self.below: list[bytes] = []
        """A heap of the directories seen, each with a slash: where their content sorts among the names."""
        self.whole = False
        """Nothing in it is excluded."""

    def descent_due(self) -> bool:
        """Whether the next path in order lies in a directory seen already, and is no name of this one."""
        return bool(self.below) and (not self.names or self.below[0] < self.names[-1])


class _Walk:
    """Depth first, without recursion: a tree may be deeper than Python's stack and than the descriptors allowed."""

    def __init__(self, tree: Tree, excludes: ExcludeRule, on_progress: Callable[[int], None] | None) -> None:
        self.entries = TableBuilder(Scanned)
        self.skipped: list[Skipped] = []
        self.unreadable: list[bytes] = []
        self.several: set[int] = set()
        self._once: set[int] = set()
        self._tree = tree
        self._excludes = excludes
        self._on_progress = on_progress

    def run(self) -> None:
        """Visit everything; the root's own failure is raised."""
        levels = [_Level(os.dup(self._tree.directory(b"")), b"")]
        try:
            self._list(levels[0])
            while levels:
                self._step(levels)
        finally:
            for level in levels:
                if level.fd >= 0:
                    os.close(level.fd)

    def _step(self, levels: list[_Level]) -> None:
        """Look at names of the lowest level, or enter a directory of it, or leave it."""
        level = levels[-1]
        if level.descent_due():
            self._descend(levels, level, heappop(level.below)[:-1])
        elif level.names:
            try:
                self._look(level)
            except OSError as error:  # the directory itself was closed to us, or is gone, since it was listed
                self._note(level.path, error)
                level.names.clear()
        else:
            levels.pop()
            if level.fd >= 0:
                os.close(level.fd)

    def _descend(self, levels: list[_Level], level: _Level, name: bytes) -> None:
        path = level.path + b"/" + name if level.path else name
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=self._descriptor(level))
        except OSError as error:
            self._note(path, error)
            return
        levels.append(_Level(fd, path))
        try:
            self._list(levels[-1])
        except OSError as error:
            self._note(path, error)
        if len(levels) > _OPEN and (upper := levels[-_OPEN]).fd >= 0:
            os.close(upper.fd)
            upper.fd = -1
        self._tell()

    def _descriptor(self, level: _Level) -> int:
        if level.fd < 0:
            level.fd = os.dup(self._tree.directory(level.path))
        return level.fd

    def _list(self, level: _Level) -> None:
        """Take in the names of one directory."""
        with os.scandir(level.fd) as listing:
            names = [found.name for found in listing]
        level.whole = not self._excludes.may_exclude(level.path, names)
        level.names = [name.encode(_CODING, _ERRORS) for name in names]
        level.names.sort(reverse=True)

    def _look(self, level: _Level) -> None:
        """Take in entries of one directory, up to where the content of one of them comes next."""
        fd, names, below = self._descriptor(level), level.names, level.below
        prefix = level.path + b"/" if level.path else b""
        add, lstat = self.entries.add, os.stat
        while names and not (below and below[0] < names[-1]):
            name = names.pop()
            where = prefix + name
            try:
                status = lstat(name, dir_fd=fd, follow_symlinks=False)
                kind = _KINDS.get(stat.S_IFMT(status.st_mode))
                if (not level.whole and self._leaves_out(where, kind)) or self._special(where, kind, status.st_mode):
                    continue
                target = os.readlink(name, dir_fd=fd) if kind == SYMLINK else b""
            except OSError as error:
                self._note(where, error)
                continue
            assert kind is not None  # noqa: S101 - special files are done with
            if kind == DIRECTORY:
                heappush(below, name + b"/")
            entry = scanned(where, status, kind, target)
            add(entry)
            if entry.nlink > 1:
                (self.several if names_hash(entry) in self._once else self._once).add(names_hash(entry))
            if not self.entries.count % _TELL_EVERY:
                self._tell()

    def _leaves_out(self, path: bytes, kind: int | None) -> bool:
        """Whether it is excluded; what must be said of that is noted."""
        if not self._excludes.excluded(path, kind == DIRECTORY):
            return False
        if why := self._excludes.reason(path, kind == DIRECTORY):
            self.skipped.append(Skipped(path, why))
        return True

    def _special(self, path: bytes, kind: int | None, mode: int) -> bool:
        """Whether it is neither file nor directory nor link, which is noted."""
        if kind is not None:
            return False
        what = _SPECIAL.get(stat.S_IFMT(mode), "neither file nor directory")
        self.skipped.append(Skipped(path, f"{what}; only files, directories and links are stored"))
        return True

    def _tell(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.entries.count)

    def _note(self, path: bytes, error: OSError) -> None:
        """A path that could not be seen: gone is no news, unreadable is, and what is our own failure is raised."""
        if error.errno in OURS:
            raise error
        if error.errno not in _VANISHED:
            self.skipped.append(Skipped(path, reason(error), unreadable=True))
            self.unreadable.append(path)


def scanned(path: bytes, status: os.stat_result, kind: int, target: bytes = b"") -> Scanned:
    """The entry for a status; `kind` as `manifest` numbers it."""
    return Scanned(
        path,
        kind,
        stat.S_IMODE(status.st_mode),
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_size if kind == FILE else 0,
        status.st_ino,
        status.st_dev,
        status.st_blocks,
        target,
        status.st_nlink if kind == FILE else 1,
    )


def reason(error: OSError) -> str:
    """Why a path is not in the snapshot, in a user's words."""
    return f"cannot be read: {error.strerror or error}"


def _fs_time_ns(root: int) -> int:
    """Now, by the clock that stamps the workspace's files (a server's, on a network file system).

    Taken from an unnamed file, which changes nothing that can be seen; network file systems lack those and get a file
    beneath `.spotwarp/`. 0 when neither can be made: then no file is ever taken as unchanged on the strength of its
    time stamps, which costs reading and nothing else.
    """
    for name, flags in ((b".", system.UNNAMED), (b".spotwarp/clock", os.O_CREAT | system.NOFOLLOW)):
        if flags is None:
            continue
        try:
            fd = os.open(name, flags | os.O_WRONLY | system.CLOEXEC, 0o600, dir_fd=root)
        except OSError:
            continue
        try:
            os.utime(fd)
            return os.fstat(fd).st_mtime_ns
        finally:
            os.close(fd)
    return 0
