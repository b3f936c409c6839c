"""Taking a run: wait for the turn, claim, know who we are. The rules are the run log's; here they are followed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spotwarp.clock import Clock
from spotwarp.errors import CorruptObject, RunEnded
from spotwarp.execution.command import Command
from spotwarp.execution.localstate import boot_id
from spotwarp.model import legible
from spotwarp.persistence.runlog import lease
from spotwarp.persistence.runlog.entry import Claim, Shape
from spotwarp.persistence.runlog.lease import wait_for_turn
from spotwarp.persistence.runlog.log import Head, RunLog
from spotwarp.persistence.store.api import Store

VARIABLES = (
    "SPOTWARP_RUN_ID",
    "SPOTWARP_GENERATION",
    "SPOTWARP_RESUMED",
    "SPOTWARP_LAST_CHECKPOINT",
    "SPOTWARP_NOTICE_FILE",
)


@dataclass(frozen=True, slots=True)
class Claimant:
    """What a claim says of the claimant."""

    command: Command | None
    workspace: Path
    lease_s: float
    shape: Shape | None = None
    changes: tuple[str, ...] = ()


def claim(
    log: RunLog,
    store: Store,
    who: Callable[[], Claimant],
    *,
    lease_s: float,
    takeover: bool,
    clock: Clock,
    say: Callable[[str], None],
) -> Claim:
    """Wait until the run may be taken and take it. A heartbeat of this life must be beating already (R8).

    `who` is asked when the wait is over; what it raises keeps the run from being taken. Raises `LeaseHeld` (also when
    another was first), `RunEnded`, `StoreUnavailable`.
    """
    turn = wait_for_turn(log, store, lease_s=lease_s, clock=clock, takeover=takeover, say=say)
    return lease.claim(log, turn, _draft(who()))


def _draft(who: Claimant) -> Claim:
    """Who claims, and for what; the lease fills in the rest."""
    command = who.command
    # What is no text cannot be written down exactly, and half a command is worse than none.
    recordable = command is not None and all(legible(word) == word for word in (*command.words, command.cwd))
    return Claim(
        generation=0,
        machine=machine_id(),
        cause="",
        base=0,
        lease_s=who.lease_s,
        host=socket.gethostname(),
        pid=os.getpid(),
        command=command.words if command and recordable else (),
        shell=command.shell if command else False,
        resume_args=command.resume_args or "" if command and recordable else "",
        cwd=command.cwd if command and recordable else "",
        workspace=legible(str(who.workspace)),
        env=VARIABLES,
        shape=who.shape,
        changes=tuple(legible(change) for change in who.changes),
    )


def machine_id() -> str:
    """This machine: what the orchestrator calls it, else host and boot. A reboot is another machine."""
    given = os.environ.get("SPOTWARP_MACHINE_ID")
    if given:
        return given
    boot = boot_id()
    return f"{socket.gethostname()}-{boot[:8]}"


def last_claim(log: RunLog, head: Head) -> Claim | None:
    """The claim of the current generation, which carries the recorded command."""
    try:
        entry = log.read(head.state.claim) if head.state.claim else None
    except CorruptObject:
        return None
    return entry if isinstance(entry, Claim) else None


def refuse_ended(head: Head, run: str) -> None:
    """Raise `RunEnded` for a run that nothing can be added to."""
    if head.state.terminal:
        raise RunEnded(
            f"run {run!r} is {head.state.terminal}; there is nothing left to train in it",
            hint="`spotwarp restore` gives its result; `spotwarp run --extend --command '…'` trains on from it in "
            "a run of its own, `spotwarp run --run NAME` begins anew.",
        )
