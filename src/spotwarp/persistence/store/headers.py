"""What a server says beside its answer: how long to wait, and what time it is.

The object store's library shows the status and the body of a refusal but none of its headers. So the same server is
asked once more, by a request of our own that has no body and changes nothing (HEAD), and its headers are read. Owns
that one request and the meaning of the two headers. The address may hold a signature: no message repeats it.
"""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

ASK_S: Final = 3.0
"""Seconds that the question may take; without an answer there is none."""
REFUSED: Final = frozenset({429, 503})
"""The statuses whose Retry-After asks for a pause."""


@dataclass(frozen=True, slots=True)
class Said:
    """A server's headers: the pause that it asks for (seconds, None: none) and its time (None: not told)."""

    retry_after_s: float | None = None
    date: datetime | None = None


def ask(url: str, *, now: datetime, ca_bundle: Path | None = None) -> Said:
    """What the server at `url` says to HEAD; nothing at all when it does not answer. `now` is this machine's time."""
    parts = urlsplit(url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    try:
        connection = _connect(parts.scheme, parts.hostname or "", parts.port, ca_bundle)
        try:
            connection.request("HEAD", target or "/")
            reply = connection.getresponse()
            date = _time(reply.getheader("date"))
            pause = reply.getheader("retry-after") if reply.status in REFUSED else None
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError):
        return Said()
    return Said(_pause(pause, date or now), date)


def _connect(scheme: str, host: str, port: int | None, ca_bundle: Path | None) -> http.client.HTTPConnection:
    if scheme == "https":
        context = ssl.create_default_context(cafile=str(ca_bundle) if ca_bundle else None)
        return http.client.HTTPSConnection(host, port, timeout=ASK_S, context=context)
    return http.client.HTTPConnection(host, port, timeout=ASK_S)


def _pause(text: str | None, now: datetime) -> float | None:
    """Seconds from a Retry-After: a number of them, or a date on the server's own clock."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text.strip()[:9])
    until = _time(text)
    return None if until is None else max(0.0, (until - now).total_seconds())


def _time(text: str | None) -> datetime | None:
    try:
        found = parsedate_to_datetime(text or "")
    except (ValueError, TypeError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
