"""Short programs that SpotWarp runs for itself: what they say, how they end, never longer than they may take.

They stay in SpotWarp's own session (the tree of the training command is another) and in a group of their own, which is
killed whole when the time is over. Input and output go through files, so that neither side ever waits for the other.
Must never wait for what cannot be killed: a program stuck in a driver is left behind, and it is said.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from spotwarp.execution.process.starter import shell

MOST_OUTPUT = 64 * 1024
SLICE_S = 0.1
DEATH_S = 1.0
"""How long a killed program may take to be gone."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How it ended: its exit code, or None with the reason in words; and what it wrote, at most 64 KiB of each."""

    code: int | None
    reason: str = ""
    out: bytes = b""
    err: bytes = b""


def run_briefly(
    command: str | Sequence[str],
    *,
    env: Mapping[str, str],
    timeout_s: float,
    data: bytes = b"",
    cwd: Path | None = None,
    heard: bool = True,
    enough: threading.Event | None = None,
) -> Ran:
    """Run `command` (a string: through the shell) with `data` as its input, for at most `timeout_s` seconds, or until
    `enough` is set. What it writes is dropped where it is not `heard`: nobody knows how much that will be.

    Raises nothing: what cannot be started, or did not end, is a `Ran` without a code.
    """
    argv = [shell(env), "-c", command] if isinstance(command, str) else list(command)
    try:
        with TemporaryFile() as given, _sink(heard) as out, _sink(heard) as err:
            given.write(data)
            given.seek(0)
            process = subprocess.Popen(
                argv, stdin=given, stdout=out, stderr=err, env=dict(env), cwd=cwd, process_group=0, close_fds=True
            )
            reason = _wait(process, timeout_s, enough or threading.Event())
            return Ran(None if reason else process.returncode, reason, _written(out), _written(err))
    except (OSError, ValueError) as error:
        return Ran(None, f"cannot be started: {error}")


def _sink(heard: bool) -> IO[bytes]:
    return TemporaryFile() if heard else Path(os.devnull).open("r+b", buffering=0)


def _wait(process: subprocess.Popen[bytes], timeout_s: float, enough: threading.Event) -> str:
    """Why it had to be ended; empty when it ended by itself."""
    left = timeout_s
    while left > 0 and not enough.is_set():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(left, SLICE_S))
            return ""
        left -= SLICE_S
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    reason = f"did not end within {timeout_s:g} s" if left <= 0 else "had no more time"
    try:
        process.wait(DEATH_S)
    except subprocess.TimeoutExpired:
        return f"{reason}, and cannot be killed (process {process.pid})"
    return reason


def _written(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(MOST_OUTPUT)
