"""Who works in a workspace that machines may share (a network volume): a note in it, believed as far as the bucket
bears it out.

The local lock may not reach another machine. So nothing in the directory is touched before the note there is ours, and
another's note is taken away only when the run says that its life is over: sealed, or its heartbeat stood still for the
lease (R8). Two trainers never start in one directory, not even by `--takeover`. Decides nothing about the run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from spotwarp.clock import Clock, Rng
from spotwarp.errors import AlreadyRunning, LeaseHeld, WorkspaceFault
from spotwarp.execution import localstate
from spotwarp.execution.claiming import machine_id
from spotwarp.execution.localstate import runtime
from spotwarp.persistence.repository import Repository
from spotwarp.persistence.runlog.lease import BeatWatch, read_beat
from spotwarp.persistence.runlog.log import RunLog

FILE = "occupant.json"


class Occupant(msgspec.Struct, frozen=True):
    """A process life that works in this directory."""

    machine: str
    host: str
    pid: int
    repository: str
    run: str
    life: str
    lease_s: float
    since: str

    def words(self) -> str:
        """For people."""
        return f"on {self.host} (process {self.pid}, run {self.run!r}, since {self.since})"


@contextlib.contextmanager
def occupy(
    workspace: Path,
    repository: Repository,
    log: RunLog,
    *,
    lease_s: float,
    clock: Clock,
    rng: Rng,
    say: Callable[[str], None],
) -> Iterator[None]:
    """Be the one who works here. Call with the workspace's lock held and a heart beating (or for a short read only).

    Raises `LeaseHeld` when another machine works here and is alive, `AlreadyRunning` when nobody can tell,
    `WorkspaceFault`, store errors.
    """
    path = runtime(workspace) / FILE
    mine = Occupant(
        machine=machine_id(),
        host=socket.gethostname(),
        pid=os.getpid(),
        repository=repository.identity.id,
        run=log.run,
        life=log.life,
        lease_s=lease_s,
        since=clock.wall().isoformat(timespec="seconds"),
    )
    since: float | None = None
    while not (made := _create(path, mine)):
        if made is None:
            say("no room for a note of who works here: a machine that shares this directory would not see us; going on")
            break
        other = localstate.load(path, Occupant)
        if other is None:  # being written just now, or damaged
            since = clock.monotonic() if since is None else since
            clock.sleep(min(1.0, lease_s / 8))
            if clock.monotonic() - since >= lease_s and localstate.load(path, Occupant) is None:
                path.unlink(missing_ok=True)
            continue
        if other.machine != mine.machine:  # of this machine it would hold the lock: it is dead
            theirs = repository.log(other.run, life=log.life, clock=clock, rng=rng)
            _await_end(other, repository, theirs, lease_s=lease_s, clock=clock, say=say)
        _take_away(path, other, mine.life)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if localstate.load(path, Occupant) == mine:
                path.unlink()


def _await_end(
    other: Occupant,
    repository: Repository,
    theirs: RunLog,
    *,
    lease_s: float,
    clock: Clock,
    say: Callable[[str], None],
) -> None:
    """Return when the other life is over."""
    if other.repository != repository.identity.id:
        raise AlreadyRunning(
            f"another SpotWarp works in this directory, for another repository: {other.words()}",
            hint=f"When you know that it is gone, remove .spotwarp/{FILE}.",
        )
    watch = BeatWatch(max(lease_s, other.lease_s))
    told = False
    while True:
        state = theirs.head().state
        current = state.life == other.life
        if current and (state.seal or state.terminal):
            return
        asked = clock.monotonic()
        beat = read_beat(repository.store, other.run, other.life)
        if watch.observe(beat, asked_at=asked, answered_at=clock.monotonic()):
            return
        if watch.moved and not (current and state.notice):
            raise LeaseHeld(
                f"another machine works in this directory, and is alive; left alone: {other.words()}",
                hint=f"Stop it there: `spotwarp stop` on {other.host}. Or give this machine a directory of its own.",
            )
        if not told:
            say(f"another machine worked in this directory: {other.words()}; waiting until its heartbeat stands still")
            told = True
        clock.sleep(min(1.0, lease_s / 8))


def _take_away(path: Path, known: Occupant, life: str) -> None:
    """Remove exactly the note that was read; another that took its place meanwhile is put back."""
    aside = path.with_name(f"{FILE}.{life}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    if localstate.load(aside, Occupant) != known:
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
    aside.unlink()


def _create(path: Path, mine: Occupant) -> bool | None:
    """Write the note if there is none; False when there is one, None when there is none and no room for one.

    A full disk is when storing what is on it matters most. Raises `WorkspaceFault`.
    """
    part = path.with_name(f"{FILE}.{mine.life}")
    try:
        path.parent.mkdir(exist_ok=True)
        part.write_bytes(msgspec.json.encode(mine))
        try:
            os.link(part, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            return _create_plainly(path, part.read_bytes())
        finally:
            part.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and not path.exists():
            return None
        raise WorkspaceFault(
            f"{path} cannot be written: {error.strerror}", hint="Is the disk full or read-only?"
        ) from error
    return True


def _create_plainly(path: Path, content: bytes) -> bool:
    try:
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError:
        return False
    return True
