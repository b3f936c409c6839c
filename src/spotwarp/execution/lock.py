"""The workspace's lock: an open descriptor, so that it dies with its holder.

It keeps two SpotWarps on one machine out of one workspace. It never decides who has the *run*: that is the log's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from spotwarp.config import DIRECTORY
from spotwarp.errors import AlreadyRunning, WorkspaceFault

FILE = "lock"


@contextlib.contextmanager
def hold(workspace: Path, *, what: str, since: str) -> Iterator[None]:
    """Hold the workspace's lock. Raises `AlreadyRunning` naming the owner, `WorkspaceFault` when it cannot be
    locked."""
    path = workspace / DIRECTORY / FILE
    try:
        path.parent.mkdir(exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise WorkspaceFault(f"{path} cannot be opened: {error.strerror}", hint="Is the workspace writable?") from error
    try:
        _lock(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "what": what, "since": since}).encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def exclusive(path: Path, *, what: str) -> Iterator[None]:
    """Hold a lock file of one's own beside a target; it is removed in the end. Raises `AlreadyRunning`,
    `WorkspaceFault`."""
    descriptor = _locked(path, f"another `spotwarp {what}` is at work on this target")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path, taken: str) -> int:
    """`path` locked, made if need be: the file that has the name now, not one that its last holder has just removed."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise WorkspaceFault(
                f"{path} cannot be made: {error.strerror}", hint="Is the directory writable?"
            ) from error
        try:
            _lock(descriptor, path, taken)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, path: Path, taken: str = "") -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            raise AlreadyRunning(
                taken or f"this workspace is in use by {owner(path)}",
                hint="`spotwarp status` shows it, `spotwarp sync` makes it store. Another run needs another directory.",
            ) from error
        raise WorkspaceFault(
            f"{path} cannot be locked on this file system: {error.strerror}",
            hint="Put the workspace on a file system with flock; nothing was changed.",
        ) from error


def owner(path: Path) -> str:
    """The holder in words, from what it left in the lock file."""
    try:
        left = json.loads(path.read_text())
        return f"`spotwarp {left['what']}` (process {left['pid']}, since {left['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another SpotWarp process"
