"""Notices completed checkpoints soon after they are written, cheaply, by looking.

Looks a few times a second at the directories in which checkpoints lie. It only ever says "now would be a good time":
what is in a snapshot is decided by the scan that follows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from spotwarp.clock import Clock
from spotwarp.config import DIRECTORY
from spotwarp.execution.checkpoints import Checkpoint, CheckpointClass, Signature, judge, seen, step_of
from spotwarp.execution.syncing.judging import needs_quiet

_DISCOVER_S = 5.0
_DEPTH = 3
_MOST_DIRECTORIES = 2000


@dataclass(slots=True)
class _Seen:
    signature: Signature
    since: float
    judged: bool = False
    done: bool = False
    own_mtime: int = 0


class CheckpointWatch:
    """A thread that calls `on_complete` once for each checkpoint that has become whole and quiet."""

    def __init__(
        self,
        root: Path,
        *,
        settle_s: float,
        clock: Clock,
        on_complete: Callable[[Checkpoint], None],
        poll_s: float = 0.5,
    ) -> None:
        self._root = root
        self._settle_s = settle_s
        self._clock = clock
        self._on_complete = on_complete
        self._poll_s = min(poll_s, settle_s / 2) if settle_s else poll_s
        self._known: dict[bytes, _Seen] = {}
        self._parents: set[bytes] = {b""}
        self._discovered = float("-inf")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoint-watch", daemon=True)

    def start(self) -> None:
        """Begin. What is complete already is taken as known."""
        for path in self._candidates():
            self._known[path] = _Seen(
                seen(self._root, path), self._clock.monotonic(), done=True, own_mtime=self._mtime(path)
            )
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def _run(self) -> None:
        while not self._clock.wait(self._stop, max(0.05, self._poll_s)):
            self.look()

    def look(self) -> None:
        """One look at everything that may be a checkpoint."""
        now = self._clock.monotonic()
        present = list(self._candidates())
        for path in present:
            self._look_at(path, now)
        for path in set(self._known) - set(present):
            del self._known[path]

    def _look_at(self, path: bytes, now: float) -> None:
        known = self._known.get(path)
        if known is not None and known.done and known.own_mtime == self._mtime(path):
            return
        signature = seen(self._root, path)
        if known is None or known.signature != signature:
            self._known[path] = _Seen(signature, now, own_mtime=self._mtime(path))
            return
        if known.judged or not signature:
            return
        verdict = judge(self._root, path)
        if needs_quiet(verdict) and now - known.since < self._settle_s:
            return
        if seen(self._root, path) != signature:
            return
        known.judged = True
        known.done = verdict.cls is not CheckpointClass.TORN  # a torn one may still grow within the same names
        if known.done:
            self._on_complete(verdict)

    def _mtime(self, path: bytes) -> int:
        try:
            return os.lstat(os.path.join(os.fsencode(self._root), path)).st_mtime_ns  # noqa: PTH118 - bytes
        except OSError:
            return 0

    def _candidates(self) -> Iterator[bytes]:
        now = self._clock.monotonic()
        if now - self._discovered >= _DISCOVER_S:
            self._discovered = now
            self._parents = set(self._directories())
        for parent in sorted(self._parents):
            for path in self._children(parent):
                if step_of(path) is not None:
                    yield path

    def _directories(self) -> Iterator[bytes]:
        """Directories near the top, in which checkpoints may appear."""
        level, count = [b""], 0
        for _ in range(_DEPTH):
            below: list[bytes] = []
            for directory in level:
                count += 1
                if count > _MOST_DIRECTORIES:
                    return
                yield directory
                below += [p for p in self._children(directory) if step_of(p) is None and p != DIRECTORY.encode()]
            level = below

    def _children(self, parent: bytes) -> Iterator[bytes]:
        try:
            with os.scandir(os.path.join(os.fsencode(self._root), parent)) as found:  # noqa: PTH118 - bytes
                names = [e.name for e in found if e.is_dir(follow_symlinks=False)]
        except OSError:
            return
        for name in names:
            yield parent + b"/" + name if parent else name
