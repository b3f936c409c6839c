"""Output read from a position on, wherever it is: what `attach` and `logs` share.

A *reader* gives what there is from a position on, and where that begins. Pure but for reading; it never waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from spotwarp.errors import SpotWarpError
from spotwarp.execution.output import outputlog

T = TypeVar("T")
Read = Callable[[int], tuple[int, bytes]]


class Tail:
    """A log on this disk, read from its present end on, or from wherever one asks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        found = outputlog.parts(path)
        self.at = found[-1].end if found else 0

    def read(self, at: int) -> tuple[int, bytes]:
        """What there is from `at` on."""
        return outputlog.read(self._path, at)


def copied(tail: Tail, show: Callable[[bytes], None]) -> None:
    """Show what came since the last call."""
    while True:
        start, data = tail.read(tail.at)
        if not data:
            return
        show(data)
        tail.at = start + len(data)


def last_lines(read: Read, at: int, count: int) -> int:
    """The position from which on there are `count` lines, counted from the end; `at` when there are fewer."""
    begins: deque[int] = deque([at], maxlen=max(0, count) + 1)
    end = at
    while True:
        start, data = read(end)
        if not data:
            break
        if start > end:  # what would have begun there was dropped
            if begins[-1] == end > at:
                begins.pop()
            begins.append(start)
        found = data.find(b"\n")
        while found >= 0:
            begins.append(start + found + 1)
            found = data.find(b"\n", found + 1)
        end = start + len(data)
    kept = [begin for begin in begins if begin < end]
    return kept[-count:][0] if kept and count > 0 else end


class Waiting(Generic[T]):
    """A question that takes long, asked in a thread of its own."""

    def __init__(self, question: Callable[[], T]) -> None:
        self.ended = threading.Event()
        self._question = question
        self._answer: T | None = None
        self._error: SpotWarpError | None = None
        threading.Thread(target=self._run, name="waiting", daemon=True).start()

    def _run(self) -> None:
        try:
            self._answer = self._question()
        except SpotWarpError as error:
            self._error = error
        finally:
            self.ended.set()

    def result(self) -> T | None:
        """The answer, once there is one; None when the question ended without. Raises what the question raised."""
        if self._error is not None:
            raise self._error
        return self._answer
