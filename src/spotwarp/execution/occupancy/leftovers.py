"""Processes of an earlier attempt that outlived its SpotWarp, found by the variable that every one of them inherited.

A SpotWarp that was killed alone leaves its training command writing into the workspace. Two trainers in one directory
destroy each other's checkpoints, so the next one must not start beside it. Looks only; signals nobody.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from spotwarp.errors import AlreadyRunning
from spotwarp.execution.localstate import NOTICE_FILE, NOTICE_VARIABLE, runtime


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process that still runs: its pid and the beginning of its command line."""

    pid: int
    command: str


def leftovers(notice_file: Path, proc: Path = Path("/proc")) -> list[Leftover]:
    """The living processes that were started with this workspace's notice file, without our own and our ancestors."""
    mark = f"{NOTICE_VARIABLE}={notice_file}".encode("utf-8", "surrogateescape")
    ours = _lineage(proc)
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) in ours:
            continue
        try:
            if mark not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            continue  # it ended, or is another user's: then it cannot be ours
        if command:  # a zombie has none, and writes nothing
            found.append(Leftover(int(entry.name), command[:120]))
    return sorted(found, key=lambda one: one.pid)


def _lineage(proc: Path) -> set[int]:
    """This process and those above it."""
    found, pid = set(), os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            status = (proc / str(pid) / "stat").read_bytes()
        except OSError:
            break
        pid = int(status.rpartition(b")")[2].split()[1])
    return found


def refuse_leftovers(workspace: Path) -> None:
    """Raise `AlreadyRunning` while processes of an earlier attempt are still at work in the workspace."""
    left = leftovers(runtime(workspace) / NOTICE_FILE)
    if left:
        some = "; ".join(f"{one.pid} ({one.command})" for one in left[:5])
        raise AlreadyRunning(
            f"{len(left)} process(es) of an earlier attempt still run in this workspace: {some}",
            hint=f"Two trainers would destroy each other's work. End it: kill {' '.join(str(one.pid) for one in left)} "
            "(kill -9 where that is ignored)",
        )
