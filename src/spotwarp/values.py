"""What a setting may hold: from a file, a variable or a flag to a value, or to a `ValueError` that says why.

Pure. The message continues a sentence that begins with the option and what was given: "is not a duration", "must be …".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from spotwarp.errors import UsageError

CLOUDS: Final = ("aws", "gcp", "azure")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SIZES: Final = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def duration(value: object) -> float:
    """Seconds from `20s`, `1.5m`, `2h` or a bare number of seconds. Raises `ValueError`."""
    if isinstance(value, bool):
        raise ValueError("is not a duration")
    if isinstance(value, (int, float)):
        seconds = float(value)
    else:
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?\s*", str(value))
        if not match:
            raise ValueError("is not a duration such as 20s, 5m or 1h")
        seconds = float(match[1]) * _UNITS[match[2] or "s"]
    if not 0 <= seconds < 10**9:
        raise ValueError("is not a sensible duration")
    return seconds


def bounded(low: float, high: float) -> Callable[[object], float]:
    """A parser of durations between `low` and `high` seconds."""

    def parse(value: object) -> float:
        seconds = duration(value)
        if not low <= seconds <= high:
            raise ValueError(f"must be between {spell(low)} and {spell(high)}")
        return seconds

    return parse


def spell(seconds: float) -> str:
    """A duration as the config file spells it."""
    for unit in ("d", "h", "m"):
        if seconds >= _UNITS[unit] and seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:g}{unit}"
    return f"{seconds:g}s"


def auto_or_duration(value: object) -> float | None:
    """None for auto, else seconds from 1 s to a day. Raises `ValueError`."""
    if value == "auto":
        return None
    try:
        return bounded(1, 86400)(value)
    except ValueError as error:
        raise ValueError(f"{error} (or auto)") from error


def notice_sources(value: object) -> tuple[str, ...] | None:
    """None for auto, else the clouds that are named. Raises `ValueError`."""
    if value in ("auto", "none"):
        return None if value == "auto" else ()
    named = re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value
    if not isinstance(named, list) or not named or not all(one in CLOUDS for one in named):
        raise ValueError(f"must be auto, none or a list of {', '.join(CLOUDS)}")
    return tuple(dict.fromkeys(str(one) for one in named))


def optional(value: object) -> str:
    """Text, or nothing. Raises `ValueError`."""
    if value is None or value == "":
        return ""
    return text(value)


def hook_url(value: object) -> str:
    """An http(s) address without a password, or nothing. Raises `ValueError`."""
    from urllib.parse import urlsplit

    url = optional(value)
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if url and not usable:
        raise ValueError("must be an http or https address")
    if url and "@" in parts.netloc:
        raise ValueError("must not hold a password: this file is stored and shown")
    return url


def size(value: object) -> int:
    """Bytes from `64MiB`. Raises `ValueError`."""
    match = re.fullmatch(r"\s*([0-9]+)\s*([A-Za-z]*)\s*", str(value))
    if isinstance(value, bool) or not match or match[2] not in _SIZES:
        raise ValueError("is not a size such as 64MiB")
    return int(match[1]) * _SIZES[match[2]]


def count(low: int, high: int) -> Callable[[object], int]:
    """A parser of whole numbers between `low` and `high`."""

    def parse(value: object) -> int:
        text = str(value)
        if isinstance(value, bool) or not text.isdecimal() or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number between {low} and {high}")
        return int(text)

    return parse


def share(value: object) -> float:
    """A number between 0.1 and 0.9. Raises `ValueError`."""
    try:
        share = float(str(value))
    except ValueError as error:
        raise ValueError("must be a number between 0.1 and 0.9") from error
    if not 0.1 <= share <= 0.9:
        raise ValueError("must be a number between 0.1 and 0.9")
    return share


def flag(value: object) -> bool:
    """True or false. Raises `ValueError`."""
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    text = str(value).lower()
    if text not in known:
        raise ValueError("must be true or false")
    return known[text]


def auto_or_flag(value: object) -> bool | None:
    """Yes, no, or None for `auto`. Raises `ValueError`."""
    if value == "auto":
        return None
    try:
        return flag(value)
    except ValueError as error:
        raise ValueError(f"{error} (or auto)") from error


def text(value: object) -> str:
    """Text that is not empty. Raises `ValueError`."""
    if not isinstance(value, str) or not value:
        raise ValueError("must be text")
    return value


def run_name(value: object) -> str:
    """A run's name. Raises `ValueError`."""
    from spotwarp.model import checked_run

    try:
        return checked_run(text(str(value) if isinstance(value, int) else value))
    except UsageError as error:
        rule = "letters, digits, '-', '_' and single inner '.', at most 64, starting with a letter or digit"
        raise ValueError(f"cannot name a run ({rule})") from error


def patterns(value: object) -> tuple[str, ...]:
    """The lines of an exclude list. Raises `ValueError`."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(p, str) and p.strip() for p in value):
        raise ValueError("must be a list of patterns")
    return tuple(str(p) for p in value)


def names(value: object) -> tuple[str, ...]:
    """Names of environment variables, as a list or as one text with commas between them."""
    names = re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value
    if names is None or names == [""]:
        return ()
    if not isinstance(names, list) or not all(isinstance(n, str) and _VARIABLE.fullmatch(n) for n in names):
        raise ValueError("must be a list of names of environment variables (never their values)")
    return tuple(dict.fromkeys(names))


def targets(value: object) -> tuple[str, ...]:
    """Commands, http(s) URLs and `env:NAME`, one or a list of them."""
    targets = [value] if isinstance(value, str) and value.strip() else value or []
    if not isinstance(targets, list) or not all(isinstance(t, str) and t.strip() for t in targets):
        raise ValueError("must be a command, a URL, env:NAME, or a list of these")
    for target in targets:
        if target.startswith("env:") and not _VARIABLE.fullmatch(target[4:]):
            raise ValueError("has an env: that names no variable")
        if (scheme := _SCHEME.match(target)) and scheme[1].lower() not in ("http", "https"):
            raise ValueError("has an address that is neither http:// nor https://")
    return tuple(targets)
