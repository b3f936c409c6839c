"""Names and small values that every plane shares. Data and grammar only."""

from __future__ import annotations

import re
from typing import Final

from spotwarp.errors import UsageError

DEFAULT_RUN: Final = "main"
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")


def checked_run(name: str) -> str:
    """`name`, if it can name a run; else `UsageError`."""
    if len(name) > 64 or not _RUN.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a run",
            hint="Use letters, digits, '-', '_' and single inner '.', at most 64, starting with a letter or digit.",
        )
    return name


def legible(text: str) -> str:
    """`text` as it can be written down: what is no UTF-8 (surrogate escapes of odd bytes) becomes visible escapes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def human_bytes(count: float) -> str:
    """A size for people, in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def human_seconds(seconds: float) -> str:
    """A span of time for people."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"
