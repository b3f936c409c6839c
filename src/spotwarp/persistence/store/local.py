"""A directory as a store: a disk, a shared file system. Durable on return, and never half an object under its name.

Owns the order write → fsync → link or rename → fsync of the directory, which is what I1 stands on: whoever changes it
must say what a power cut between any two steps leaves. Create-if-absent is `link(2)`, so that the name appears with
its whole content or not at all. Temporary files live in `.tmp` beside the objects and are never listed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from spotwarp import system
from spotwarp.clock import Clock, Rng
from spotwarp.errors import (
    AlreadyExists,
    BucketMissing,
    CorruptObject,
    ObjectMissing,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnsupported,
)
from spotwarp.persistence.store.api import Buffer, ObjectMeta, checked_key
from spotwarp.system import require_posix

TEMPORARY = ".tmp"
STALE_S = 24 * 3600.0
_PAGE = 4096
_DIRECT = 1 << 20
"""Objects from this size on are packs in all but name."""
_NO_LINK = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_UNSUPPORTED = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENAMETOOLONG, errno.EINVAL}
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}
_IN_THE_WAY = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST}


class LocalStore:
    """The directory `root`, made by the first write if its parent exists. Several processes may share it.

    A missing parent is `BucketMissing`: making it could mean writing beside a disk that is not mounted. For the same
    reason a root that vanishes, or comes to be another directory, while this object uses it is `BucketMissing` too.
    """

    def __init__(self, root: Path, *, clock: Clock, rng: Rng) -> None:
        require_posix("a directory as a store")
        self._root = root
        self._clock = clock
        self._rng = rng
        self._lock = threading.Lock()
        self._identity: tuple[int, int] | None = None
        self._durable: set[Path] = set()
        """Directories whose own entry in their parent was synced by this process."""

    @property
    def url(self) -> str:
        """See `Store`."""
        return f"file://{quote(str(self._root))}"

    def put(self, key: str, data: Buffer) -> None:
        """See `Store`."""
        target = self._path(key)
        with self._translated("write", key):
            self._place(target, data, lambda temporary: temporary.rename(target))

    def put_new(self, key: str, data: Buffer) -> None:
        """See `Store`. Raises `StoreUnsupported` on a file system with neither hard links nor exclusive rename."""
        target = self._path(key)
        with self._translated("create", key):
            self._place(target, data, lambda temporary: _create(temporary, target, key))

    def get(self, key: str) -> bytes:
        """See `Store`."""
        with self._opened(key) as (fd, size):
            return _read_exactly(fd, key, 0, size)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `Store`."""
        with self._opened(key) as (fd, size):
            if start + length > size:
                raise CorruptObject(f"{key} has {size} bytes, too few for {start}+{length}")
            return _read_exactly(fd, key, start, length)

    def head(self, key: str) -> ObjectMeta:
        """See `Store`. The store's time is the file system's."""
        with self._translated("read", key):
            found = self._path(key).lstat()
            if not stat.S_ISREG(found.st_mode):
                raise ObjectMissing(f"{key} is not in the store")
            return _meta(key, found)

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """See `Store`."""
        with self._translated("list", prefix):
            if self._checked_root() is None:
                return iter(())
            found = _walk(self._path(prefix) if prefix else self._root, prefix)
            return iter(sorted(found, key=lambda meta: meta.key))

    def delete(self, key: str) -> None:
        """See `Store`. Directories stay: removing one could race with a writer that is about to use it."""
        with self._translated("delete", key):
            try:
                self._path(key).unlink()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self._checked_root()

    def _path(self, key: str) -> Path:
        if checked_key(key).split("/", 1)[0] == TEMPORARY:
            raise ValueError(f"not a key: {key!r}")
        return self._root / key

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, int]]:
        """A descriptor of the object and its size in bytes."""
        path = self._path(key)
        with self._translated("read", key):
            fd = os.open(path, os.O_RDONLY | system.CLOEXEC | system.NONBLOCK)  # of a pipe, O_NONBLOCK returns
            try:
                found = os.fstat(fd)
                if not stat.S_ISREG(found.st_mode):
                    raise ObjectMissing(f"{key} is not in the store")
                yield fd, found.st_size
            finally:
                os.close(fd)

    def _place(self, target: Path, data: Buffer, publish: Callable[[Path], object]) -> None:
        """Write `data` durably to a temporary file, `publish` it under its name, make the name durable."""
        self._prepare()
        for last in (False, True):
            self._make_durable(target.parent)
            temporary = self._root / TEMPORARY / f"{os.getpid()}-{self._rng.token(8)}"
            try:
                _write_synced(temporary, data)
                publish(temporary)
                _sync_directory(target.parent)
                return
            except FileNotFoundError:
                # A directory was removed under us: by somebody who cleans up, or with the whole root.
                self._checked_root()
                self._durable.clear()
                if last:
                    raise
                self._prepare()
            finally:
                with contextlib.suppress(OSError):  # after a rename there is none; a leftover is swept in a day
                    temporary.unlink()

    def _prepare(self) -> None:
        """The root and its temporary directory exist; once per process, stale temporary files are gone."""
        with self._lock:
            if self._checked_root() is None:
                self._root.mkdir(exist_ok=True)
                self._checked_root()
            temporary = self._root / TEMPORARY
            if temporary in self._durable:
                return
            temporary.mkdir(exist_ok=True)
            with contextlib.suppress(PermissionError):  # who may not even look at the parent did not make the root
                _sync_directory(self._root.parent)
            self._sweep(temporary)
            self._durable |= {self._root, temporary}

    def _checked_root(self) -> tuple[int, int] | None:
        """The root's identity, None while there is none. Raises `BucketMissing` when it is not what it was."""
        try:
            found = self._root.stat()
        except (FileNotFoundError, NotADirectoryError):
            if self._identity is not None:
                raise self._missing("has vanished") from None
            if not self._root.parent.is_dir():
                raise self._missing(f"has no parent directory {self._root.parent}") from None
            return None
        if not stat.S_ISDIR(found.st_mode):
            raise self._missing("is not a directory")
        identity = (found.st_dev, found.st_ino)
        if self._identity not in (None, identity):
            raise self._missing("is another directory than before")
        self._identity = identity
        return identity

    def _missing(self, what: str) -> BucketMissing:
        return BucketMissing(f"the store {self._root} {what}", hint="Mount or make the directory, or correct the path.")

    def _make_durable(self, directory: Path) -> None:
        """Make `directory` and its missing parents, and sync each one's entry, also when another process made it."""
        if directory in self._durable or directory == self._root:
            return
        self._make_durable(directory.parent)
        directory.mkdir(exist_ok=True)
        _sync_directory(directory.parent)
        self._durable.add(directory)

    def _sweep(self, directory: Path) -> None:
        """Remove the temporary files of writers that died."""
        oldest = self._clock.wall().timestamp() - STALE_S
        with os.scandir(directory) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # somebody else sweeps too
                    if entry.stat(follow_symlinks=False).st_mtime < oldest:
                        Path(entry.path).unlink()

    @contextmanager
    def _translated(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._translate(error, verb, key) from error

    def _translate(self, error: OSError, verb: str, key: str) -> StoreError:
        what = f"cannot {verb} {key} in {self._root}: {error.strerror or error}"
        if error.errno in _ABSENT:
            try:
                self._checked_root()
            except BucketMissing as missing:
                return missing
            except OSError as deeper:
                return self._translate(deeper, verb, key)
            if verb in ("read", "list"):
                return ObjectMissing(f"{key} is not in the store {self._root}")
        if error.errno in _IN_THE_WAY:
            return StoreUnsupported(what, hint="A directory cannot hold both a and a/b: something else is in there.")
        if error.errno in _FULL:
            return StoreFull(what, hint="Make room on that file system, or raise the quota.")
        if error.errno in _DENIED:
            return StoreDenied(what, hint=f"Give this user write access to {self._root}.")
        if error.errno in _UNSUPPORTED:
            return StoreUnsupported(what, hint="Use a store on a file system that can do it.")
        return StoreUnavailable(what, hint="Check the disk or the file server.")


def _write_synced(path: Path, data: Buffer) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | system.CLOEXEC, 0o666)
    try:
        rest = memoryview(data).cast("B")
        rest = rest[_write_directly(fd, rest) :]
        while rest:
            rest = rest[os.write(fd, rest) :]  # slices of the view: a pack is never copied
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_directly(fd: int, data: memoryview) -> int:
    """Write whole pages of `data` past the page cache, where file and memory allow it; gives the bytes written.

    Nobody here reads a pack again: cached, it would push out what the trainer reads, and cost several times the CPU.
    """
    whole = data.nbytes // _PAGE * _PAGE
    if whole < _DIRECT or not hasattr(os, "O_DIRECT"):
        return 0
    import fcntl

    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    done = 0
    with contextlib.suppress(OSError):  # what is left is written the common way, which has the last word on errors
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        while done < whole and done % _PAGE == 0:
            done += os.write(fd, data[done:whole])
    fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    return done


def _create(temporary: Path, target: Path, key: str) -> None:
    """Give `temporary` the name `target`. Raises `AlreadyExists` when that is taken."""
    try:
        try:
            os.link(temporary, target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            _rename_exclusively(temporary, target)
    except FileExistsError:
        # On NFS the reply to a link that succeeded can be lost, and its repetition finds the name taken by ourselves.
        if temporary.lstat().st_nlink != 2:
            # Whoever made the name may have died before syncing it; what the caller reads next must be durable.
            _sync_directory(target.parent)
            raise AlreadyExists(f"{key} exists already") from None


def _rename_exclusively(source: Path, target: Path) -> None:
    import ctypes  # rarely needed, and not cheap

    at_fdcwd, rename_noreplace = -100, 1
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(target))
    if rename(at_fdcwd, os.fsencode(source), at_fdcwd, os.fsencode(target), rename_noreplace) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(target))


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | system.DIRECTORY | system.CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems sync names by themselves and refuse this
            raise
    finally:
        os.close(fd)


def _read_exactly(fd: int, key: str, start: int, length: int) -> bytes:
    """Exactly `length` bytes, in one buffer unless the system returns fewer at a time."""
    parts: list[bytes] = []
    missing = length
    while missing:
        part = os.pread(fd, missing, start + length - missing)
        if not part:
            raise CorruptObject(f"{key} ended {missing} bytes before its size")
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _walk(directory: Path, prefix: str) -> Iterator[ObjectMeta]:
    try:
        entries = list(os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        key = f"{prefix}/{entry.name}" if prefix else entry.name
        if key == TEMPORARY:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), key)
        elif entry.is_file(follow_symlinks=False):
            with contextlib.suppress(FileNotFoundError):  # deleted since
                yield _meta(key, entry.stat(follow_symlinks=False))


def _meta(key: str, found: os.stat_result) -> ObjectMeta:
    return ObjectMeta(key, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))
