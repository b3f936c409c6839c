"""What a training script or a notebook asks of the SpotWarp beside it: `spotwarp.sync()`, `status()`, `notice()`.

Owns the way from the script to the control socket and the notice file, in typed words. Needs nothing but the standard
library, so that it can be imported in the trainer's environment, and does no harm where no SpotWarp is at work: a
script runs by itself as before.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from spotwarp import errors
from spotwarp.clock import SystemClock
from spotwarp.config import find_workspace
from spotwarp.errors import ConfigError, ExecutionError, SpotWarpError
from spotwarp.execution.control_socket import ask

_NOTICE = "SPOTWARP_NOTICE_FILE"
_STATUS_S = 10.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A committed snapshot."""

    id: int
    generation: int
    files: int
    bytes: int
    stored_bytes: int
    """How much was sent for it."""
    step: int | None
    """The step of the newest resumable checkpoint in it, None when it has none."""
    lacking: str = ""
    """What could not be read and is not in it, in words; empty when everything is."""


@dataclass(frozen=True, slots=True)
class Status:
    """How the run at work here stands. Seconds and bytes; None where it is not known."""

    run: str
    generation: int
    phase: str
    """`preparing`, `training`, `saving`, `final sync` …"""
    at_risk_s: float | None
    """A machine lost now would cost this many seconds of work."""
    at_risk_bytes: int | None
    last_snapshot: int | None
    error: str
    """Why nothing is being stored just now; empty when all is well."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The machine is about to go."""

    source: str
    """Who said so."""
    deadline: datetime
    """Until when the command may save."""

    @property
    def seconds_left(self) -> float:
        """Seconds from now to the deadline, never below 0."""
        return max(0.0, (self.deadline - SystemClock().wall()).total_seconds())


def sync() -> Snapshot | None:
    """Store the workspace now; returns when it is committed. None when no SpotWarp is at work here.

    Raises `spotwarp.errors.SpotWarpError` when it could not be stored; the training may go on all the same.
    """
    answer = _ask({"verb": "sync"}, None)
    if answer is None:
        return None
    resumable = answer.get("resumable") or {}
    return Snapshot(
        id=answer["id"],
        generation=answer["generation"],
        files=answer["files"],
        bytes=answer["bytes"],
        stored_bytes=answer["stored_bytes"],
        step=resumable.get("step"),
        lacking=str(answer.get("lacking") or ""),
    )


def status() -> Status | None:
    """How the run stands, asked of the SpotWarp beside this script; None when none is at work here.

    Raises `spotwarp.errors.SpotWarpError` when it gives no answer within 10 s.
    """
    answer = _ask({"verb": "status"}, _STATUS_S)
    if answer is None:
        return None
    return Status(
        run=answer["run"],
        generation=answer["generation"],
        phase=answer["phase"],
        at_risk_s=answer.get("at_risk_s"),
        at_risk_bytes=answer.get("at_risk_bytes"),
        last_snapshot=answer.get("last_snapshot"),
        error=str(answer.get("error") or ""),
    )


def notice() -> Notice | None:
    """The preemption notice, None while there is none. One look at a file: cheap enough for every step."""
    path = os.environ.get(_NOTICE)
    if not path:
        return None
    try:
        told = json.loads(Path(path).read_bytes())
        deadline = datetime.fromisoformat(told["written"]) + timedelta(seconds=float(told["seconds_left"]))
        return Notice(str(told["source"]), deadline.astimezone())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        # It is there, though it cannot be read: to save at once is what a notice asks for.
        return Notice("a notice that cannot be read", SystemClock().wall())


def _ask(request: dict[str, Any], timeout_s: float | None) -> dict[str, Any] | None:
    workspace = _workspace()
    answer = ask(workspace, request, timeout_s=timeout_s) if workspace is not None else None
    if answer is None or not (answer.get("error") and answer.get("code")):
        return answer
    kind = getattr(errors, str(answer["code"]), ExecutionError)
    failed: SpotWarpError = kind(str(answer["error"]), hint=answer.get("hint"))
    raise failed


def _workspace() -> Path | None:
    """The workspace of the run that started us, else the one that we stand in."""
    told = os.environ.get(_NOTICE)
    if told:
        return Path(told).parent.parent
    try:
        return find_workspace(Path.cwd())
    except (ConfigError, OSError):
        return None
