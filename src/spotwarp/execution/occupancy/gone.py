"""Whether the SpotWarp that holds a run was at work in this very directory, in this boot, and is no more.

For what is said only: who may take the run is decided by the log and the heartbeat (R7, R8), never by this. Where it
cannot be known (another machine, another boot, a system without /proc) the answer is no.
"""

from __future__ import annotations

import sys
from pathlib import Path

from spotwarp.execution.claiming import machine_id
from spotwarp.execution.process.proc import look
from spotwarp.model import legible
from spotwarp.persistence.runlog.entry import Claim


def gone_from_here(claim: Claim, workspace: Path) -> bool:
    """True when the process that made `claim` was one of this machine, for `workspace`, and has ended."""
    if sys.platform != "linux":
        return False
    if (claim.machine, claim.workspace) != (machine_id(), legible(str(workspace))):
        return False
    process = look(claim.pid)
    return process is None or not process.living
