"""One HTTP POST of JSON. Bounded in time, as a whole, and in what it reads back; follows no redirect; never shows the
address.

An address can be a secret (a path that holds a token), so messages name only its scheme and host (I11).
"""

from __future__ import annotations

import http.client
import socket
import urllib.error
import urllib.request
from email.message import Message
from typing import IO
from urllib.parse import urlsplit

from spotwarp.clock import Clock
from spotwarp.execution.timed import Timed

AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers after which the same request may succeed later."""


class _Stay(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET, somewhere else."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """Never."""
        return


class _Http(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Connections that end by `limit`, whatever the other side does."""

    def __init__(self, limit: float, clock: Clock) -> None:
        super().__init__()
        self._limit, self._clock = limit, clock
        self._sockets: list[socket.socket] = []

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """See `HTTPHandler`."""
        return self.do_open(lambda host, **more: self._timed(http.client.HTTPConnection(host, **more)), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """See `HTTPSHandler`."""
        return self.do_open(lambda host, **more: self._timed(http.client.HTTPSConnection(host, **more)), req)

    def _timed(self, connection: http.client.HTTPConnection) -> http.client.HTTPConnection:
        connect = connection.connect

        def timed() -> None:
            connect()
            self._sockets.append(connection.sock)
            connection.sock = Timed(connection.sock, self._limit, self._clock)

        connection.connect = timed  # type: ignore[method-assign]
        return connection

    def end(self) -> None:
        """Close what was opened."""
        for sock in self._sockets:
            sock.close()


def post(url: str, body: bytes, *, timeout_s: float, clock: Clock) -> tuple[str, bool]:
    """Send `body`; why it failed (empty: it did not), and whether another try could succeed. Raises nothing."""
    http_handler = _Http(clock.monotonic() + timeout_s, clock)
    try:
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked with the option
            url, data=body, method="POST", headers={"Content-Type": "application/json", "User-Agent": "spotwarp"}
        )
        with urllib.request.build_opener(_Stay, http_handler).open(request, timeout=timeout_s) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as error:
        with error:
            return f"it answered {error.code}", error.code in AGAIN
    except http.client.HTTPException as error:
        return f"it does not speak HTTP: {type(error).__name__}", True
    except OSError as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        slow = isinstance(why, TimeoutError)
        return f"it did not answer within {timeout_s:g} s" if slow else f"it cannot be reached: {why}", True
    except ValueError:  # the library's words quote the address
        return "the address cannot be used", False
    finally:
        http_handler.end()
    return "", False


def shown(url: str) -> str:
    """The address without what may be secret in it."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname or ''}" + (f":{parts.port}" if parts.port else "")
    except ValueError:
        return "a web address"
