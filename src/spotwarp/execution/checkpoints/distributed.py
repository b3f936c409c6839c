"""PyTorch's distributed checkpoints (DCP, FSDP): `.metadata`, written last, and the pieces that it names.

Owns which pieces make one whole (I5). Pure. Whether there is more in it than weights is told by the names in it.
"""

from __future__ import annotations

from spotwarp.execution.checkpoints.checkpoint import CheckpointClass
from spotwarp.execution.checkpoints.examine import Facts
from spotwarp.execution.checkpoints.members import show
from spotwarp.execution.checkpoints.verdict import Verdict, join

FRAMEWORK = "torch-distributed"


def classify_distributed(facts: Facts) -> Verdict:
    """Judge a directory with `.distcp` files that lies in no other checkpoint."""
    faults = [*facts.faults, *spread_faults(facts, "")]
    if faults:
        return Verdict(CheckpointClass.TORN, join(faults))
    if ".metadata" in facts.optimizers:
        return Verdict(CheckpointClass.RESUMABLE)
    return Verdict(CheckpointClass.WEIGHTS_ONLY, "weights only: nothing to resume the optimizer from")


def spread_faults(facts: Facts, folder: str) -> list[str]:
    """Why a distributed checkpoint in `folder` (with its slash) is not whole."""
    metadata = f"{folder}.metadata"
    if metadata not in facts.names:
        return [f"{show(metadata)}, which is written last, is missing"]
    faults = []
    for leaf, size in sorted(facts.distributed.get(metadata, {}).items()):
        name = f"{folder}{leaf}"
        if name not in facts.names:
            faults.append(f"{show(name)} is missing")
        elif facts.sizes[name] < size:
            faults.append(f"{show(name)} is cut short: {facts.sizes[name]} of {size} bytes")
    return faults
