"""One directory in, one verdict out.

Owns the order: list, read, decide. Keeps invariant I5 by answering `torn` to everything it cannot prove whole, a
directory that changes or vanishes while it is read included. Raises nothing for any content.
"""

from __future__ import annotations

from pathlib import Path

from spotwarp.execution.checkpoints import deepspeed, distributed
from spotwarp.execution.checkpoints.checkpoint import Checkpoint, CheckpointClass
from spotwarp.execution.checkpoints.examine import examine
from spotwarp.execution.checkpoints.find import step_of, trailing_step
from spotwarp.execution.checkpoints.huggingface import FRAMEWORK, classify, classify_model
from spotwarp.execution.checkpoints.members import Unsound, members


def judge(root: Path, path: bytes, *, world_size: int | None = None) -> Checkpoint:
    """Parse every known file of the directory `path` of the workspace `root` and judge the set.

    A directory named `checkpoint-<step>` is judged as a trainer's checkpoint, all levels of it, one named
    `global_step<step>` as DeepSpeed's; any other as a distributed checkpoint if it has pieces of one, else as a model,
    its own files only. `world_size`, where the caller knows it, is the number of ranks that must have left their
    random state: the missing file of the last rank shows by nothing else.
    """
    step = step_of(path)
    name = path.rpartition(b"/")[2]
    try:
        found = members(root, path, deep=step is not None)
    except Unsound as unsound:
        return Checkpoint(path, CheckpointClass.TORN, step, FRAMEWORK, str(unsound), files=0, bytes=0)
    facts = examine(found)
    framework = FRAMEWORK
    if name.startswith(b"global_step") and step is not None:
        framework, verdict = deepspeed.FRAMEWORK, deepspeed.classify_tag(facts)
    elif step is None and any(member.name.endswith(".distcp") for member in found):
        step, framework = trailing_step(path), distributed.FRAMEWORK
        verdict = distributed.classify_distributed(facts)
    else:
        verdict = classify_model(facts) if step is None else classify(facts, step=step, world_size=world_size)
    return Checkpoint(
        path=path,
        cls=verdict.cls,
        step=step,
        framework=framework,
        reason=verdict.reason,
        files=len(found),
        bytes=sum(member.size for member in found),
        loss=verdict.loss,
        world_size=verdict.world_size,
    )
