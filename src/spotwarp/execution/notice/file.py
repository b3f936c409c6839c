"""A notice file of the platform's or the user's: its appearance is the notice, its content may give the time.

Content: nothing, or `{"seconds_left": 30}`, or `{"deadline": "2030-01-31T12:00:00Z"}`. A file
that was there before the first look is a notice only if it names a deadline that is to come: what an earlier preemption
left behind must not end every run after it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from spotwarp import system
from spotwarp.clock import Clock
from spotwarp.errors import NoticeFault
from spotwarp.execution.notice.deadline import Left, given, read_json
from spotwarp.execution.notice.source import Announced, Seen, Source

_LIMIT = 64 << 10
_Stamp = tuple[int, int, int, int]


class File(Source):
    """One path, looked at twice a second. `grace_s` is what a notice without a time leaves."""

    name = "file"
    period_s = 0.5

    def __init__(self, path: Path, clock: Clock, *, grace_s: float) -> None:
        self._path, self._clock, self._grace_s = path, clock, grace_s
        self._old: _Stamp | None = None
        self._first = True
        self._half: bytes | None = None
        """Content that could not be read as JSON: perhaps its writer is not done."""

    def abort(self) -> None:
        """Nothing to end: a look at a file never waits."""

    def look(self) -> Seen:
        """See `Source`."""
        first, self._first = self._first, False
        found = self._read()
        if found is None:
            self._old = None
            return Seen()
        stamp, data = found
        if self._old == stamp:
            return Seen()
        if first and not self._to_come(data):
            self._old = stamp
            return Seen(hint=f"{self._path} was there before: no notice until it changes")
        left = self._left(data)
        return Seen(Announced(left.seconds, "notice", left.by) if left else None)

    def _to_come(self, data: bytes) -> bool:
        """Whether an old file names a deadline that is to come."""
        try:
            said = read_json(data)
            left = given(said, self._clock.wall(), otherwise_s=0.0)
        except NoticeFault:
            return False
        return left is not None and left.seconds > 0 and "seconds_left" not in said

    def _left(self, data: bytes) -> Left | None:
        """What a new file leaves; None while its writer may be in the middle: the next look decides."""
        if not data.strip():
            return Left(self._grace_s, "it is empty")
        try:
            said = given(read_json(data), self._clock.wall(), otherwise_s=self._grace_s)
        except NoticeFault as fault:
            if self._half != data:
                self._half = data
                return None
            return Left(self._grace_s, fault.message)
        return said or Left(self._grace_s, "it gives no time")

    def _read(self) -> tuple[_Stamp, bytes] | None:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | system.NONBLOCK | system.CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise NoticeFault(f"{self._path} cannot be read: {error.strerror}") from error
        try:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                raise NoticeFault(f"{self._path} is not a file")
            return (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns), os.read(descriptor, _LIMIT)
        except OSError as error:
            raise NoticeFault(f"{self._path} cannot be read: {error.strerror}") from error
        finally:
            os.close(descriptor)
