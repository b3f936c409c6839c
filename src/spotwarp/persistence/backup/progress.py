"""How far a backup is, for people. Counts and reports; decides nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Progress:
    """A backup so far: of the files that must be read, how many and how many bytes are done."""

    files: int
    files_total: int
    bytes: int
    bytes_total: int
    seen: int = 0
    """While the directories are still being looked at, and nothing else is known: entries so far."""


class Meter:
    """Counts from several threads; one report at a time."""

    def __init__(self, files_total: int, bytes_total: int, report: Callable[[Progress], None] | None) -> None:
        self._lock = threading.Lock()
        self._now = Progress(0, files_total, 0, bytes_total)
        self._report = report

    @property
    def bytes(self) -> int:
        """Bytes read."""
        return self._now.bytes

    def count(self, *, files: int = 0, read: int = 0) -> None:
        """`files` more are done, `read` more bytes are read."""
        with self._lock:
            now = self._now
            self._now = replace(now, files=now.files + files, bytes=now.bytes + read)
            if self._report is not None:
                self._report(self._now)
