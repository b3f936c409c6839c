"""What a workspace has that no snapshot is known to hold: the last word of a run that could not store everything.

Judged by what was written down at the last commit from here. It asks nobody and waits for nobody, so that it can be
said while a sync is stuck; it takes bounded time, and whatever goes wrong with it is silence.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotwarp.errors import SpotWarpError
from spotwarp.execution import localstate
from spotwarp.model import human_bytes
from spotwarp.persistence.content import digests_of
from spotwarp.persistence.entries import shown
from spotwarp.persistence.excludes import Excludes
from spotwarp.persistence.manifest import FILE, Manifest, tabled
from spotwarp.persistence.scan import Scanned, scan
from spotwarp.persistence.statcache import StatCache
from spotwarp.persistence.table import Cursor

NAMED = 5
LISTED = 1000
LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class Unstored:
    """Files that are not stored as they are, the largest first, at most `LISTED`; how many in all, and their bytes."""

    paths: tuple[str, ...] = ()
    count: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        """In words, empty when there is nothing."""
        if not self.count:
            return ""
        more = f" and {self.count - NAMED} more" if self.count > NAMED else ""
        return f"not stored: {', '.join(self.paths[:NAMED])}{more}, {human_bytes(self.bytes)}"


def find(root: Path, patterns: Sequence[str]) -> Unstored:
    """What is not stored of the workspace `root`, `patterns` excluded. After `LOOK_S`, or in trouble: nothing."""
    found: list[Unstored] = []

    def look() -> None:
        with contextlib.suppress(SpotWarpError, OSError):
            found.append(_look(root, patterns))

    thread = threading.Thread(target=look, name="unstored", daemon=True)
    with contextlib.suppress(RuntimeError):  # no thread to be had
        thread.start()
        thread.join(LOOK_S)
    return found[0] if found else Unstored()


def _look(root: Path, patterns: Sequence[str]) -> Unstored:
    cache = StatCache.load(localstate.runtime(root) / localstate.STATCACHE, root)
    files = (e for e in scan(root, Excludes(patterns)).entries if e.kind == FILE and e.size)
    left = [e for e in files if not e.path.startswith(b".spotwarp/") and cache.lookup(e, -math.inf) is None]
    left.sort(key=lambda e: (-e.size, e.path))
    return Unstored(tuple(shown(e.path) for e in left[:LISTED]), len(left), sum(e.size for e in left))


def dirty_bytes(root: Path, excludes: Excludes, cache: StatCache, base: Manifest | None) -> int:
    """Bytes of the files that are not in the snapshot `base` as they are on disk. Raises `WorkspaceFault`."""
    entries = scan(root, excludes).entries
    if base is not None and cache.quiet(entries, base) is not None:
        return 0
    stored = _stored_in(base, cache)
    return sum(entry.size for entry in entries if entry.kind == FILE and not stored(entry))


def _stored_in(base: Manifest | None, cache: StatCache) -> Callable[[Scanned], bool]:
    """Tells, asked in the order of the paths, whether a file is in the snapshot `base` as it is on disk.

    What was read for a snapshot that could not be committed is in none. While `base` is unknown, being read counts.
    """
    at = Cursor(tabled(base.entries)) if base is not None else None

    def stored(entry: Scanned) -> bool:
        # What their times show: files held for writing are not all work at risk.
        digests = cache.lookup(entry, -math.inf)
        if digests is None or at is None or base is None:
            return digests is not None
        was = at.find(entry.path)
        return was is not None and was.kind == FILE and digests_of(was, base.blobs) in (digests, None)

    return stored
