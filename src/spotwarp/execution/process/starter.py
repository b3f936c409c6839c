"""From a command to a process: the few lines that run in the new process before it becomes the command.

Owns what the command inherits: directory, environment, three descriptors, signals at their defaults, a session of its
own. Must never run Python code between a fork and an exec of this process: it has threads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from spotwarp.errors import CommandNotFound, CommandNotRunnable, ExecutionError, WorkspaceFault

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stdio:
    """The descriptors that become the child's 0, 1 and 2. They stay the caller's: he closes them after `start`."""

    stdin: int = 0
    stdout: int = 1
    stderr: int = 2


# Runs in the new process. `preexec_fn` may deadlock beside threads, and posix_spawn cannot change the directory; this
# can do everything, and its own environment never reaches the command. It reads the request from 3, answers on 4.
_STARTER = r"""
import os, signal
with open(3, 'rb') as request:
    cwd, count, *rest = request.read().split(b'\0')
argv, env = rest[:int(count)], dict(one.split(b'=', 1) for one in rest[int(count):])
os.setsid()
for number in signal.valid_signals() - {signal.SIGHUP, signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, [])
os.set_inheritable(4, False)
for number in map(int, os.listdir('/proc/self/fd')):
    if number > 2:
        try:
            os.set_inheritable(number, False)
        except OSError:
            pass
try:
    os.chdir(cwd)
except OSError as error:
    os.write(4, b'cwd %d' % error.errno)
    os._exit(125)
os.write(4, b'exec ')
try:
    os.execvpe(argv[0], argv, env)
except OSError as error:
    os.write(4, b'%d' % error.errno)
os._exit(127)
"""


def start(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str], stdio: Stdio, adopt: Callable[[Callable[[], int]], T]
) -> T:
    """Start `argv` and return once it is what runs; the result is what `adopt` makes of the call that gives the pid.

    Raises `CommandNotFound`, `CommandNotRunnable`, `WorkspaceFault` (cwd), `ExecutionError` (no way to start).
    """
    if not argv:
        raise CommandNotRunnable("The command is empty.", hint="Give the training command.")
    if not sys.executable:
        raise ExecutionError("Cannot start the command: this Python does not know its own executable.")
    answer, answering = os.pipe()
    with os.fdopen(answer, "rb") as reading:
        with contextlib.ExitStack() as given:
            given.callback(os.close, answering)
            sources = [_raised(fd, given) for fd in (stdio.stdin, stdio.stdout, stdio.stderr)]
            sources += [_raised(_request(argv, cwd, env, given), given), _raised(answering, given)]
            child = _spawn(sources, adopt)
        said = reading.read()  # ends with the exec, which closes the other end
    if said != b"exec ":
        raise _failure(said, argv[0], cwd)
    return child


def refuse_missing(name: str, cwd: Path, env: Mapping[str, str]) -> None:
    """Raise what `start` would for a program that is not there or not executable, before anything is staked on it."""
    path = cwd / name if "/" in name else shutil.which(name, path=env.get("PATH", os.defpath))
    if path is None or ("/" in name and not os.path.lexists(path)):
        raise _failure(b"exec %d" % errno.ENOENT, name, cwd)
    if not os.access(path, os.X_OK):
        raise _failure(b"exec %d" % errno.EACCES, name, cwd)


def shell(env: Mapping[str, str]) -> str:
    """The shell that a command string is given to."""
    return "bash" if shutil.which("bash", path=env.get("PATH", os.defpath)) else "/bin/sh"


def _spawn(sources: Sequence[int], adopt: Callable[[Callable[[], int]], T]) -> T:
    moves = [(os.POSIX_SPAWN_DUP2, fd, to) for to, fd in enumerate(sources)]
    starter = [sys.executable, "-I", "-S", "-c", _STARTER]
    try:
        return adopt(lambda: os.posix_spawn(sys.executable, starter, os.environ, file_actions=moves))
    except OSError as error:
        raise ExecutionError(
            f"Cannot start a process: {error.strerror}.", hint="Is the limit on processes or memory reached?"
        ) from error


def _request(argv: Sequence[str], cwd: Path, env: Mapping[str, str], stack: contextlib.ExitStack) -> int:
    parts = [os.fsencode(cwd), b"%d" % len(argv), *map(os.fsencode, argv)]
    parts += [os.fsencode(f"{name}={value}") for name, value in env.items()]
    if any(b"\0" in part for part in parts):
        raise CommandNotRunnable("The command or its environment holds a NUL byte.", hint="Remove it.")
    memory = os.memfd_create("spotwarp-start")
    with os.fdopen(memory, "wb", closefd=False) as file:
        file.write(b"\0".join(parts))
    os.lseek(memory, 0, os.SEEK_SET)
    stack.callback(os.close, memory)
    return memory


def _raised(fd: int, stack: contextlib.ExitStack) -> int:
    """A copy of `fd` (of /dev/null where it is closed) above all targets, so that no move overwrites a later source."""
    import fcntl  # late: what only looks at commands is imported on other systems, too

    try:
        copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        copy = fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, 10)
        os.close(null)
    stack.callback(os.close, copy)
    return copy


def _failure(said: bytes, name: str, cwd: Path) -> ExecutionError:
    stage, _, number = said.partition(b" ")
    if not number:
        return ExecutionError("Cannot start the command: the process that should become it ended before it did.")
    code = int(number)
    why = os.strerror(code)
    if stage == b"cwd":
        return WorkspaceFault(f"Cannot enter {cwd}: {why}.", hint="Does the workspace exist, and is it readable?")
    if code in {errno.ENOENT, errno.ENOTDIR}:
        if "/" in name and os.path.lexists(cwd / name):
            return CommandNotRunnable(f"Cannot run {name}: its interpreter is missing.", hint="Look at its #! line.")
        return CommandNotFound(f"The command {name} does not exist.", hint="Is it spelled right, and in PATH?")
    hints = {
        errno.ENOEXEC: "A script needs a #! line.",
        errno.EACCES: "Is it executable (chmod +x)?",
        errno.E2BIG: "An argument is limited to 128 KiB: put the command into a script.",
    }
    return CommandNotRunnable(f"Cannot run {name}: {why}.", hint=hints.get(code))
