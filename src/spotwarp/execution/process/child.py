"""One process tree per attempt: start it, signal it, reap it, prove it gone. Linux only.

Owns every process that the training command starts, double-forked and setsid'ed ones included: SpotWarp's process is
their *child subreaper* (`prctl(PR_SET_CHILD_SUBREAPER)`), so whatever loses its parent becomes its child. As PID 1 it
is that anyway. Processes that SpotWarp starts for itself stay in its own session and are told apart by that: they are
neither reaped nor signalled here. There is one live tree per SpotWarp process.
Must never signal a process that is not of the tree: pid and start time are compared, through a pidfd.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotwarp.clock import Clock
from spotwarp.errors import ExecutionError
from spotwarp.execution.process.proc import Process, look, look_all, send_all, tree_below
from spotwarp.execution.process.starter import Stdio, shell, start

_POLL_S = 0.02
_KILL_LIMIT_S = 10.0  # longer than any healthy exit; only a process stuck inside the kernel outlives it
_PR_SET_CHILD_SUBREAPER = 36
_SIGNAL_HINTS = {
    signal.SIGKILL: "often the kernel's out-of-memory killer, else a person or the platform",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGBUS: "often a full /dev/shm or a truncated mapped file",
    signal.SIGABRT: "native code gave up; its message is in the output above",
    signal.SIGILL: "a binary built for another processor",
}


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: by `code`, by `signal`, or, when both are None, in a way that nobody could record."""

    code: int | None
    signal: int | None = None

    @property
    def shell_code(self) -> int:
        """What a shell would report: the code, or 128 + the signal; 125 when it was lost, never 0."""
        if self.signal is not None:
            return 128 + self.signal
        return 125 if self.code is None else self.code

    def describe(self, *, by_us: bool = False) -> str:
        """The end in words, with the signal's name; `by_us`: SpotWarp was ending it, so nobody else is suspected."""
        if self.signal is not None:
            return f"was killed by {_signal_words(self.signal, guess=not by_us)}"
        if self.code is None:
            return "ended, but its exit status was lost"
        number = self.code - 128
        if number in {int(known) for known in signal.valid_signals()}:
            return f"exited with {self.code}, a shell's word for: killed by {_signal_words(number, guess=not by_us)}"
        return f"exited with {self.code}"


def _signal_words(number: int, *, guess: bool) -> str:
    try:
        known = signal.Signals(number)
    except ValueError:
        return f"signal {number}"
    hint = _SIGNAL_HINTS.get(known) if guess else None
    return f"{known.name} ({number})" + (f"; {hint}" if hint else "")


@dataclass(frozen=True, slots=True)
class Ended:
    """What `ProcessTree.end` did: `killed` needed SIGKILL, `left` did not die even of that (stuck in the kernel)."""

    killed: tuple[Process, ...]
    left: tuple[Process, ...]


class ProcessTree:
    """The training command and everything it ever started. All methods may be called from any thread."""

    def __init__(self, leader: Process, exited: _Leader) -> None:
        self._leader = leader
        self._exited = exited
        self._gone = threading.Lock()  # taken once and for ever when the tree was seen gone
        _REAPER.take_on()

    @classmethod
    def start(
        cls, command: str | Sequence[str], *, cwd: Path, env: Mapping[str, str], stdio: Stdio | None = None
    ) -> ProcessTree:
        """Start `command` in a session and process group of its own, without a controlling terminal.

        A string runs as `bash -c STRING` (`/bin/sh` where there is no bash), handed over byte for byte; bash's own
        126 and 127 are then exit codes of the child. A sequence is executed directly, searched in `env`'s PATH.
        The child gets only the three descriptors, an empty signal mask and every signal at its default, except
        SIGHUP: ignored in SpotWarp (as under nohup) means ignored in the child. It inherits the niceness of the
        calling thread, which is the reason to call this from one that never lowered its own.

        Raises `CommandNotFound`, `CommandNotRunnable`, `WorkspaceFault` (cwd), `ExecutionError` (no way to start).
        """
        argv = [shell(env), "-c", command] if isinstance(command, str) else list(command)
        _become_subreaper()
        return cls(*start(argv, cwd, env, stdio or Stdio(), _REAPER.adopt))

    @property
    def pid(self) -> int:
        """The leader's pid, which is also its group and session."""
        return self._leader.pid

    @property
    def status(self) -> ExitStatus | None:
        """The leader's end, or None while it runs."""
        return self._exited.status

    def wait_leader(self, timeout_s: float | None = None) -> ExitStatus | None:
        """Wait for the leader (not the tree) to end; None when `timeout_s` passed first."""
        self._exited.done.wait(timeout_s)
        return self._exited.status

    def descendants(self) -> list[Process]:
        """Every living process of the tree, the leader first while it lives."""
        # One look may miss a process whose parent ended while we looked: it is our own child at the next look.
        return tree_below(self._leader) or tree_below(self._leader)

    def alive(self) -> bool:
        """Whether any process of the tree still runs."""
        return not self._seen_gone(self.descendants())

    def _seen_gone(self, left: Sequence[Process]) -> bool:
        """Whether nothing is `left`; from then on this process's children are nobody's but their starters'."""
        if not left and self._exited.done.is_set() and self._gone.acquire(blocking=False):
            _REAPER.let_go()
        return not left

    def signal_group(self, sig: int) -> None:
        """Signal the leader's process group, at one instant."""
        with _REAPER.lock:  # under the lock the leader's pid cannot be reaped and given to somebody else
            if self._exited.status is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, sig)
                return
        send_all((one for one in self.descendants() if one.group == self.pid), sig)

    def signal_tree(self, sig: int) -> set[Process]:
        """Signal the leader's group first, then every other process of the tree, whatever its session.

        Returns who was told; a process that started meanwhile may not have been.
        """
        grouped = {one for one in self.descendants() if one.group == self.pid}
        self.signal_group(sig)
        return grouped.union(send_all((one for one in self.descendants() if one.group != self.pid), sig))

    def end(self, term_grace_s: float, clock: Clock) -> Ended:
        """SIGTERM to the tree, wait up to `term_grace_s` seconds, then SIGKILL until nothing is alive.

        Takes at most about `term_grace_s` + 10 s. Idempotent, and a second call with a shorter grace overtakes a
        first one in another thread. What is in `Ended.left` has SIGKILL pending and cannot run its own code again.
        """
        if term_grace_s > 0:
            self._terminate(clock.monotonic() + term_grace_s, clock)
        killed: dict[Process, None] = {}
        limit = clock.monotonic() + _KILL_LIMIT_S
        while left := self.descendants():
            if clock.monotonic() >= limit:
                break
            killed.update(dict.fromkeys(send_all(left, signal.SIGKILL)))
            clock.sleep(_POLL_S)
        if not left:
            clock.wait(self._exited.done, 1.0)
        self._seen_gone(left)
        return Ended(tuple(killed), tuple(left))

    def _terminate(self, until: float, clock: Clock) -> None:
        told = self.signal_tree(signal.SIGTERM)
        while (left := self.descendants()) and clock.monotonic() < until:
            late = [one for one in left if one not in told]  # started since, perhaps by an elastic launcher
            told.update(send_all(late, signal.SIGTERM))
            send_all((one for one in left if one.state == "T"), signal.SIGCONT)  # stopped: could not even hear it
            clock.sleep(_POLL_S)


# --- Reaping


class _Leader:
    """Where the reaper leaves the leader's end."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.status: ExitStatus | None = None

    def set(self, status: ExitStatus) -> None:
        self.status = status
        self.done.set()


class _Reaper:
    """Reaps every child of this process that is of a tree. One per process, because waiting is process-wide.

    Children in our own session are other code's (`subprocess.Popen` loses the exit code if somebody else reaps). Nobody
    waits for those among them that were a program's with a group of its own, and came to us when it ended.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # re-entrant: a signal handler may arrive in the thread that holds it
        self._leaders: dict[int, _Leader] = {}
        self._thread: threading.Thread | None = None
        self._never = threading.Event()
        self._trees = 0
        """Those that live. Without one, nobody's child is reaped here but a command that did not start."""

    def adopt(self, spawn: Callable[[], int]) -> tuple[Process, _Leader]:
        """Call `spawn` for the pid of a new child, and expect that child's end."""
        with self.lock:  # held from before it exists until it is known
            pid = spawn()
            leader = self._leaders[pid] = _Leader()
            self._watch()
            process = look(pid)
        if process is None:
            raise ExecutionError("The command's process is not to be seen in /proc.", hint="Is /proc mounted?")
        return process, leader

    def take_on(self) -> None:
        """A tree lives: whatever loses its parent may be of it, until `let_go`."""
        with self.lock:
            self._trees += 1
            self._watch()

    def let_go(self) -> None:
        """A tree is gone: reap what is left of it. After the last one the thread ends at the next child's end."""
        with self.lock:
            self._trees -= 1
        self._reap_zombies()

    def _reap_zombies(self) -> None:
        for one in look_all():
            if one.parent == os.getpid() and one.state == "Z":
                self._reap(one.pid)

    def _watch(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="spotwarp-reaper", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        pause_s = _POLL_S
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:
                if self._retire():
                    return
                continue
            with self.lock:
                if not self._trees and not self._leaders:
                    self._thread = None
                    return
            if seen is None or self._reap(seen.si_pid):
                pause_s = _POLL_S
                continue
            # Another's zombie stands in front; look behind it until its owner comes.
            self._reap_zombies()
            self._never.wait(pause_s)
            pause_s = min(2 * pause_s, 0.5)

    def _retire(self) -> bool:
        with self.lock:
            try:  # a child may have been started between the answer and the lock
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            except ChildProcessError:
                for leader in self._leaders.values():
                    leader.set(ExitStatus(None))  # somebody else waited for it
                self._leaders.clear()
                self._thread = None
                return True
            return False

    def _reap(self, pid: int) -> bool:
        with self.lock:
            if pid not in self._leaders:
                one = look(pid)
                if one is not None and one.session == os.getsid(0) and one.group in (one.pid, os.getpgrp()):
                    return False
            try:
                seen = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                return True
            if seen is not None and (leader := self._leaders.pop(pid, None)) is not None:
                by_code = seen.si_code == os.CLD_EXITED
                leader.set(ExitStatus(seen.si_status) if by_code else ExitStatus(None, seen.si_status))
            return True


_REAPER = _Reaper()


def _become_subreaper() -> None:
    """Adopt what loses its parent below us, and see that ends are kept for us to read. Idempotent."""
    import ctypes  # late: only a process that starts a command needs it

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise ExecutionError(f"Cannot become a subreaper: {os.strerror(ctypes.get_errno())}.")
    ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN  # inherited; the kernel would drop every exit status
    if ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
