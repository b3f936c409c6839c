"""What every framework's judge answers with, and the words they share."""

from __future__ import annotations

from dataclasses import dataclass

from spotwarp.execution.checkpoints.checkpoint import CheckpointClass


@dataclass(frozen=True, slots=True)
class Verdict:
    """The class of a set, why it is not better, and what its state says."""

    cls: CheckpointClass
    reason: str = ""
    loss: float | None = None
    world_size: int | None = None


def gaps(there: set[int], total: int) -> list[int]:
    """The first number below `total` that is not in `there`, if there is one."""
    # `total` comes out of a file and may be anything.
    return [rank for rank in range(min(total, len(there) + 1)) if rank not in there][:1]


def join(faults: list[str]) -> str:
    """Some of the faults, in one line."""
    more = len(faults) - 3
    return "; ".join(faults[:3]) + (f"; and {more} more" if more > 0 else "")
