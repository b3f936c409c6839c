"""The command's output: every byte through to the user untouched and at once, and kept in a log of bounded size.

Owns what the child's 0, 1 and 2 are (a pty where ours is a terminal, else a pipe; stdin as it is) and the threads that
copy. Must never let the user's side disturb training: a terminal that closed, a pipe nobody reads any more or reads
slowly costs the user output (the log has it), not the command time; a full disk costs the log.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import termios
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from spotwarp import system
from spotwarp.clock import Clock
from spotwarp.execution.output.cursor import Cursor
from spotwarp.execution.output.outputlog import OutputLog, Recent
from spotwarp.execution.process.starter import Stdio
from spotwarp.execution.redaction import Redactor

_READ = 1 << 16
_TAIL = 1 << 16
_STDIN_POLL_S = 0.5


class OutputPump:
    """Copies one command's output. Give `child_stdio` to the command, then `start`, then `finish` once it is gone."""

    def __init__(
        self,
        log_path: Path,
        limit_bytes: int,
        *,
        clock: Clock,
        ours: Stdio | None = None,
        buffer_bytes: int = 8 << 20,
        patience_s: float = 1.0,
        say: Callable[[str], None] | None = None,
        redactor: Redactor | None = None,
        recent: Recent | None = None,
        cursor: Cursor | None = None,
    ) -> None:
        """`log_path` and its two elder parts stay within `limit_bytes` together; `recent` gets all output, too;
        `cursor` hears what goes to where our stderr goes.

        A reader of ours that leaves `buffer_bytes` unread for `patience_s` misses output from there on, until it has
        read half of them; `say` is told so once, from a thread, when it reads again. `redactor` takes secrets out of
        the log, never out of what the user sees.
        """
        self._redactor = redactor or Redactor()
        self._clock = clock
        self._ours = ours or Stdio()
        self._lock = threading.Lock()  # over the log and the tail
        self._log = OutputLog(log_path, limit_bytes)
        self._tail = bytearray()
        self._recent = recent
        self._last_output: float | None = None
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._theirs: list[int] = []
        self._pty: tuple[int, int] | None = None  # our end and the command's
        self._typing: threading.Thread | None = None
        self._outlets: list[_Outlet] = []
        self._sources: list[tuple[int, _Outlet]] = []
        self._finished = False

        def outlet(fd: int) -> _Outlet:
            missed = f"output was not read and is not shown here; all of it is in {log_path}"
            moved = cursor.moved if cursor and _same_file(fd, self._ours.stderr) else None
            self._outlets.append(_Outlet(fd, buffer_bytes, patience_s, lambda: say(missed) if say else None, moved))
            return self._outlets[-1]

        stdout = self._open(self._ours.stdout, outlet)
        shared = _same_file(self._ours.stdout, self._ours.stderr)
        stderr = stdout if shared else self._open(self._ours.stderr, outlet)
        stdin = self._ours.stdin
        if _is_terminal(stdin):
            stdin = self._terminal()[1]
        self.child_stdio = Stdio(stdin, stdout, stderr)
        self.resized()

    def start(self) -> None:
        """Copy from now on. Call right after the command was started with `child_stdio`."""
        self._close_theirs()
        for source, outlet in self._sources:
            outlet.start()
            self._run(self._copy, source, outlet)
        if self._pty is not None and _is_terminal(self._ours.stdin):
            forward, ends = self._forward_lines, (self._ours.stdin, self._pty[0])
            self._typing = threading.Thread(target=forward, args=ends, name="spotwarp-stdin", daemon=True)
            self._typing.start()

    def resized(self) -> bool:
        """Give the command's terminal our window's size; True when it has one, and wants SIGWINCH."""
        with self._lock:
            if self._pty is None or self._finished:
                return False
            for fd in (self._ours.stdout, self._ours.stderr, self._ours.stdin):
                with contextlib.suppress(OSError):
                    size = fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8))
                    fcntl.ioctl(self._pty[0], termios.TIOCSWINSZ, size)
                    return True
            return False

    @property
    def last_output(self) -> float | None:
        """When the command last wrote anything, in this machine's monotonic seconds."""
        return self._last_output

    @property
    def missed_bytes(self) -> int:
        """How much output our own stdout and stderr did not take; the log has it."""
        return sum(outlet.missed for outlet in self._outlets)

    @property
    def log_fault(self) -> OSError | None:
        """Why the log lacks output, or None when it lacks nothing."""
        return self._log.fault

    def last_lines(self, count: int) -> list[str]:
        """The last lines of output as a terminal would show them: what `\\r` overwrote is left out."""
        with self._lock:
            text = bytes(self._tail)
        lines = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in text.removesuffix(b"\n").split(b"\n")]
        return [line.decode(errors="replace") for line in lines[-count:]] if text and count > 0 else []

    def finish(self, timeout_s: float) -> bool:
        """Copy what is left and stop; True when all of it is through. Call when the process tree is gone."""
        limit = self._clock.monotonic() + timeout_s
        self._close_theirs()
        self._closing.set()
        for thread in self._threads:
            thread.join(max(0.0, limit - self._clock.monotonic()))
        copied = not any(thread.is_alive() for thread in self._threads)
        shown = [outlet.finish(max(0.0, limit - self._clock.monotonic())) for outlet in self._outlets]
        if self._typing is not None:
            self._typing.join(2 * _STDIN_POLL_S)
        with self._lock:
            self._finished = True
            self._log.close()
        if copied and not (self._typing and self._typing.is_alive()):  # nobody uses them any more
            for source in {source for source, _ in self._sources} | ({self._pty[0]} if self._pty else set()):
                os.close(source)
            self._sources, self._pty = [], None
        return copied and all(shown)

    # --- Inside

    def _open(self, ours: int, outlet: Callable[[int], _Outlet]) -> int:
        """What the command gets in place of `ours`."""
        if not _is_terminal(ours):
            source, theirs = os.pipe()
        elif self._pty is None:
            source, theirs = self._terminal()
        else:  # two different terminals: the second is only written to
            source, theirs = _raw_pty()
        if theirs not in self._theirs:
            self._theirs.append(theirs)
        self._sources.append((source, outlet(ours)))
        return theirs

    def _terminal(self) -> tuple[int, int]:
        if self._pty is None:
            self._pty = _raw_pty()
            self._theirs.append(self._pty[1])
        return self._pty

    def _close_theirs(self) -> None:
        while self._theirs:
            os.close(self._theirs.pop())

    def _run(self, target: Callable[[int, _Outlet], None], source: int, outlet: _Outlet) -> None:
        thread = threading.Thread(target=target, args=(source, outlet), name="spotwarp-output", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _copy(self, source: int, outlet: _Outlet) -> None:
        redacting = self._redactor.stream()
        while data := _read(source):
            with self._lock:
                self._last_output = self._clock.monotonic()
                self._keep(redacting.feed(data))
            outlet.offer(data)
        with self._lock:
            self._keep(redacting.rest())

    def _keep(self, data: bytes) -> None:
        """Into the log, the tail and what is to be sent; the lock is held."""
        self._log.write(data)
        self._tail += data
        del self._tail[:-_TAIL]
        if self._recent is not None:
            self._recent.add(data)

    def _forward_lines(self, ours: int, master: int) -> None:
        """What the user types goes to the command, while we are in the foreground (our terminal echoes it)."""
        _stay_unstopped()
        poll = select.poll()
        poll.register(ours, select.POLLIN)
        while not self._closing.is_set():
            if not _in_foreground(ours):
                self._closing.wait(_STDIN_POLL_S)
                continue
            ready = poll.poll(_STDIN_POLL_S * 1000)
            if not ready:
                continue
            if ready[0][1] & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
                return  # the terminal closed; that is no end of input
            try:
                os.write(master, os.read(ours, 4096) or b"\x04")  # nothing read is the user's Ctrl-D
            except OSError:
                self._closing.wait(_STDIN_POLL_S)


class _Outlet:
    """Our own stdout or stderr, which may be slow, stopped or gone."""

    def __init__(
        self,
        fd: int,
        capacity: int,
        patience_s: float,
        tell: Callable[[], None],
        moved: Callable[[bytes], None] | None = None,
    ) -> None:
        self._fd, self._moved = fd, moved
        self._capacity = max(capacity, 2 * _READ)
        self._patience_s = patience_s
        self._tell: Callable[[], None] | None = tell
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._held = 0
        self._skipping = False
        self._gone = False
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="spotwarp-outlet", daemon=True)
        self.missed = 0

    def start(self) -> None:
        self._thread.start()

    def offer(self, data: bytes) -> None:
        """Take `data`, or drop it after at most the patience."""
        with self._changed:
            if self._skipping and self._held <= self._capacity // 2:
                self._skipping = False
            if not self._skipping and not self._gone:
                self._skipping = not self._changed.wait_for(
                    lambda: self._gone or self._held + len(data) <= self._capacity, self._patience_s
                )
            if self._skipping or self._gone:
                self.missed += len(data)
                return
            self._waiting.append(data)
            self._held += len(data)
            self._changed.notify_all()

    def finish(self, timeout_s: float) -> bool:
        """Write what waits, for at most `timeout_s`; False when bytes were left."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and not self.missed

    def _run(self) -> None:
        _stay_unstopped()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ending)
                if not self._waiting:
                    return
                data = self._waiting[0]
            taken = _write_all(self._fd, data)
            if self._moved is not None:
                self._moved(data)
            with self._changed:
                self._waiting.popleft()
                self._held -= len(data)
                if not taken:
                    self._gone = True
                    self.missed += self._held + len(data)
                    self._waiting.clear()
                    self._held = 0
                self._changed.notify_all()
            if taken and self.missed and self._tell is not None:
                self._tell()
                self._tell = None


def nowhere() -> Stdio:
    """For output that nobody here is to see: its log has it."""
    null = os.open(os.devnull, os.O_RDWR | system.CLOEXEC)
    return Stdio(0, null, null)


def _raw_pty() -> tuple[int, int]:
    """A pty that changes no byte of the output and does not echo: our own terminal does both already."""
    master, slave = os.openpty()
    modes = termios.tcgetattr(slave)
    modes[1] &= ~termios.OPOST
    modes[3] &= ~(termios.ECHO | termios.ECHONL)
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    return master, slave


def _is_terminal(fd: int) -> bool:
    return os.isatty(fd)  # False for a closed one


def _same_file(one: int, other: int) -> bool:
    """Whether both lead to the same place, where only one copier keeps the order of lines."""
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:
        return False


def _in_foreground(fd: int) -> bool:
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return True  # not our controlling terminal: no job control to respect


def _stay_unstopped() -> None:
    """In this thread, a terminal that we are in the background of answers EIO instead of stopping the process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN, signal.SIGTTOU})


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _READ)
    except OSError:
        return b""  # EIO: the last end of a pty was closed


def _write_all(fd: int, data: bytes) -> bool:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:  # somebody made our stdout non-blocking
            select.select([], [fd], [])
        except OSError:
            return False
    return True
