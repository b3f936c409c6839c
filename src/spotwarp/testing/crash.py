"""Sudden death, at a chosen call, cheaply and hundreds of times; and a disk that is full from a chosen call on.

`Forks` is a warm process that forks a child for each job, a function of a module. In the child `at_store_call` and
`at_file_call` arrange its death; nothing is unwound, flushed or joined, threads die where they are. Patches the product
from outside and only in children that end with the job. Must never be imported by the product.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from spotwarp.persistence.store.api import Store

DEAD = 86
"""The exit code of a child that died where it was told to."""

FILE_CALLS = ("mkdir", "open", "rename", "replace", "link", "symlink", "unlink", "rmdir", "fsync", "ftruncate")


def die() -> None:
    """End this process now, as a power cut would: no handlers, no buffers, no threads."""
    os._exit(DEAD)


def kill(processes: Iterable[int]) -> None:
    """SIGKILL to these, in their order; 0 is this process."""
    for pid in processes:
        os.kill(pid or os.getpid(), signal.SIGKILL)


class MortalStore:
    """`inner`, numbering its calls from 1; at the call `number` it calls `death`, before or after the effect.

    Calls of the heartbeat's thread are not numbered, so that the numbers do not depend on time.
    """

    def __init__(self, inner: Store, number: int, *, after: bool, death: Callable[[], None]) -> None:
        self._inner, self._number, self._after, self._death = inner, number, after, death
        self._lock = threading.Lock()
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        """The url, or a verb that may be the last."""
        verb = getattr(self._inner, name)
        if not callable(verb):
            return verb

        def call(*arguments: Any) -> Any:
            if threading.current_thread().name == "heartbeat":
                return verb(*arguments)
            with self._lock:
                self.calls += 1
                last = self.calls == self._number
            if last and not self._after:
                self._death()
            try:
                return verb(*arguments)
            finally:
                if last and self._after:
                    self._death()

        return call


def at_store_call(number: int, *, after: bool, death: Callable[[], None] = die) -> Callable[[], int]:
    """Let this process die at its store call `number` (from 1), before or after the effect; 0: never.

    Returns what says how many calls there were to the store that is opened next.
    """
    from spotwarp.cli import context

    opened: list[MortalStore] = []
    original = context.connect

    def connect(*arguments: Any, **options: Any) -> Store:
        opened.append(MortalStore(original(*arguments, **options), number, after=after, death=death))
        return cast(Store, opened[-1])

    context.connect = connect
    return lambda: sum(store.calls for store in opened)


def at_file_call(number: int, *, after: bool) -> Iterator[int]:
    """Let this process die at the call `number` (from 1) that changes or syncs files from Python; 0: never.

    `open` counts only when it may create. Returns the counter: its next value is one more than the calls so far.
    """
    count = itertools.count(1)
    lock = threading.Lock()

    def deadly(original: Callable[..., Any], matters: Callable[..., bool]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if not matters(*arguments):
                return original(*arguments, **options)
            with lock:
                now = next(count) == number
            if now and not after:
                die()
            try:
                return original(*arguments, **options)
            finally:
                if now:
                    die()

        return call

    def creates(*arguments: Any) -> bool:
        return bool(arguments[1] & os.O_CREAT)

    for name in FILE_CALLS:
        matters = creates if name == "open" else lambda *_: True
        setattr(os, name, deadly(getattr(os, name), matters))
    from spotwarp.persistence import install, restore, staging

    for module in (install, restore, staging):
        if hasattr(module, "sync_filesystem"):
            vars(module)["sync_filesystem"] = deadly(vars(module)["sync_filesystem"], lambda *_: True)
    return count


def full_from(number: int, root: Path) -> Iterator[int]:
    """Let the disk be full at the call `number` (from 1) that takes room below `root` from Python, and ever after.

    Returns the counter, as `at_file_call` does. What gives room back, or writes over what is there, still works.
    """
    count = itertools.count(1)
    lock = threading.Lock()
    below = os.path.realpath(root) + os.sep

    def limited(original: Callable[..., Any], at: int, takes: Callable[..., bool]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            directory = options.get("dst_dir_fd", options.get("dir_fd"))
            if takes(*arguments, **options) and _place(arguments[at], directory).startswith(below):
                with lock:
                    full = next(count) >= number > 0
                if full:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), arguments[at])
            return original(*arguments, **options)

        return call

    for name in ("mkdir", "write", "pwrite", "fsync", "ftruncate"):
        setattr(os, name, limited(getattr(os, name), 0, _always))
    for name in ("rename", "replace", "link", "symlink"):
        setattr(os, name, limited(getattr(os, name), 1, _always))
    vars(os)["open"] = limited(os.open, 0, _creates)
    vars(io)["open"] = limited(io.open, 0, _writes_anew)
    return count


def _place(target: Any, directory: int | None) -> str:
    if isinstance(target, int):
        return os.path.realpath(f"/proc/self/fd/{target}")
    name = os.fsdecode(target)
    return os.path.realpath(name if directory is None else f"/proc/self/fd/{directory}/{name}")


def _always(*_: Any, **__: Any) -> bool:
    return True


def _creates(_: Any, flags: int, *__: Any, **___: Any) -> bool:
    return bool(flags & os.O_CREAT)


def _writes_anew(_: Any, mode: str = "r", *__: Any, **options: Any) -> bool:
    return any(letter in options.get("mode", mode) for letter in "wax")


# ---- children ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended: exit code (negative: a signal), what the function returned (JSON), what was printed."""

    code: int
    value: Any
    output: str

    @property
    def died(self) -> bool:
        """Whether it died where it was told to."""
        return self.code in (DEAD, -signal.SIGKILL)


class Forks:
    """Jobs in forked children of one warm process that has imported `module`. Use as a context."""

    def __init__(self, module: str, scratch: Path) -> None:
        self._module, self._scratch = module, scratch
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> Forks:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "spotwarp.testing.crash", self._module, str(self._scratch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.communicate(timeout=60)  # its input ends, and so does it

    def run(self, function: str, **arguments: Any) -> Ended:
        """Call `function` of the module with `arguments` (JSON values) in a new process; how that ended."""
        server = self._server
        assert server is not None, "not entered"
        assert server.stdin is not None, "piped"
        assert server.stdout is not None, "piped"
        server.stdin.write(json.dumps([function, arguments]) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        if not answer:
            raise RuntimeError(f"the forking process is gone: exit code {server.wait(60)}")
        return Ended(**json.loads(answer))


def serve(name: str, scratch: Path) -> None:
    """Fork a child for each line of standard input; one line of answer for each.

    What the module's `warm` has imported, the children need not import again and again.
    """
    module = importlib.import_module(name)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        module.warm(scratch)
    assert threading.active_count() == 1, "a fork of a process with threads may hang"
    printed, returned = scratch / "printed", scratch / "returned"
    for line in sys.stdin:
        for path in (printed, returned):
            path.unlink(missing_ok=True)
        function, arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            _work(module, function, arguments, printed, returned)
        _, status = os.waitpid(child, 0)
        ended = {
            "code": os.waitstatus_to_exitcode(status),
            "value": json.loads(returned.read_text()) if returned.exists() else None,
            "output": printed.read_text(errors="replace"),
        }
        sys.stdout.write(json.dumps(ended) + "\n")
        sys.stdout.flush()


def _work(module: ModuleType, function: str, arguments: dict[str, Any], printed: Path, returned: Path) -> None:
    """The child: never returns."""
    code = 1
    with contextlib.suppress(BaseException):
        out = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream in (1, 2):
            os.dup2(out, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        try:
            value = getattr(module, function)(**arguments)
            returned.write_text(json.dumps(value))
            code = 0
        except BaseException:  # noqa: BLE001 - told by the exit code and the traceback
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
