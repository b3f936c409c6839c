"""One directory in, one verdict out.

Owns the order: list, read, decide. Keeps invariant I5 by answering `torn` to everything it cannot prove whole, a
directory that changes or vanishes while it is read included. Raises nothing for any content.
"""

from __future__ import annotations

from pathlib import Path

from spotwarp.execution.checkpoints.checkpoint import Checkpoint, CheckpointClass
from spotwarp.execution.checkpoints.examine import examine
from spotwarp.execution.checkpoints.find import step_of
from spotwarp.execution.checkpoints.huggingface import FRAMEWORK, classify, classify_model
from spotwarp.execution.checkpoints.members import Unsound, members


def judge(root: Path, path: bytes, *, world_size: int | None = None) -> Checkpoint:
    """Parse every known file of the directory `path` of the workspace `root` and judge the set.

    A directory named `checkpoint-<step>` is judged as a trainer's checkpoint, all levels of it; any other as a
    model, its own files only. `world_size`, where the caller knows it, is the number of ranks that must have left their
    random state: the missing file of the last rank shows by nothing else.
    """
    step = step_of(path)
    try:
        found = members(root, path, deep=step is not None)
    except Unsound as unsound:
        return Checkpoint(path, CheckpointClass.TORN, step, FRAMEWORK, str(unsound), files=0, bytes=0)
    facts = examine(found)
    verdict = classify_model(facts) if step is None else classify(facts, world_size=world_size)
    return Checkpoint(
        path=path,
        cls=verdict.cls,
        step=step,
        framework=FRAMEWORK,
        reason=verdict.reason,
        files=len(found),
        bytes=sum(member.size for member in found),
        loss=verdict.loss,
        world_size=verdict.world_size,
    )
