"""A web server on loopback that takes what SpotWarp tells, and misbehaves on request.

Owns one listening socket. `answers` are the status codes of the next requests (200 when there is none left); while
`hang` is true nothing is answered. Every request is recorded before it is answered.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Told:
    """One request: its headers in lower case, and its body."""

    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)


class Webhook(http.server.ThreadingHTTPServer):
    """The server; `url` is where to post."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taken)
        self.seen: list[Told] = []
        self.answers: list[int] = []
        self.hang = False
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        """The address."""
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def events(self) -> list[str]:
        """The events told so far, oldest first."""
        return [str(told.json["event"]) for told in self.seen]


class _Taken(http.server.BaseHTTPRequestHandler):
    server: Webhook

    def log_message(self, format: str, *args: object) -> None:
        """Nothing goes to stderr."""

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.seen.append(Told(headers, self.rfile.read(length)))
        while self.server.hang and not self.server.closing.wait(0.02):
            pass
        status = self.server.answers.pop(0) if self.server.answers else 200
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", self.server.url)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST


@contextmanager
def webhook() -> Iterator[Webhook]:
    """A running server, closed at the end."""
    with Webhook() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
            thread.join(5)
