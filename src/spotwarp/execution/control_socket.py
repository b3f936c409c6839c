"""Requests to the SpotWarp that is at work in a workspace: a Unix socket, one JSON line each way.

The socket lies under `.spotwarp/`, or, where that file system holds none (network volumes), in a directory of the
user's own under the temporary one. Its name says which boot of which machine it belongs to: on a shared volume no
machine takes another's for its own. Only the user that owns the workspace can connect. It carries requests, never data,
and a workspace without one simply has no agent. Needs nothing but the standard library: a trainer's own Python asks
through it, too.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spotwarp import system
from spotwarp.config import DIRECTORY
from spotwarp.errors import ExecutionError, PlatformUnsupported

_MAX_LINE = 1 << 20
_SHORT = 100
"""Bytes of a socket's path that every system takes."""

Answer = dict[str, Any]


class ControlSocket:
    """The agent's end. `answer` gets each request in a thread of its own and may block; `sent` hears when it is out."""

    def __init__(
        self, workspace: Path, answer: Callable[[Answer], Answer], sent: Callable[[Answer], None] = lambda _: None
    ) -> None:
        self._workspace = workspace
        self._answer, self._sent = answer, sent
        self._socket: socket.socket | None = None
        self._path: Path | None = None

    def __enter__(self) -> ControlSocket:
        """Listen. Call with the workspace's lock held. Raises `OSError` when there is no place for a socket."""
        trouble: OSError | None = None
        for directory in _directories(self._workspace, make=True):
            path = directory / _name(self._workspace, directory)
            try:
                _make_way(path)
                self._socket = _bound(path)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise
                trouble = trouble or error
                continue
            self._path = path
            threading.Thread(target=self._serve, args=(self._socket,), name="control-socket", daemon=True).start()
            return self
        raise trouble or OSError("no directory for a socket")

    def __exit__(self, *_: object) -> None:
        """Stop listening and remove the socket."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            try:
                threading.Thread(target=self._one, args=(connection,), name="control-request", daemon=True).start()
            except RuntimeError:  # no thread to be had: whoever asked learns that nobody answers
                connection.close()

    def _one(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(10)
            try:
                request = json.loads(_line(connection))
            except (ValueError, RecursionError):
                return
            if not isinstance(request, dict):
                return
            connection.settimeout(None)
            try:
                connection.sendall(json.dumps(self._answer(request)).encode() + b"\n")
            finally:
                self._sent(request)


def ask(workspace: Path, request: Answer, *, timeout_s: float | None = None) -> Answer | None:
    """The agent's answer, or None when no agent is at work in `workspace` on this machine.

    Raises `ExecutionError` when the agent went away before it answered.
    """
    client = _connected(workspace)
    if client is None:
        return None
    with client:
        client.settimeout(timeout_s)
        try:
            client.sendall(json.dumps(request).encode() + b"\n")
            answer: Answer = json.loads(_line(client))
        except (OSError, ValueError, RecursionError) as error:
            raise ExecutionError(
                "the SpotWarp at work in this workspace went away before it answered",
                hint="`spotwarp status` says what is stored.",
            ) from error
        return answer


def glimpse(workspace: Path, *, timeout_s: float = 5.0) -> Answer | None:
    """How the run at work says that it stands; None when there is none, or none that answers in time."""
    with contextlib.suppress(ExecutionError):
        return ask(workspace, {"verb": "status"}, timeout_s=timeout_s)
    return None


def _connected(workspace: Path) -> socket.socket | None:
    if not hasattr(socket, "AF_UNIX"):
        return None  # where no command can be run, none is at work
    for directory in _directories(workspace, make=False):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _short(directory / _name(workspace, directory)) as short:
                client.connect(short)
        except OSError:
            client.close()
            continue
        return client
    return None


def _make_way(path: Path) -> None:
    """Remove a dead agent's socket. Raises `OSError` for a living one's: two containers of one machine can share a
    volume, and need not share its locks.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, _short(path) as short:
        client.settimeout(1.0)
        try:
            client.connect(short)
        except ConnectionRefusedError:
            path.unlink()
        except FileNotFoundError:
            return
        else:
            raise OSError(errno.EADDRINUSE, "another SpotWarp takes requests there")


def _bound(path: Path) -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise PlatformUnsupported("this system has no Unix sockets")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(made.fileno(), 0o600)  # before it has a name: nobody else ever connects
        with _short(path) as short:
            made.bind(short)
        made.listen(16)
    except OSError:
        made.close()
        raise
    return made


def _directories(workspace: Path, *, make: bool) -> list[Path]:
    """Where the socket may be: beside the workspace's own files, else in a place that is ours alone."""
    found = [workspace / DIRECTORY]
    own = private_directory(make=make)
    return [*found, own] if own is not None else found


def private_directory(*, make: bool) -> Path | None:
    """A directory on this machine that only this user can write to; None when there is no trustworthy one."""
    if not hasattr(os, "getuid"):
        return None
    path = Path(tempfile.gettempdir()) / f"spotwarp-{os.getuid()}"
    try:
        if make:
            path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    return path if ours else None


def _name(workspace: Path, directory: Path) -> str:
    if directory == workspace / DIRECTORY:
        return f"agent-{_boot()}.sock"
    return f"{workspace_mark(workspace)}.sock"


def workspace_mark(workspace: Path) -> str:
    """Names a workspace on this machine, in sixteen letters."""
    return hashlib.blake2s(os.fsencode(workspace.resolve()), digest_size=8).hexdigest()


def _boot() -> str:
    """This boot of this kernel: as far as a Unix socket reaches."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return hashlib.blake2s(socket.gethostname().encode(), digest_size=4).hexdigest()


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name for the socket that is short enough whatever the workspace's path (the limit is 107 bytes)."""
    if len(os.fsencode(path)) <= _SHORT:
        yield str(path)
        return
    descriptor = os.open(path.parent, os.O_RDONLY | system.DIRECTORY | system.CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)


def _line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        part = connection.recv(65536)
        if not part or len(data) > _MAX_LINE:
            break
        data += part
    return data
