"""One HTTP request to a metadata service or a hook: bounded in time, in size, and never through a proxy.

Owns the sockets. Whatever the other side does (hangs, drips, floods, lies about lengths), a request ends within its
time and holds at most `LIMIT` bytes; every trouble is a `NoticeFault`. Proxies from the environment are not asked: a
link-local address means this machine, and a proxy would answer for another.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from spotwarp.clock import Clock
from spotwarp.errors import NoticeFault
from spotwarp.execution.notice.deadline import http_date
from spotwarp.execution.timed import Timed

LIMIT = 64 << 10
CONNECT_S = 1.0


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. Header names are in lower case; `date` is the server's own time, where it said so."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    date: datetime | None

    def text(self) -> str:
        """The body as one line of text. Raises `NoticeFault`."""
        try:
            return self.body.decode("ascii").strip()
        except UnicodeDecodeError as error:
            raise NoticeFault("the answer is not text") from error


class Endpoint:
    """Where to ask: `base` is an http or https URL. One request at a time. Raises `NoticeFault` for another URL."""

    def __init__(self, base: str, clock: Clock, *, connect_s: float = CONNECT_S) -> None:
        try:
            parts = urlsplit(base)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError as error:
            raise NoticeFault("it is not an address") from error
        if parts.scheme not in ("http", "https") or not self._host:
            raise NoticeFault("it is not an http or https address")
        self._secure = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/") + (f"?{parts.query}" if parts.query else "")
        self._clock, self._connect_s = clock, connect_s
        self._aborted = False
        self._socket: socket.socket | None = None
        self.name = self._host + (f":{self._port}" if self._port else "")  # never a password that stands before it

    def ask(
        self,
        path: str = "",
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout_s: float,
    ) -> Reply:
        """One request, all of it within `timeout_s`, the connection within `connect_s`. Raises `NoticeFault`."""
        if self._aborted:
            raise NoticeFault("no more questions")
        limit = self._clock.monotonic() + timeout_s
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=min(self._connect_s, timeout_s))
        try:
            return self._exchange(connection, limit, method, self._prefix + path, headers or {}, body)
        except TimeoutError as error:
            raise NoticeFault(f"{self.name} did not answer within {timeout_s:g} s") from error
        except OSError as error:
            raise NoticeFault(f"{self.name} cannot be reached: {error.strerror or error}") from error
        except (http.client.HTTPException, ValueError) as error:
            raise NoticeFault(f"{self.name} does not speak HTTP: {type(error).__name__}") from error
        finally:
            sock, self._socket = self._socket, None
            (sock or connection).close()

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        limit: float,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> Reply:
        connection.connect()
        self._socket = connection.sock
        if self._aborted:
            raise NoticeFault("no more questions")
        connection.sock = Timed(connection.sock, limit, self._clock)
        connection.request(method, target or "/", body=body, headers={"Connection": "close", **headers})
        answer = connection.getresponse()
        data = answer.read(LIMIT + 1)
        if len(data) > LIMIT:
            raise NoticeFault(f"{self.name} answers with more than {LIMIT} bytes")
        if answer.length:
            raise NoticeFault(f"{self.name} cut its answer short")
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, found, data, http_date(found.get("date")))

    def abort(self) -> None:
        """End the request under way, and refuse every later one. From any thread."""
        self._aborted = True
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
