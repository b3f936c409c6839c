"""From what was said to seconds left. Pure: the clocks' readings are arguments.

A platform names a moment; this machine's clock may be wrong. Where the answer carries the platform's own time (the Date
header) that is believed. Where it does not, a moment that cannot be right is replaced by the source's documented lead.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from spotwarp.errors import NoticeFault

AGREE_S = 2.0
"""A Date header has whole seconds: a difference up to this is none."""


@dataclass(frozen=True, slots=True)
class Left:
    """Seconds left, and where they came from, for people."""

    seconds: float
    by: str


def left_until(moment: datetime, here: datetime, there: datetime | None, *, lead_s: float) -> Left:
    """Seconds from now to `moment`. `here` is this machine's clock, `there` the platform's, where it said so."""
    named = moment.strftime("%H:%M:%SZ")
    if there is not None and abs((there - here).total_seconds()) > AGREE_S:
        off = (here - there).total_seconds()
        words = (
            f"{named} by the platform's clock; this machine's is {abs(off):.0f} s {'ahead' if off > 0 else 'behind'}"
        )
        return Left(max(0.0, (moment - there).total_seconds() - 1.0), words)  # what Date cuts off may be gone already
    left = (moment - here).total_seconds()
    if there is None and not -lead_s <= left <= lead_s:
        return Left(lead_s, f"{named}, which cannot be right by this machine's clock: the usual {lead_s:g} s are taken")
    return Left(max(0.0, left), named)


def moment(text: object) -> datetime:
    """An ISO 8601 time with a zone (Z), or seconds since 1970. Raises `NoticeFault`."""
    try:
        if isinstance(text, (int, float)) and not isinstance(text, bool):
            return datetime.fromtimestamp(text, UTC)
        if isinstance(text, str) and len(text) <= 64:
            read = datetime.fromisoformat(text)
            if read.tzinfo is not None:
                return read.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        pass
    raise NoticeFault(f"{short(text)} is not a time with a zone", hint="For example 2030-01-31T12:00:00Z.")


def http_date(text: object) -> datetime | None:
    """The time in an HTTP date, None when it holds none."""
    try:
        read = parsedate_to_datetime(text) if isinstance(text, str) and len(text) <= 64 else None
    except (ValueError, OverflowError):
        return None
    if read is None:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)


def read_json(body: bytes) -> Any:
    """`body` as JSON. Raises `NoticeFault`."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NoticeFault(f"{short(body)} is not JSON") from error


def given(said: object, here: datetime, *, otherwise_s: float) -> Left | None:
    """What a notice file or a hook says: `{"seconds_left": 30}` or `{"deadline": "2030-01-31T12:00:00Z"}`.

    None when it is an object with neither. `otherwise_s` stands in for a null. Raises `NoticeFault`.
    """
    if not isinstance(said, dict):
        raise NoticeFault(f"{short(said)} is not a JSON object")
    if "seconds_left" in said:
        seconds = said["seconds_left"]
        if seconds is None:
            return Left(otherwise_s, "no time was given")
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
            raise NoticeFault(f"seconds_left is {short(seconds)}, not a number")
        return Left(max(0.0, min(float(seconds), 1e9)), "as it says")
    if "deadline" in said:
        end = moment(said["deadline"])
        return Left(max(0.0, (end - here).total_seconds()), f"{end:%H:%M:%SZ}")
    return None


def short(what: object) -> str:
    """Something from outside, safe to show in a message."""
    text = what.decode("utf-8", "replace") if isinstance(what, bytes) else str(what)
    legible = "".join(c if c.isprintable() else " " for c in text[:80])
    return repr(legible + "…" if len(text) > 80 else legible)
