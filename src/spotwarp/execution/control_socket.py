"""Requests to the SpotWarp that is at work in a workspace: a Unix socket under `.spotwarp/`, one JSON line each way.

Only the user that owns the workspace can connect. The socket carries requests (`sync`, `status`), never data, and a
workspace without one simply has no agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spotwarp.config import DIRECTORY
from spotwarp.errors import ExecutionError

NAME = "agent.sock"
_MAX_LINE = 1 << 20

Answer = dict[str, Any]


@contextlib.contextmanager
def _short(workspace: Path) -> Iterator[str]:
    """A name for the socket that is short enough whatever the workspace's path (the limit is 107 bytes)."""
    descriptor = os.open(workspace / DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{NAME}"
    finally:
        os.close(descriptor)


class ControlSocket:
    """The agent's end. `answer` gets each request in a thread of its own and may block."""

    def __init__(self, workspace: Path, answer: Callable[[Answer], Answer]) -> None:
        self._workspace = workspace
        self._answer = answer
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> ControlSocket:
        """Listen. The workspace's lock is held, so a socket that is there is a dead agent's."""
        path = self._workspace / DIRECTORY / NAME
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        with _short(self._workspace) as short:
            os.fchmod(self._socket.fileno(), 0o600)  # before it has a name: nobody else ever connects
            self._socket.bind(short)
        self._socket.listen(16)
        threading.Thread(target=self._serve, name="control-socket", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening and remove the socket."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            (self._workspace / DIRECTORY / NAME).unlink()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(connection,), name="control-request", daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(10)
            try:
                request = json.loads(_line(connection))
            except ValueError:
                return
            if not isinstance(request, dict):
                return
            connection.settimeout(None)
            connection.sendall(json.dumps(self._answer(request)).encode() + b"\n")


def ask(workspace: Path, request: Answer, *, timeout_s: float | None = None) -> Answer | None:
    """The agent's answer, or None when no agent is at work in `workspace`.

    Raises `ExecutionError` when the agent went away before it answered.
    """
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with client:
        try:
            with _short(workspace) as short:
                client.connect(short)
        except OSError:
            return None
        client.settimeout(timeout_s)
        try:
            client.sendall(json.dumps(request).encode() + b"\n")
            answer: Answer = json.loads(_line(client))
        except (OSError, ValueError) as error:
            raise ExecutionError(
                "the SpotWarp at work in this workspace went away before it answered",
                hint="`spotwarp status` says what is stored.",
            ) from error
        return answer


def _line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        part = connection.recv(65536)
        if not part or len(data) > _MAX_LINE:
            break
        data += part
    return data
