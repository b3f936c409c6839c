"""What is large in a workspace and could be had again: virtual environments, model and package caches.

They are stored unless the user excludes them, since leaving one out silently breaks a resume; here they are only named.
Recognised by what their makers put into them, never by their names alone. Pure but for `glance`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spotwarp.clock import Clock
from spotwarp.persistence.entries import shown
from spotwarp.persistence.excludes import Excludes
from spotwarp.persistence.manifest import DIRECTORY, FILE
from spotwarp.persistence.scan import Scan, Scanned, scan

LEAST = 32 << 20
MOST = 5
_HUB = (b"models--", b"datasets--", b"spaces--")


@dataclass(frozen=True, slots=True)
class Part:
    """A directory that could be had again: its path, what it is, its bytes (hard links once)."""

    path: str
    kind: str
    bytes: int

    @property
    def exclude(self) -> str:
        """The line that leaves it out from now on."""
        return leave_out(f"{self.path}/")


def leave_out(path: str) -> str:
    """The line that leaves exactly `path` out, safe to be given to a shell whatever the name is."""
    literal = re.sub(r"([\\*?\[])", r"\\\1", path)
    quoted = literal.replace("'", "'\\''")
    return f"spotwarp exclude '/{quoted}'"


def downloadable(entries: Sequence[Scanned]) -> list[Part]:
    """The largest such directories among the entries of a scan (in its order), none inside another."""
    found: dict[bytes, str] = {}
    for entry in entries:
        above, _, name = entry.path.rpartition(b"/")
        place, kind = _kind(above, name, is_dir=entry.kind == DIRECTORY)
        if kind and place and not _inside(place, found):
            found.setdefault(place, kind)
    paths = [entry.path for entry in entries]
    parts = [
        Part(shown(path), kind, _size(entries, paths, path)) for path, kind in found.items() if not _inside(path, found)
    ]
    return sorted((p for p in parts if p.bytes >= LEAST), key=lambda p: -p.bytes)[:MOST]


def _kind(above: bytes, name: bytes, *, is_dir: bool) -> tuple[bytes, str]:
    """The directory that `above`/`name` betrays, and what it is; empty words for an ordinary entry."""
    upper, _, parent = above.rpartition(b"/")
    if not is_dir:
        return above, "a virtual environment" if name == b"pyvenv.cfg" else ""
    if name == b"conda-meta":
        return above, "a conda environment"
    if name == b"blobs" and parent.startswith(_HUB):
        return (upper, "a Hugging Face cache") if upper else (above, "a Hugging Face model or dataset")
    if name in (b"http", b"http-v2") and parent == b"pip":
        return above, "a pip cache"
    if name == b"archive-v0":
        return above, "a uv cache"
    return b"", ""


def _inside(path: bytes, found: dict[bytes, str]) -> bool:
    parts = path.split(b"/")
    return any(b"/".join(parts[:depth]) in found for depth in range(1, len(parts)))


def _size(entries: Sequence[Scanned], paths: Sequence[bytes], directory: bytes) -> int:
    at, size, seen = bisect_left(paths, directory + b"/"), 0, set()
    while at < len(paths) and paths[at].startswith(directory + b"/"):
        entry = entries[at]
        if entry.kind == FILE and (entry.dev, entry.ino) not in seen:
            seen.add((entry.dev, entry.ino))
            size += entry.size
        at += 1
    return size


class _TooLong(Exception):
    """The look takes longer than it may."""


def glance(workspace: Path, exclude: Sequence[str], clock: Clock, *, budget_s: float = 2.0) -> Scan | None:
    """One look at the workspace, or None where that takes longer than `budget_s`. Raises `WorkspaceFault`."""
    until = clock.monotonic() + budget_s

    def check(_: int) -> None:
        if clock.monotonic() >= until:
            raise _TooLong

    try:
        return scan(workspace, Excludes(exclude), on_progress=check)
    except _TooLong:
        return None
