"""Short programs that SpotWarp runs for itself: what they say, how they end, never longer than they may take.

They stay in SpotWarp's own session (the tree of the training command is another) and in a group of their own, which is
killed whole when the time is over. Input and output go through files, so that neither side ever waits for the other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from spotwarp.execution.process.starter import shell

MOST_OUTPUT = 64 * 1024


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
) -> Ran:
    """Run `command` (a string: through the shell) with `data` as its input, for at most `timeout_s` seconds.

    Raises nothing: what cannot be started, or did not end, is a `Ran` without a code.
    """
    argv = [shell(env), "-c", command] if isinstance(command, str) else list(command)
    try:
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            given.write(data)
            given.seek(0)
            with subprocess.Popen(
                argv, stdin=given, stdout=out, stderr=err, env=dict(env), cwd=cwd, process_group=0, close_fds=True
            ) as process:
                reason = _wait(process, timeout_s)
            return Ran(None if reason else process.returncode, reason, _written(out), _written(err))
    except (OSError, ValueError) as error:
        return Ran(None, f"cannot be started: {error}")


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> str:
    """Why it had to be ended; empty when it ended by itself."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"did not end within {timeout_s:g} s"
    return ""


def _written(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(MOST_OUTPUT)
