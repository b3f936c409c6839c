"""What lies beneath one directory, reached by descriptors: never through a symbolic link, never out of it.

Paths are bytes, relative, `/`-separated, of any length: they are walked one name at a time, so neither PATH_MAX nor odd
bytes matter, and a link that somebody puts in the way is an error (ELOOP or ENOTDIR), not a door.
Calls that Python lacks live here as well. All errors are the system's own (`OSError`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from spotwarp import system

_DIRECTORY: Final = os.O_RDONLY | system.DIRECTORY | system.NOFOLLOW | system.CLOEXEC
_OPEN: Final = 32
"""How many directories stay open: enough for a walk in path order, few enough for many threads."""
_PAST_CACHE: Final = 1 << 20
"""Fewer bytes are written faster into the cache."""

ELSEWHERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EACCES})
"""What the system says when a path is not what it was taken for: gone, replaced by something else, closed to us."""


def split(path: bytes) -> tuple[bytes, bytes]:
    """A path's directory (empty at the top) and its last name."""
    head, _, name = path.rpartition(b"/")
    return head, name


def ancestors(path: bytes) -> list[bytes]:
    """The directories above `path`, topmost first, without the root."""
    parts = path.split(b"/")
    above: list[bytes] = []
    for part in parts[:-1]:
        above.append(above[-1] + b"/" + part if above else part)
    return above


class Tree:
    """One thread's view of the directory `root`. Not to be shared between threads; a context manager."""

    def __init__(self, root: Path | int) -> None:
        """`root` is a path (which may itself be reached through links) or a descriptor, which is duplicated."""
        system.require_posix("what reads or writes a workspace")
        if isinstance(root, int):
            self._root = os.dup(root)
        else:
            self._root = os.open(root, os.O_RDONLY | system.DIRECTORY | system.CLOEXEC)
        self._open: OrderedDict[bytes, int] = OrderedDict()

    def __enter__(self) -> Self:
        """See the class."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See `close`."""
        self.close()

    def close(self) -> None:
        """Close every descriptor."""
        self.forget()
        os.close(self._root)

    def forget(self) -> None:
        """Close the directories kept open; needed after one of them was moved or removed."""
        while self._open:
            os.close(self._open.popitem()[1])

    def directory(self, path: bytes, *, make: bool = False) -> int:
        """The descriptor of the directory `path` (empty: the root); with `make`, missing ones are made on the way.

        It is this object's own and good until the next call.
        """
        if not path:
            return self._root
        if (fd := self._open.get(path)) is not None:
            self._open.move_to_end(path)
            return fd
        missing: list[bytes] = []
        while path and path not in self._open:
            path, name = split(path)
            missing.append(name)
        fd = self._open[path] if path else self._root
        for name in reversed(missing):
            path = path + b"/" + name if path else name
            fd = self._enter(fd, name, make=make)
            self._keep(path, fd)
        return fd

    def locate(self, path: bytes, *, make: bool = False) -> tuple[int, bytes]:
        """Where `path` is: its directory's descriptor, good until the next call, and its last name."""
        head, name = split(path)
        return self.directory(head, make=make), name

    def open(self, path: bytes, flags: int, mode: int = 0o600) -> int:
        """A new descriptor of the file `path`, the caller's to close; a link is refused."""
        fd, name = self.locate(path)
        return os.open(name, flags | system.NOFOLLOW | system.CLOEXEC, mode, dir_fd=fd)

    def lstat(self, path: bytes) -> os.stat_result | None:
        """What is at `path` itself, or None."""
        try:
            fd, name = self.locate(path)
            return os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError as error:
            if error.errno not in ELSEWHERE or error.errno == errno.EACCES:
                raise
            return None

    def names(self, path: bytes) -> list[bytes]:
        """What is in the directory `path` now."""
        return [os.fsencode(name) for name in os.listdir(self.directory(path))]  # noqa: PTH208 - by descriptor

    def _enter(self, fd: int, name: bytes, *, make: bool) -> int:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=fd)
        return os.open(name, _DIRECTORY, dir_fd=fd)

    def _keep(self, path: bytes, fd: int) -> None:
        self._open[path] = fd
        if len(self._open) > _OPEN:
            os.close(self._open.popitem(last=False)[1])


def remove(root: Path) -> None:
    """Remove the directory `root` and all beneath it, also where it is deeper than `shutil.rmtree` can go."""
    with Tree(root) as tree:
        waiting: list[tuple[bytes, bool]] = [(b"", False)]
        while waiting:
            path, emptied = waiting.pop()
            if emptied:
                fd, name = tree.locate(path)
                os.rmdir(name, dir_fd=fd)
                continue
            if path:
                waiting.append((path, True))
            fd = tree.directory(path)
            with os.scandir(fd) as found:
                names = [(os.fsencode(item.name), item.is_dir(follow_symlinks=False)) for item in found]
            for name, is_directory in names:
                if is_directory:
                    waiting.append((path + b"/" + name if path else name, False))
                else:
                    os.unlink(name, dir_fd=fd)
    root.rmdir()


def rename_new(source: int, name: bytes, target: int, new: bytes) -> None:
    """Rename `name` in the directory `source` to `new` in `target`, where nothing may be: else `FileExistsError`.

    Where the file system cannot do that at once, an empty directory takes the place first, for a moment.
    """
    if _call("renameat2", source, name, target, new, 1):  # RENAME_NOREPLACE
        return
    os.mkdir(new, dir_fd=target)
    try:
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FileExistsError(errno.EEXIST, "is there by now") from error
        raise


def reserve(fd: int, size: int) -> bool:
    """Give the empty file `fd` `size` bytes of disk and that length; False where the file system cannot.

    `os.posix_fallocate` would write zeros there, which costs as much as the content. Raises ENOSPC and its like.
    """
    return _call("fallocate", fd, 0, ctypes.c_int64(0), ctypes.c_int64(size))


def begin_writeback(fd: int, offset: int, size: int) -> bool:
    """Have the disk begin to write these bytes, and do not wait for it; False where the system cannot.

    It promises nothing, but a sync at the end then finds little left to do.
    """
    write = 2  # SYNC_FILE_RANGE_WRITE
    return _call("sync_file_range", fd, ctypes.c_int64(offset), ctypes.c_int64(size), write)


class PastCache(threading.local):
    """Writes past the page cache: for what nobody here reads soon, and what would push out what somebody does.

    Each thread has memory of its own for it, since a disk takes aligned pages only.
    """

    def __init__(self) -> None:
        self._pages: mmap.mmap | None = None

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        """Write as much of `data` as can be and pays; gives the bytes written, 0 where the file system forbids it.

        The rest is the common write's, which has the last word on errors too.
        """
        whole = data.nbytes // mmap.PAGESIZE * mmap.PAGESIZE
        if not hasattr(os, "O_DIRECT"):
            return 0
        import fcntl

        if whole < _PAST_CACHE or offset % mmap.PAGESIZE:
            return 0
        if self._pages is None or len(self._pages) < whole:
            self._pages = mmap.mmap(-1, whole)
        self._pages[:whole] = data[:whole]
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        done = 0
        with contextlib.suppress(OSError), memoryview(self._pages) as pages:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
            while done < whole and done % mmap.PAGESIZE == 0:
                done += os.pwrite(fd, pages[done:whole], offset + done)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        return done


def sync_filesystem(path: Path) -> None:
    """Return once everything written so far to the file system of `path` is on its disk."""
    fd = os.open(path, os.O_RDONLY | system.DIRECTORY | system.CLOEXEC)
    try:
        if not _call("syncfs", fd):
            os.sync()
    finally:
        os.close(fd)


@functools.cache
def _function(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None, use_errno=True), name, None)


def _call(name: str, *arguments: object) -> bool:
    """Call the C library's `name`; False when it, the kernel or the file system does not have it."""
    function = _function(name)
    if function is None:
        return False
    while function(*arguments) != 0:
        code = ctypes.get_errno()
        if code in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            return False
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
    return True
