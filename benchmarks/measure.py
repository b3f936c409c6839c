"""One command, measured: wall and CPU seconds, peak memory, and what the rest of the machine did meanwhile.

Starts the command from this process, which must stay small: a child's peak memory begins with its parent's, so nothing
heavy may be imported beside it. Judges nothing.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_KEPT_FREE = 1 << 30


class CommandFailed(Exception):
    """A tool ended with another code than 0: nothing it would have shown is worth anything."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to run, where, with which variables besides PATH and HOME."""

    argv: list[str]
    cwd: Path
    env: dict[str, str]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement. `others_cpu` is how many cores everybody else kept busy meanwhile: the noise."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    others_cpu: float


def run(command: Command, log: Path) -> Sample:
    """Run it to its end; output goes to `log`. Raises `CommandFailed`."""
    busy, started = _busy_s(), time.perf_counter()
    with log.open("ab") as output:
        process = subprocess.Popen(
            command.argv, cwd=command.cwd, env=dict(command.env), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        _, status, used = os.wait4(process.pid, 0)
    wall, process.returncode = time.perf_counter() - started, os.waitstatus_to_exitcode(status)
    cpu = used.ru_utime + used.ru_stime
    if process.returncode != 0:
        tail = log.read_bytes()[-2000:].decode(errors="replace")
        raise CommandFailed(f"exit {process.returncode}: {' '.join(command.argv)}\n{tail}")
    return Sample(wall, cpu, used.ru_maxrss / 1024, max(0.0, (_busy_s() - busy - cpu) / wall))


def settle(size: int) -> None:
    """Nothing is left to be written to disk, and `size` bytes of free memory are backed by the host.

    A virtual machine may give free pages back to its host; getting them again made the same copy up to five times
    slower. So that every tool finds the same, they are asked for and freed, by a process of its own, right before.
    """
    os.sync()
    size = min(size, _free_memory() - _KEPT_FREE)
    if size > 0:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        code = f"import mmap; mmap.mmap(-1, {size}, flags={flags}).close()"
        subprocess.run([sys.executable, "-S", "-c", code], check=True)


def _free_memory() -> int:
    """Bytes that nobody uses, not even as a cache."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemFree:")) * 1024


def _busy_s() -> float:
    """CPU seconds that were used by anybody since the machine started."""
    user, nice, system, _, _, irq, soft = (int(n) for n in Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + soft) / _TICKS
