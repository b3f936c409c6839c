"""A hook that is a command: run again and again, or once for as long as the run takes.

A line of its output that is a JSON object with `seconds_left` (null: not known) or `deadline` is a notice, and exit
code 75 is one; exit code 0 is none; every other end is a fault. A command that does not end is listened to until the
run ends. Its errors go where SpotWarp's go. It is started in SpotWarp's session, so that it is never taken for the
training, and in a group of its own, which is ended with the run.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from pathlib import Path

from spotwarp.clock import Clock
from spotwarp.errors import NoticeFault
from spotwarp.execution.notice.deadline import Left, given, read_json
from spotwarp.execution.notice.source import Announced, Seen, Source
from spotwarp.execution.process.starter import shell

NOTICE_CODE = 75
LISTEN_S = 1.0
_LINE = 64 << 10


class CommandHook(Source):
    """One command. `grace_s` is what a notice without a time leaves."""

    name = "command"

    def __init__(self, command: str, directory: Path, clock: Clock, *, period_s: float, grace_s: float) -> None:
        self._command, self._directory, self._clock = command, directory, clock
        self._every_s, self._grace_s = period_s, grace_s
        self.period_s = period_s
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._lock = threading.Lock()
        self._aborted = False

    def look(self) -> Seen:
        """See `Source`: listen for a second at most to the command, which is started where none runs."""
        process = self._process or self._start()
        self.period_s = 0.0  # while it runs, listening is the waiting
        said = self._listen(process)
        if said is not None:
            return Seen(Announced(said.seconds, "notice", said.by))
        code = process.poll()
        if code is None:
            return Seen()
        self._end()
        self.period_s = self._every_s
        if code == NOTICE_CODE:
            return Seen(Announced(self._grace_s, "notice", f"it left with {code}"))
        if code:
            raise NoticeFault(f"the command left with {code}")  # itself unsaid: it may hold a token
        return Seen()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._aborted:
                raise NoticeFault("no more questions")
            try:
                self._process = subprocess.Popen(
                    [shell(os.environ), "-c", self._command],
                    cwd=self._directory,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    process_group=0,
                    bufsize=0,
                )
            except OSError as error:
                raise NoticeFault(f"the command cannot be started: {error.strerror}") from error
            self._rest = b""
            return self._process

    def _listen(self, process: subprocess.Popen[bytes]) -> Left | None:
        assert process.stdout is not None  # noqa: S101 - asked for above
        limit = self._clock.monotonic() + LISTEN_S
        while (left := limit - self._clock.monotonic()) > 0:
            if not select.select([process.stdout], [], [], left)[0]:
                break
            data = os.read(process.stdout.fileno(), 4096)
            if not data:
                with contextlib.suppress(subprocess.TimeoutExpired):  # it may close its output and go on
                    process.wait(max(0.0, limit - self._clock.monotonic()))
                rest, self._rest = self._rest, b""
                return self._line(rest)
            *lines, rest = (self._rest + data).split(b"\n")
            self._rest = rest[-_LINE:]
            for line in lines:
                if (said := self._line(line)) is not None:
                    return said
        return None

    def _line(self, line: bytes) -> Left | None:
        if not line.lstrip().startswith(b"{"):
            return None
        try:
            return given(read_json(line), self._clock.wall(), otherwise_s=self._grace_s)
        except NoticeFault:
            return None  # words of another kind

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()  # outside the lock: whoever aborts must not wait for a process that is stuck
        if process.stdout is not None:
            process.stdout.close()

    def abort(self) -> None:
        """See `Source`."""
        with self._lock:
            self._aborted = True
            if self._process is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
