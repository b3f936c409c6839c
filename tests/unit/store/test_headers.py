"""What a server says beside its answer, from a server that says anything."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from spotwarp.persistence.store.headers import Said, ask

NOW = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)
DATE = "Mon, 04 May 2026 12:00:00 GMT"


@contextmanager
def server(reply: bytes) -> Iterator[str]:
    """Answers one connection with `reply` and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with listening.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(reply)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/b/k?X-Amz-Signature=1"
        thread.join(10)


def reply(status: int, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} X", *headers, "Content-Length: 0", "", ""]).encode()


@pytest.mark.parametrize(
    ("status", "header", "seconds"),
    [
        (503, "Retry-After: 7", 7.0),
        (429, "retry-after:  120 ", 120.0),
        (503, "Retry-After: Mon, 04 May 2026 12:00:30 GMT", 30.0),
        (503, "Retry-After: Mon, 04 May 2026 11:00:00 GMT", 0.0),
        (503, "Retry-After: soon", None),
        (503, "Retry-After: -5", None),
        (503, "Retry-After: 99999999999999999999999", 999999999.0),
        (503, "X: y", None),
        (200, "Retry-After: 7", None),
    ],
)
def test_the_wait_that_is_asked_for(status: int, header: str, seconds: float | None) -> None:
    with server(reply(status, f"Date: {DATE}", header)) as url:
        assert ask(url, now=NOW + timedelta(hours=9)) == Said(seconds, NOW)  # by the server's clock, not by ours


def test_without_a_date_ours_counts() -> None:
    with server(reply(503, "Retry-After: Mon, 04 May 2026 12:00:30 GMT")) as url:
        assert ask(url, now=NOW) == Said(30.0, None)


@pytest.mark.parametrize("junk", [b"", b"junk\r\n\r\n", b"HTTP/1.1 503 X\r\nDate: never\r\n\r\n", b"\xff" * 100_000])
def test_junk_says_nothing(junk: bytes) -> None:
    with server(junk) as url:
        assert ask(url, now=NOW) == Said()


def test_nobody_there_says_nothing() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        assert ask(f"http://127.0.0.1:{held.getsockname()[1]}/", now=NOW) == Said()
