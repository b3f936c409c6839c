"""SpotWarp's own words beside a command's output: said by a thread of their own, because whoever reads them may have
stopped.

A terminal on hold (Ctrl-S) or a pipe that nobody empties must not keep a preemption from being acted on. What does not
fit into the queue is dropped and counted.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

_WAITING = 1000


class Speaker:
    """Passes lines to `say` in order, without ever making the caller wait."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lines: queue.Queue[str | threading.Event] = queue.Queue(_WAITING)
        self._dropped = 0
        threading.Thread(target=self._run, name="speaker", daemon=True).start()

    def say(self, line: str) -> None:
        """Say `line` soon."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything so far was said; False when that takes longer than `timeout_s`."""
        said = threading.Event()
        try:
            self._lines.put(said, timeout=timeout_s)
        except queue.Full:
            return False
        return said.wait(timeout_s)

    def _run(self) -> None:
        while True:
            line = self._lines.get()
            if isinstance(line, threading.Event):
                line.set()
                continue
            self._say(line)
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                self._say(f"({dropped} messages were dropped: nobody was reading)")
