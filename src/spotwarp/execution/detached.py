"""`spotwarp run` in the background: a session of its own that no closed terminal reaches, and the way back to it.

No root, no systemd, no tmux: the same command line is started again with nothing on its terminal's side. Its words go
to `.spotwarp/words.log`, the command's output to the log that every run has. Whoever started it waits until the command
runs, or has failed to, and may leave earlier.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spotwarp.clock import Clock
from spotwarp.errors import ExecutionError, NotRunning
from spotwarp.execution.control_socket import ask, glimpse
from spotwarp.execution.localstate import runtime
from spotwarp.execution.output import outputlog
from spotwarp.execution.output.following import Read, Tail, Waiting, copied, last_lines
from spotwarp.system import require_linux

VARIABLE = "SPOTWARP_STARTED_FD"
"""In the background process's environment, until it has read it: where to say that the command runs."""
WORDS_LIMIT = 1 << 20
POLL_S = 0.1
_STARTED = b"started\n"


def words_path(workspace: Path) -> Path:
    """Where a run in the background says what it has to say."""
    return runtime(workspace) / "words.log"


class Starting:
    """The starter's view of a run that is being started in the background."""

    def __init__(self, workspace: Path, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        """Start `spotwarp ARGUMENTS`. Raises `ExecutionError`, `WorkspaceFault`, `OSError`."""
        require_linux("running a command")
        words = words_path(workspace)
        words.parent.mkdir(parents=True, exist_ok=True)
        if words.exists() and words.stat().st_size > WORDS_LIMIT and glimpse(workspace) is None:
            words.replace(words.with_name(words.name + ".1"))
        self._words = Tail(words)
        self._reading, writing = os.pipe()
        try:
            self.pid = _spawn(arguments, {**env, VARIABLE: "3"}, words, writing)
        except (OSError, NotImplementedError) as error:
            raise ExecutionError(f"cannot start a process in the background: {error}") from error
        finally:
            os.close(writing)

    def wait(self, show: Callable[[bytes], None]) -> int | None:
        """Show its words until its command runs (None) or it has ended without (its exit code)."""
        started = False
        while not started:
            ready, _, _ = select.select([self._reading], [], [], POLL_S)
            copied(self._words, show)
            if ready:
                data = os.read(self._reading, 100)
                started = data == _STARTED
                if not data:
                    break
        os.close(self._reading)
        if started:
            return None
        code = self.ended(wait=True)
        copied(self._words, show)
        return code

    def ended(self, *, wait: bool = False) -> int | None:
        """Its exit code as a shell has it, None while it goes on."""
        pid, status = os.waitpid(self.pid, 0 if wait else os.WNOHANG)
        code = os.waitstatus_to_exitcode(status)
        return None if not pid else code if code >= 0 else 128 - code


def _spawn(arguments: Sequence[str], env: Mapping[str, str], words: Path, writing: int) -> int:
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_DUP2, writing, 3),  # first: where our own three are closed, it may be one of these
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, str(words), append, 0o666),
    ]
    # -P: a file of the workspace that is called like a module of Python's must not be imported for it.
    command = [sys.executable, "-P", "-m", "spotwarp", *arguments]
    return os.posix_spawn(sys.executable, command, env, file_actions=actions, setsid=True)


def reporter(env: dict[str, str] | os._Environ[str]) -> Callable[[], None] | None:
    """In the background process: what to call once the command runs. None in any other.

    The variable is removed, so that the command does not inherit it.
    """
    given = env.pop(VARIABLE, None)
    if given is None or not given.isdecimal():
        return None
    fd = int(given)
    os.set_inheritable(fd, False)

    def report() -> None:
        with contextlib.suppress(OSError):  # whoever started us has left
            os.write(fd, _STARTED)
            os.close(fd)

    return report


def attach(
    workspace: Path, *, lines: int, show: Callable[[bytes], None], tell: Callable[[bytes], None], clock: Clock
) -> dict[str, Any]:
    """Show the output of the run at work here, from its last `lines` lines on, until it ends; how it ended.

    `tell` gets SpotWarp's own words. Raises `NotRunning`, `ExecutionError` when it went away without a word.
    """
    words = Tail(words_path(workspace))
    waiting = Waiting(lambda: ask(workspace, {"verb": "wait"}))
    read: Read | None = None
    at = 0
    while True:
        over = waiting.ended.is_set()  # asked before the last look: nothing is missed
        if read is None and (known := ask(workspace, {"verb": "status"})) and known["generation"]:
            log = outputlog.log_path(runtime(workspace), known["generation"])
            read = Tail(log).read
            at = last_lines(read, 0, lines)
        copied(words, tell)
        if read is not None:
            at = through(read, at, show, tell)
        if over:
            break
        clock.wait(waiting.ended, POLL_S)
    outcome = waiting.result()
    if outcome is None:
        raise NotRunning("no SpotWarp is at work in this workspace, on this machine")
    return outcome


def through(read: Read, at: int, show: Callable[[bytes], None], tell: Callable[[bytes], None]) -> int:
    """Show what there is from `at` on, say what is missing; the new position."""
    while True:
        start, data = read(at)
        if not data:
            return at
        if start > at:
            tell(f"spotwarp: {start - at} bytes of output are not kept\n".encode())
        show(data)
        at = start + len(data)
