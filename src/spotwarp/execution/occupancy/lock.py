"""The workspace's lock: an open descriptor, so that it dies with its holder.

It keeps two SpotWarps on one machine out of one workspace, by a file lock or, where the file system has none, by a
socket's name. It never decides who has the *run*, nor, on a volume that machines share, who has the directory: both are
the bucket's (`note`, beside).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from spotwarp import system
from spotwarp.config import DIRECTORY
from spotwarp.errors import AlreadyRunning, PlatformUnsupported, WorkspaceFault
from spotwarp.execution.control_socket import workspace_mark

FILE = "lock"
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}


@contextlib.contextmanager
def hold(workspace: Path, *, what: str, since: str, say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Hold the workspace's lock. Raises `AlreadyRunning` naming the owner, `WorkspaceFault` when it cannot be
    locked."""
    path = workspace / DIRECTORY / FILE
    try:
        path.parent.mkdir(exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | system.CLOEXEC, 0o600)
    except OSError as error:
        raise WorkspaceFault(f"{path} cannot be opened: {error.strerror}", hint="Is the workspace writable?") from error
    with contextlib.ExitStack() as held:
        held.callback(os.close, descriptor)
        if not _lock(descriptor, path):
            held.enter_context(_named_socket(path))
            say("this file system has no locks: only the bucket keeps another machine out of this workspace")
        mine = {"pid": os.getpid(), "host": socket.gethostname(), "what": what, "since": since}
        with contextlib.suppress(OSError):  # a full disk: the lock is held all the same, only its holder goes unnamed
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(mine).encode(), 0)
        yield


@contextlib.contextmanager
def exclusive(path: Path, *, what: str) -> Iterator[None]:
    """Hold a lock file of one's own beside a target; it is removed in the end. Raises `AlreadyRunning`,
    `WorkspaceFault`."""
    with contextlib.ExitStack() as held:
        descriptor = _locked(path, f"another `spotwarp {what}` is at work on this target", held)
        held.callback(os.close, descriptor)
        held.callback(path.unlink, missing_ok=True)
        yield


def _locked(path: Path, taken: str, held: contextlib.ExitStack) -> int:
    """`path` locked, made if need be: the file that has the name now, not one that its last holder has just removed."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | system.CLOEXEC, 0o600)
        except OSError as error:
            raise WorkspaceFault(
                f"{path} cannot be made: {error.strerror}", hint="Is the directory writable?"
            ) from error
        try:
            if not _lock(descriptor, path, taken):
                held.enter_context(_named_socket(path, taken))
                return descriptor
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, path: Path, taken: str = "") -> bool:
    """Lock, or False where the file system has no locks. Raises `AlreadyRunning`, `WorkspaceFault`."""
    try:
        import fcntl
    except ImportError as error:
        if sys.platform == "linux":
            return False
        raise PlatformUnsupported("a workspace cannot be locked on this system") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            raise _taken(path, taken) from error
        if error.errno in _NO_LOCKS and sys.platform == "linux":
            return False
        raise WorkspaceFault(
            f"{path} cannot be locked on this file system: {error.strerror}",
            hint="Put the workspace on a file system with flock; nothing was changed.",
        ) from error
    return True


@contextlib.contextmanager
def _named_socket(path: Path, taken: str = "") -> Iterator[None]:
    """Hold a name that the kernel gives to one process at a time, and takes back when it ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as name:
        try:
            name.bind(f"\0spotwarp-lock-{workspace_mark(path)}")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _taken(path, taken) from error
            raise WorkspaceFault(f"{path} cannot be locked: {error.strerror}") from error
        yield


def _taken(path: Path, words: str) -> AlreadyRunning:
    return AlreadyRunning(
        words or f"this workspace is in use by {owner(path)}",
        hint="`spotwarp status` shows it, `attach` its output; `sync` makes it store, `stop` ends it. Another run needs"
        " another directory.",
    )


def owner(path: Path) -> str:
    """The holder in words, from what it left in the lock file."""
    try:
        left = json.loads(path.read_text())
        there = "" if left.get("host", socket.gethostname()) == socket.gethostname() else f" on {left['host']}"
        return f"`spotwarp {left['what']}` (process {left['pid']}{there}, since {left['since']})"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "another SpotWarp process"
