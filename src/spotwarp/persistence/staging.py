"""A directory in which a restore is prepared, and the mark that says what it is to become and whether it is whole.

`<staging>` holds the tree, `<staging>.wanted` beside it the entries it is being filled with; the mark is renamed to
`<staging>.ready` once every byte has been verified and is on the disk. Only a ready staging may be installed (I2).
Nothing is ever written through a link, and a directory without a mark is never emptied: it is not ours.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from spotwarp import system
from spotwarp.errors import CorruptObject, UnsupportedFormat, WorkspaceFault
from spotwarp.persistence.beneath import (
    ELSEWHERE,
    PastCache,
    Tree,
    ancestors,
    begin_writeback,
    remove,
    reserve,
    split,
    sync_filesystem,
)
from spotwarp.persistence.entries import is_whole
from spotwarp.persistence.manifest import DIRECTORY, FILE, SYMLINK, Entry, Manifest, decode, encode, tabled
from spotwarp.persistence.store.api import Buffer
from spotwarp.persistence.table import Table

_RESERVE: Final = 1 << 20
"""Files from this size on get their blocks ahead: it is faster, and a full disk is met before the download."""


_NO_LINKS: Final = frozenset({errno.EMLINK, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_past_cache = PastCache()


def _wanted(staging: Path) -> Path:
    return staging.with_name(staging.name + ".wanted")


def _ready(staging: Path) -> Path:
    return staging.with_name(staging.name + ".ready")


def begin(staging: Path, manifest: Manifest, wanted: Sequence[Entry]) -> bool:
    """Make or take over `staging`; True when it may already hold parts of exactly these entries.

    What an interrupted restore of something else left is removed. Raises `WorkspaceFault` for a directory that holds
    something and has no mark.
    """
    body = encode(msgspec.structs.replace(manifest, entries=wanted, shared=()))
    marks = [path for path in (_ready(staging), _wanted(staging)) if path.exists()]
    if marks and all(_same(path, body) for path in marks):
        with contextlib.suppress(FileNotFoundError):
            _ready(staging).replace(_wanted(staging))
        staging.mkdir(parents=True, exist_ok=True)
        return True
    if marks:
        discard(staging)
    elif staging.exists() and any(staging.iterdir()):
        raise WorkspaceFault(
            f"{staging} is not empty and was not left by a restore", hint="Move it away, or restore to another place."
        )
    staging.parent.mkdir(parents=True, exist_ok=True)
    _write(_wanted(staging), body)
    staging.mkdir(exist_ok=True)
    return False


def finish(staging: Path, *, sync: bool) -> None:
    """Declare `staging` whole; with `sync`, only after all of it is on the disk."""
    if sync:
        sync_filesystem(staging)
    _wanted(staging).replace(_ready(staging))
    _sync_directory(staging.parent)


def ready(staging: Path) -> Table[Entry] | None:
    """The entries that a whole `staging` is to become; None when there is none, or it is not whole."""
    try:
        return tabled(decode(_ready(staging).read_bytes(), "the mark of a restore").entries)
    except (FileNotFoundError, CorruptObject, UnsupportedFormat):
        return None


def discard(staging: Path) -> None:
    """Remove `staging` and its marks, whatever state it is in; absent is fine."""
    if staging.is_dir():
        remove(staging)
    for path in (_ready(staging), _wanted(staging)):
        path.unlink(missing_ok=True)


def _same(path: Path, body: bytes) -> bool:
    """Whether a mark says `body`."""
    return path.stat().st_size == len(body) and path.read_bytes() == body


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | system.CLOEXEC, 0o600)
    try:
        _write_at(fd, data, 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(path)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | system.DIRECTORY | system.CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lay_out(tree: Tree, entries: Iterable[Entry]) -> None:
    """Make every directory, and every file that is not written in one go at its full length (holes stay holes)."""
    made: set[bytes] = {b""}
    for entry in entries:
        lowest = entry.path if entry.kind == DIRECTORY else split(entry.path)[0]
        if lowest not in made:
            for above in (*ancestors(lowest), lowest):
                if above not in made:
                    tree.directory(above, make=True)
                    made.add(above)
        if entry.kind == FILE and not is_whole(entry):
            _lay_out_file(tree, entry)


def _lay_out_file(tree: Tree, entry: Entry) -> None:
    fd = _open_to_write(tree, entry.path, 0)
    try:
        if os.fstat(fd).st_size != entry.size:
            os.ftruncate(fd, 0)
            dense = sum(extent.length for extent in entry.extents) == entry.size
            if not (dense and entry.size >= _RESERVE and reserve(fd, entry.size)):
                os.ftruncate(fd, entry.size)
        if not entry.extents:
            _settle(fd, entry)
    finally:
        os.close(fd)


def _open_to_write(tree: Tree, path: bytes, flags: int) -> int:
    flags |= os.O_WRONLY | os.O_CREAT
    try:
        return tree.open(path, flags)
    except PermissionError:  # an interrupted restore had given it its mode already, and that is read-only
        found = tree.lstat(path)
        if found is None or not stat.S_ISREG(found.st_mode):
            raise
        fd, name = tree.locate(path)
        os.chmod(name, 0o600, dir_fd=fd)
        return tree.open(path, flags)


class Writer:
    """Puts content into the files of a staging; each thread has one of its own."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._granted: int | None = None
        """The permission bits that a new file here gets when it asks for all: what the umask and access lists leave."""

    def whole(self, entry: Entry, data: Buffer) -> None:
        """Write a file in one go, with its mode and times."""
        fd, has_mode = self._made(entry)
        try:
            _write_at(fd, data, 0)
            if has_mode:
                os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
            else:
                _settle(fd, entry)
        finally:
            os.close(fd)

    def _made(self, entry: Entry) -> tuple[int, bool]:
        """The empty file's descriptor, and whether it was made with its mode: a system call less for each file."""
        mode = entry.mode & 0o7777
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            fd = self._tree.open(entry.path, flags, 0o777 if self._granted is None else mode & 0o777)
        except FileExistsError:  # an interrupted restore made it
            return _open_to_write(self._tree, entry.path, os.O_TRUNC), False
        if self._granted is None:
            self._granted = os.fstat(fd).st_mode & 0o777
            return fd, False
        return fd, not mode & ~self._granted

    def part(self, entry: Entry, data: Buffer, offset: int, *, soon: bool = True) -> None:
        """Write a piece of a file that was laid out; `settle` it after its last piece.

        What is read `soon` stays in memory, and the disk begins with it at once; the rest goes past the page cache.
        """
        fd = _open_to_write(self._tree, entry.path, 0)
        try:
            view = memoryview(data)
            done = 0 if soon else _past_cache.write(fd, view, offset)
            _write_at(fd, view[done:], offset + done)
            if soon and view.nbytes >= _RESERVE:
                begin_writeback(fd, offset, view.nbytes)
        finally:
            os.close(fd)


def _write_at(fd: int, data: Buffer, offset: int) -> None:
    written = os.pwrite(fd, data, offset)
    view = memoryview(data)
    while written < view.nbytes:
        view, offset = view[written:], offset + written
        written = os.pwrite(fd, view, offset)


def settle(tree: Tree, entries: Iterable[Entry], *, passable: bool = False) -> None:
    """Set the modes and times of files and directories that are in place; `entries` come deepest first.

    With `passable`, directories stay open to their owner: a restore goes on inside them. What is absent, of another
    kind by now, or closed to us is left alone.
    """
    for entry in entries:
        if entry.kind == SYMLINK:
            continue
        flags = os.O_RDONLY | system.NONBLOCK | (system.DIRECTORY if entry.kind == DIRECTORY else 0)
        try:
            fd = tree.open(entry.path, flags)
        except OSError as error:
            if error.errno not in ELSEWHERE:
                raise
            continue
        try:
            _settle(fd, entry, 0o700 if passable and entry.kind == DIRECTORY else 0)
        finally:
            os.close(fd)


def _settle(fd: int, entry: Entry, also: int = 0) -> None:
    os.fchmod(fd, entry.mode & 0o7777 | also)
    os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))


def link_files(tree: Tree, links: Mapping[bytes, bytes]) -> int:
    """Give files that are in place and settled their further names; returns how many had to become copies.

    A file system without hard links, or one that has enough of them to this file, gets a copy.
    """
    copies = 0
    for path, first in links.items():
        have, wanted = tree.lstat(path), tree.lstat(first)
        if have is not None and wanted is not None and (have.st_dev, have.st_ino) == (wanted.st_dev, wanted.st_ino):
            continue
        with _at(tree, split(first)[0]) as source, _at(tree, split(path)[0]) as target:
            old, name = split(first)[1], split(path)[1]
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=target)
            try:
                os.link(old, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                _copy(tree, first, path)
                copies += 1
    return copies


@contextlib.contextmanager
def _at(tree: Tree, directory: bytes) -> Iterator[int]:
    """A directory's descriptor that is good for as long as this lasts, whatever else is asked for."""
    fd = os.dup(tree.directory(directory))
    try:
        yield fd
    finally:
        os.close(fd)


def _copy(tree: Tree, first: bytes, path: bytes) -> None:
    """A second file with the content, the holes, the mode and the times of another."""
    with contextlib.ExitStack() as opened:
        source = tree.open(first, os.O_RDONLY)
        opened.callback(os.close, source)
        target = _open_to_write(tree, path, os.O_EXCL)
        opened.callback(os.close, target)
        about = os.fstat(source)
        os.ftruncate(target, about.st_size)
        at = 0
        while at < about.st_size:
            try:
                at = os.lseek(source, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # nothing but a hole from here on
                    raise
                break
            part = os.pread(source, _RESERVE, at)
            _write_at(target, part, at)
            at += len(part)
        os.fchmod(target, stat.S_IMODE(about.st_mode))
        os.utime(target, ns=(about.st_mtime_ns, about.st_mtime_ns))


def link(tree: Tree, entries: Iterable[Entry]) -> None:
    """Make the symbolic links, after everything that is written: nothing can be led through one."""
    for entry in entries:
        if entry.kind != SYMLINK:
            continue
        fd, name = tree.locate(entry.path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=fd)
        os.symlink(entry.target, name, dir_fd=fd)
        os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=fd, follow_symlinks=False)
