"""What a setting may hold: from a file, a variable or a flag to a value, or to a `ValueError` that says why.

Pure. The message continues a sentence that begins with the option and what was given: "is not a duration", "must be …".
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from spotwarp.errors import UsageError
from spotwarp.system import cpus

CLOUDS: Final = ("aws", "gcp", "azure")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SIZES: Final = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_RATES: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 1024.0, "Mi": 1024.0**2, "Gi": 1024.0**3}
_SLOWEST: Final = 100_000.0
"""Slower than this a single pack would take minutes, and look like an upload that is stuck."""

CODINGS: Final = ("raw", "planes", "delta")
"""How much work is put into making what is sent smaller, least first."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What SpotWarp may use while the command trains; None: no limit."""

    cpu: float | None = None
    """Cores for reading, hashing and coding."""
    bandwidth: float | None = None
    """Bytes a second, of data sent and of data fetched."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What the user says that the store costs, in dollars; None: the list price, where one is known."""

    storage: float | None = None
    """Of a GB for a month."""
    put: float | None = None
    get: float | None = None
    """Of a thousand requests that write or list; that read."""
    egress: float | None = None
    """Of a GB fetched."""


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


def never_or_size(value: object) -> int | None:
    """None for never, else bytes. Raises `ValueError`."""
    if value == "never":
        return None
    try:
        return size(value)
    except ValueError as error:
        raise ValueError(f"{error} (or never)") from error


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


def cores(value: object) -> float | None:
    """Cores from `1.5` or from `50%` of those that this process may use; None for `auto`. Raises `ValueError`."""
    if value in ("auto", None):
        return None
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(%?)\s*", str(value))
    found = float(match[1]) * (cpus() / 100 if match[2] else 1) if match else 0.0
    if isinstance(value, bool) or not match or not 0.05 <= found <= 1024:
        raise ValueError("must be auto, a number of cores such as 1.5, or a share of them such as 50%")
    return found


def rate(value: object) -> float | None:
    """Bytes a second from `200MB/s`, `50MiB/s` or `1Gbit/s`; None for `none`. Raises `ValueError`."""
    if value in ("none", None):
        return None
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kMG]i?|)(B|bit)/s\s*", str(value))
    if not match:
        raise ValueError("must be none or a rate such as 200MB/s or 1Gbit/s (the unit is needed: bits are not bytes)")
    found = float(match[1]) * _RATES[match[2]] / (8 if match[3] == "bit" else 1)
    if not _SLOWEST <= found <= 1e12:
        raise ValueError("must be at least 100kB/s")
    return found


def dollars(value: object) -> float | None:
    """An amount of money; None for `auto`. Raises `ValueError`."""
    if value in ("auto", None):
        return None
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]+(\.[0-9]+)?(e-?[0-9]+)?", str(value)):
        raise ValueError("must be an amount of dollars such as 0.023")
    if not math.isfinite(found := float(str(value))):
        raise ValueError("must be an amount of dollars such as 0.023")
    return found


def limits(value: object, beneath: Limits | None = None) -> Limits:
    """Limits from a mapping, or from `cpu=1.5,bandwidth=200MB/s`; what they do not name is as in `beneath`. `none`: no
    limit at all. Raises `ValueError`."""
    if value == "none":
        return Limits()
    return replace(beneath or Limits(), **_fields(value, {"cpu": cores, "bandwidth": rate}))


def prices(value: object) -> Prices:
    """Prices from a mapping, or from `storage=0.02,egress=0`. Raises `ValueError`."""
    return Prices(**_fields(value, dict.fromkeys(("storage", "put", "get", "egress"), dollars)))


def coding(value: object) -> str | None:
    """One of `CODINGS`, or None for `auto`. Raises `ValueError`."""
    if value != "auto" and value not in CODINGS:
        raise ValueError(f"must be auto, {', '.join(CODINGS[:-1])} or {CODINGS[-1]}")
    return None if value == "auto" else str(value)


def _fields(value: object, readers: Mapping[str, Callable[[object], Any]]) -> dict[str, Any]:
    """The named values of a mapping or of its text, each as its reader has it."""
    if isinstance(value, str):
        parts = [part for part in value.strip().removeprefix("{").removesuffix("}").split(",") if part.strip()]
        pairs = [re.split(r"\s*[=:]\s*", part.strip(), maxsplit=1) for part in parts]
        if any(len(pair) != 2 for pair in pairs):
            raise ValueError(f"must name its values, such as {next(iter(readers))}=1 (known: {', '.join(readers)})")
        if len(dict(pairs)) < len(pairs):
            raise ValueError("names a value twice")
        value = dict(pairs)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"must be a mapping of {', '.join(readers)}")
    found = {}
    for name, one in (value or {}).items():
        if name not in readers:
            near = difflib.get_close_matches(str(name), list(readers), n=1, cutoff=0.5)
            raise ValueError(
                f"has no {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(readers)}")
            )
        try:
            found[name] = readers[name](one)
        except ValueError as error:
            raise ValueError(f"has a {name} {one!r} that {error}") from error
    return found
