"""A ready staging moved into the workspace, by renames only, and what is in its way moved aside.

Every step leaves a state from which the same call ends in the same place, so a crash at any rename is answered by
calling again. Nothing of the user's is deleted: at most a file is replaced by the snapshot's version, unless the
caller wants it kept. That staging, workspace and the set-aside directory are on one file system, and that nothing runs
in the workspace meanwhile, is the caller's duty.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from spotwarp.errors import WorkspaceFault
from spotwarp.persistence import staging as stage
from spotwarp.persistence.beneath import ELSEWHERE, Tree, ancestors, rename_new, split, sync_filesystem
from spotwarp.persistence.manifest import DIRECTORY, Entry, tabled


def install(staging: Path, root: Path, *, aside: Path, keep_replaced: bool = False, sync: bool = True) -> None:
    """Move everything in the ready `staging` to its place beneath `root`, then remove `staging`.

    Directories that are absent in `root` move whole, others are merged. A file takes the place of a file at once, and
    with `keep_replaced` the local one is set aside first; where one is a directory and the other is not, the local one
    always is. What `root` has and `staging` has not stays. Directories get their modes and times at the end. With
    nothing staged (it was all installed before) nothing happens.

    Raises `WorkspaceFault` for a staging that is not ready, and for what the file system refuses.
    """
    entries = stage.ready(staging)
    if entries is None:
        if staging.exists():
            raise WorkspaceFault(
                f"{staging} is not complete; nothing was installed", hint="Run the restore again: it continues."
            )
        return
    try:
        root.mkdir(parents=True, exist_ok=True)
        if staging.is_dir():
            with Tree(staging) as source, Tree(root) as target:
                _Install(source, target, aside, keep_replaced).merge()
        with Tree(root) as target:
            stage.settle(target, (entry for entry in reversed(entries) if entry.kind == DIRECTORY))
        if sync:
            sync_filesystem(root)
    except OSError as error:
        raise _fault(root, error) from error
    stage.discard(staging)


def arrive(staging: Path, root: Path, path: bytes) -> bool:
    """Move the directory `path` of the ready `staging`, complete, to its place beneath `root` by one rename.

    Unlike `install`, while others are at work in `root`: False, and nothing happens, when there is something at `path`
    by now, or nowhere to put it any more. The staging is removed in any case. Raises `WorkspaceFault`.
    """
    entries = stage.ready(staging)
    if entries is None:
        raise WorkspaceFault(f"{staging} is not complete; nothing was installed")
    try:
        with Tree(staging) as source, Tree(root) as target:
            inside = [entry for entry in entries.beneath(path) if entry.kind == DIRECTORY and entry.path != path]
            stage.settle(source, reversed(inside))
            source.forget()
            moved = _moved_whole(source, path, target, entries.find(path))
    except OSError as error:
        raise _fault(root, error) from error
    stage.discard(staging)
    return moved


def _moved_whole(source: Tree, path: bytes, target: Tree, entry: Entry | None) -> bool:
    from_fd, name = source.locate(path)
    try:
        to_fd, new = target.locate(path)
        rename_new(from_fd, name, to_fd, new)
    except OSError as error:
        if error.errno not in (*ELSEWHERE, errno.EEXIST):
            raise
        return False
    if entry is not None and entry.mode & 0o700 != 0o700:  # to be moved, it had to be open
        os.chmod(new, entry.mode & 0o7777, dir_fd=to_fd)
    return True


def settle(root: Path, entries: Iterable[Entry]) -> None:
    """Give what is in place already the modes and times that `entries` say; what is absent or another kind is left.

    For the part of a snapshot that was kept, not fetched. Raises `WorkspaceFault` for what the file system refuses.
    """
    try:
        with Tree(root) as tree:
            stage.settle(tree, reversed(tabled(entries)))
    except OSError as error:
        raise _fault(root, error) from error


def set_aside(root: Path, paths: Iterable[bytes], into: Path) -> dict[bytes, bytes]:
    """Move `paths` (files, links, whole directories) of `root` beneath `into`, under the same names.

    A name that is taken there gets `-2`, `-3` …; what is absent, or moved with its directory, is passed over. Returns
    where each went, relative to `into`. Raises `WorkspaceFault` for what the file system refuses.
    """
    moved: dict[bytes, bytes] = {}
    try:
        with Tree(root) as tree:
            for path in sorted(set(paths)):
                if any(above in moved for above in ancestors(path)):
                    continue
                if (new := _set_aside(tree, path, into)) is not None:
                    moved[path] = new
    except OSError as error:
        raise _fault(root, error) from error
    return moved


def _set_aside(tree: Tree, path: bytes, into: Path) -> bytes | None:
    found = tree.lstat(path)
    if found is None:
        return None
    into.mkdir(parents=True, exist_ok=True)
    with Tree(into) as attic:
        new = _free(attic, path)
        attic.directory(split(new)[0], make=True)
        _rename(tree, path, found, attic, new)
    return new


def _free(attic: Tree, path: bytes) -> bytes:
    """The first of `path`, `path-2`, `path-3` … that is free; also where a file lies where a directory is needed."""
    new, again = path, 2
    while attic.lstat(new) is not None or _blocked(attic, new):
        suffix = b"-%d" % again
        head, name = split(path)
        if _blocked(attic, path):  # the whole layout starts again beside what is in the way
            top, _, rest = path.partition(b"/")
            new = top[: 255 - len(suffix)] + suffix + b"/" + rest
        else:
            new = (head + b"/" if head else b"") + name[: 255 - len(suffix)] + suffix
        again += 1
    return new


def _blocked(attic: Tree, path: bytes) -> bool:
    found = (attic.lstat(above) for above in ancestors(path))
    return any(have is not None and not stat.S_ISDIR(have.st_mode) for have in found)


def _rename(source: Tree, path: bytes, found: os.stat_result, target: Tree, new: bytes) -> None:
    """One rename. A directory that its owner may not write in cannot change its parent: it is opened up for it."""
    if stat.S_ISDIR(found.st_mode) and found.st_mode & 0o700 != 0o700:
        fd = source.directory(path)
        os.fchmod(fd, stat.S_IMODE(found.st_mode) | 0o700)
        source.forget()
    from_fd, name = source.locate(path)
    to_fd, new_name = target.locate(new)
    os.rename(name, new_name, src_dir_fd=from_fd, dst_dir_fd=to_fd)


class _Install:
    """One merge of `source` into `target`."""

    def __init__(self, source: Tree, target: Tree, aside: Path, keep_replaced: bool) -> None:
        self._source, self._target, self._aside, self._keep_replaced = source, target, aside, keep_replaced

    def merge(self) -> None:
        """Depth first without recursion: paths may be deeper than Python's stack."""
        waiting: list[tuple[bytes, bool]] = [(b"", False)]
        while waiting:
            path, emptied = waiting.pop()
            if emptied:
                self._remove(path)
                continue
            if path:
                waiting.append((path, True))
            with os.scandir(self._source.directory(path)) as found:
                names = [os.fsencode(item.name) for item in found]
            for name in sorted(names):
                child = path + b"/" + name if path else name
                if not self._placed(child):
                    waiting.append((child, False))

    def _placed(self, path: bytes) -> bool:
        """Put what is staged at `path` in its place; False when both are directories and must be merged."""
        staged = self._source.lstat(path)
        if staged is None:
            return True
        local = self._target.lstat(path)
        if local is not None:
            is_directory = stat.S_ISDIR(local.st_mode)
            if is_directory and stat.S_ISDIR(staged.st_mode):
                self._open_up(path, local)
                return False
            if self._keep_replaced or is_directory != stat.S_ISDIR(staged.st_mode):
                _set_aside(self._target, path, self._aside)
        _rename(self._source, path, staged, self._target, path)
        return True

    def _open_up(self, path: bytes, local: os.stat_result) -> None:
        if local.st_mode & 0o700 != 0o700:
            fd, name = self._target.locate(path)
            os.chmod(name, stat.S_IMODE(local.st_mode) | 0o700, dir_fd=fd)

    def _remove(self, path: bytes) -> None:
        fd, name = self._source.locate(path)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=fd)


def _fault(root: Path, error: OSError) -> WorkspaceFault:
    if error.errno == errno.EXDEV:
        return WorkspaceFault(f"{root} is not on one file system", hint="Restore into a directory on the same disk.")
    return WorkspaceFault(
        f"{root} cannot be changed: {error.strerror or error}", hint="Run the same command again: it continues."
    )
