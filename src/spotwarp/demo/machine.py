"""A stand-in for a rented machine: a directory, one program in it, and everything that can befall them.

Owns the process tree that the program becomes: starting it, reading its lines with the moment of each, freezing,
thawing and killing all of it at once, as a machine would. Must never signal a process that it did not start; processes
are known by a mark in their environment and told apart by number and start time, never by name.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from spotwarp.clock import Clock

DEADLINE_S = 60.0
POLL_S = 0.002
DRAIN_S = 2.0
"""How long the last lines may take; what outlived the program may hold its output open for ever."""
MARK = "DEMO_MACHINE"
"""The environment variable by which a machine's processes are known, wherever they went."""


class StageFailed(Exception):
    """The scenario cannot go on: what was waited for did not come."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of output and the monotonic second at which it was read."""

    at: float
    text: str


class Machine:
    """One directory and the program that runs in it. Use as a context: leaving it kills whatever is left."""

    def __init__(self, directory: Path, logs: Path, clock: Clock) -> None:
        directory.mkdir(parents=True)
        logs.mkdir(parents=True, exist_ok=True)
        self.directory, self.name, self.clock = directory, directory.name, clock
        self._lines: list[Line] = []
        self._log, self._complaints = logs / f"{self.name}.out", logs / f"{self.name}.err"
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self.kill()

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start `command` in the directory, in a session of its own."""
        with self._complaints.open("wb") as complaints:
            self._process = subprocess.Popen(
                command,
                cwd=self.directory,
                env={**environment, MARK: str(self.directory)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name=f"read-{self.name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        output = self._started.stdout
        if output is None:
            raise RuntimeError("the output is always a pipe")
        with output, self._log.open("wb") as log:
            for line in output:
                self._lines.append(Line(self.clock.monotonic(), line.decode(errors="replace").rstrip()))
                log.write(line)
                log.flush()

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process

    def find(self, pattern: str) -> list[tuple[float, re.Match[str]]]:
        """All lines so far that match `pattern` from their beginning, with their moments, oldest first."""
        return [(line.at, match) for line in tuple(self._lines) if (match := re.match(pattern, line.text))]

    @property
    def steps(self) -> list[tuple[float, int]]:
        """The training steps printed so far and when, oldest first."""
        return [(at, int(match[1])) for at, match in self.find(r"step (\d+)/")]

    @property
    def start_step(self) -> tuple[float, int] | None:
        """When and at which step the trainer started, if it has."""
        return next(((at, int(match[1])) for at, match in self.find(r"start at (\d+)$")), None)

    def last_words(self) -> str:
        """The last lines of what the program said, for a message."""
        words = self._complaints.read_text(errors="replace").strip().splitlines()
        return " | ".join(words[-3:] or [line.text for line in self._lines[-3:]]) or "nothing"

    def until(self, condition: Callable[[], bool], what: str, seconds: float = DEADLINE_S) -> None:
        """Return as soon as `condition` holds. Raises StageFailed when it cannot any more, or not in `seconds`."""
        end = self.clock.monotonic() + seconds
        while not condition():
            ended = self._started.poll()
            if ended is not None and not condition():
                raise StageFailed(f"{self.name} exited with {ended} before {what}; last words: {self.last_words()}")
            if self.clock.monotonic() > end:
                raise StageFailed(f"{self.name}: {what} did not come within {seconds:.0f} s: {self.last_words()}")
            self.clock.sleep(POLL_S)

    def exit_code(self, seconds: float = DEADLINE_S) -> int:
        """Wait for the program's end; its exit code. Raises StageFailed after `seconds`."""
        try:
            code = self._started.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise StageFailed(f"{self.name} did not end within {seconds:.0f} s: {self.last_words()}") from error
        if self._reader is not None:
            self._reader.join(DRAIN_S)
        return code

    def notify(self) -> None:
        """Give notice: SIGTERM to the program alone, as a provider or an orchestrator would."""
        self._started.terminate()

    def tree(self) -> list[psutil.Process]:
        """All living processes that the program has become, those included that left its session or outlived it."""
        mark = str(self.directory)
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == mark:
                    found.append(process)
        return found

    def freeze(self, *, program: bool = True) -> list[psutil.Process]:
        """Stop all of the tree (without the program itself on request); the processes that were stopped."""
        if program and self._started.poll() is None:
            self._started.send_signal(signal.SIGSTOP)
        stopped: list[psutil.Process] = []
        while fresh := [process for process in self.tree() if process not in stopped]:
            for process in fresh:
                if program or process.pid != self._started.pid:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.suspend()
            stopped += fresh
        return stopped

    def freeze_when(self, condition: Callable[[], bool], what: str, *, program: bool = True) -> None:
        """Freeze at a moment at which `condition` holds for certain. Raises StageFailed as `until` does."""
        while True:
            self.until(condition, what)
            stopped = self.freeze(program=program)
            if condition():
                return
            self.thaw(stopped)  # it was faster than we were: the next chance

    def thaw(self, stopped: Sequence[psutil.Process]) -> None:
        """Let the processes that `freeze` stopped go on, in the middle of whatever they did."""
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def kill(self) -> None:
        """SIGKILL to all of the tree, frozen first so that none can escape or tidy up."""
        for process in self.freeze():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._started.wait(DEADLINE_S)
        end = self.clock.monotonic() + DEADLINE_S
        while self.tree() and self.clock.monotonic() < end:  # SIGKILL is certain but not immediate
            self.clock.sleep(POLL_S)
