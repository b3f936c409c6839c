"""Judging the checkpoints of one scan: parsed, whole, and quiet (I5).

`judge` of the checkpoints package says what a directory holds; here it becomes a fact of the snapshot, unless something
is still writing it. Times compared are the file system's own, never a clock of ours.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from spotwarp import system
from spotwarp.config import DIRECTORY as OWN
from spotwarp.execution.checkpoints import (
    Checkpoint,
    CheckpointClass,
    by_company,
    in_the_way,
    judge,
    survey,
    walk,
    worth_a_look,
)
from spotwarp.persistence.manifest import DIRECTORY, CheckpointFact
from spotwarp.persistence.scan import Scanned
from spotwarp.persistence.table import Table

STILL_WRITTEN = "was still being written"


def judge_all(root: Path, entries: Table[Scanned], *, settle_s: float) -> tuple[CheckpointFact, ...]:
    """The checkpoints and model directories among `entries`. `settle_s` 0: nothing writes any more.

    A checkpoint written to less than `settle_s` ago is torn, unless its last file tells that it is complete
    (`needs_quiet`). A model directory that is not whole is no fact at all, since nothing would be set aside for it.
    """
    found = survey([(entry.path, entry.kind == DIRECTORY) for entry in entries if worth_a_look(entry.path)])
    now_ns = file_system_time(root) if settle_s else 0
    latest = _latest_change(entries, found.checkpoints) if settle_s else {}
    facts = []
    for verdict in by_company(judge(root, path) for path in found.checkpoints):
        path = verdict.path
        unsettled = settle_s > 0 and now_ns - latest.get(path, 0) < settle_s * 1e9
        if verdict.cls is not CheckpointClass.TORN and unsettled and needs_quiet(verdict):
            facts.append(_fact(verdict, cls="torn", reason=STILL_WRITTEN))
        else:
            facts.append(_fact(verdict))
    models = (judge(root, path) for path in found.models if path)
    facts += [_fact(verdict) for verdict in models if verdict.cls is not CheckpointClass.TORN]
    return tuple(facts)


def needs_quiet(verdict: Checkpoint) -> bool:
    """Whether only time can tell that nothing is missing.

    A single process writes `trainer_state.json` last: with it in place and the set whole, there is nothing to wait for.
    Of several ranks another may still be about to write its random state.
    """
    return not (verdict.cls is CheckpointClass.RESUMABLE and verdict.world_size == 1)


def blocking(root: Path) -> list[Checkpoint]:
    """The checkpoints on this disk that must be set aside before a trainer starts. Nothing may be writing."""
    return in_the_way(by_company(judge(root, path) for path in survey(walk(root)).checkpoints))


def _fact(verdict: Checkpoint, *, cls: str | None = None, reason: str | None = None) -> CheckpointFact:
    return CheckpointFact(
        path=verdict.path,
        cls=cls or str(verdict.cls),
        step=verdict.step,
        framework=verdict.framework,
        reason=verdict.reason if reason is None else reason,
        bytes=verdict.bytes,
        loss=verdict.loss,
        world_size=verdict.world_size,
    )


def _latest_change(entries: Table[Scanned], checkpoints: Sequence[bytes]) -> dict[bytes, int]:
    """When (ns) anything in each checkpoint directory was last written to. A restore brings the old times back."""
    return {path: max((entry.mtime_ns for entry in entries.beneath(path)), default=0) for path in checkpoints}


def file_system_time(root: Path) -> int:
    """Now (ns), as the workspace's file system stamps it; 0 where it cannot be asked (full, read-only): then nothing
    is old enough to be called quiet, which is the safe side.
    """
    try:
        descriptor = os.open(root / OWN / ".now", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | system.CLOEXEC, 0o600)
    except OSError:
        return 0
    try:
        os.write(descriptor, b".")
        return os.fstat(descriptor).st_mtime_ns
    except OSError:
        return 0
    finally:
        os.close(descriptor)
