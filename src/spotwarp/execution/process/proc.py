"""Processes as /proc shows them, and signals that reach exactly the process that was looked at.

Owns the identity of a process: pid and start time. A pid alone is never signalled, because the kernel gives it to
somebody else as soon as its process is reaped. Decides nothing about whom to signal, and starts nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """One process as /proc shows it. `started` is in clock ticks since boot; with the pid it is an identity."""

    pid: int
    started: int
    name: str = field(compare=False)
    state: str = field(compare=False)
    parent: int = field(compare=False)
    group: int = field(compare=False)
    session: int = field(compare=False)

    @property
    def living(self) -> bool:
        """False for a mere zombie; a process whose main thread alone has ended still lives."""
        if self.state not in "ZX":
            return True
        try:
            return len(list(Path(f"/proc/{self.pid}/task").iterdir())) > 1
        except OSError:
            return False


def look(pid: int) -> Process | None:
    """The process as it is now, a zombie included; None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    name, _, rest = text.partition(b"(")[2].rpartition(b")")
    fields = rest.split()
    return Process(
        pid=pid,
        started=int(fields[19]),
        name=name.decode(errors="replace"),
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
    )


def look_all() -> list[Process]:
    """Every process to be seen. Not one instant: some start and end while this looks."""
    found = (look(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - names only, often
    return [one for one in found if one is not None]


def tree_below(leader: Process) -> list[Process]:
    """Living: the leader, our children of another session that are not older, and all below these."""
    below: dict[int, list[Process]] = defaultdict(list)
    for one in look_all():
        below[one.parent].append(one)
    own = os.getsid(0)
    reached = [
        one for one in below[os.getpid()] if one == leader or (one.session != own and one.started >= leader.started)
    ]
    reached.sort(key=lambda one: one != leader)
    for one in reached:  # grows while it is walked
        reached.extend(below[one.pid])
    return [one for one in reached if one.living]


def send_all(targets: Iterable[Process], sig: int) -> list[Process]:
    """Signal each; returns those that could be."""
    return [one for one in targets if send(one, sig)]


def send(target: Process, sig: int) -> bool:
    """Signal exactly `target`, never a process that took its pid over."""
    try:
        handle = os.pidfd_open(target.pid)
    except OSError as error:
        if error.errno != errno.ENOSYS or look(target.pid) != target:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(target.pid, sig)
            return True
        return False
    try:
        if look(target.pid) != target:
            return False
        signal.pidfd_send_signal(handle, sig)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)
    return True
