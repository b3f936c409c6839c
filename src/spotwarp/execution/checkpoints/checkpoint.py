"""The verdict on one checkpoint, and what follows from several.

Owns the classes and the choice among checkpoints. Never looks at a file or a time: order is the step number,
as a number.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum


class CheckpointClass(StrEnum):
    """What a trainer can do with a checkpoint."""

    RESUMABLE = "resumable"
    """Parsed, its set whole: training goes on as if never interrupted."""
    WEIGHTS_ONLY = "weights-only"
    """A whole model without optimiser, scheduler and random state: good to use, not to resume from."""
    UNKNOWN = "unknown"
    """Of a layout that is not known here: nothing in it is damaged, and whether it is whole only its trainer can
    tell."""
    TORN = "torn"
    """Something of it is missing, cut short or damaged."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One judged directory."""

    path: bytes
    """Relative to the workspace, as the file system has it."""
    cls: CheckpointClass
    step: int | None
    """The number in the directory's name, which is what a trainer orders by; None for a model directory."""
    framework: str
    reason: str
    """Why it is not resumable, for a person; empty if it is."""
    files: int
    bytes: int
    loss: float | None = None
    """The last training loss in its log, if there is a finite one."""
    world_size: int | None = None
    """How many ranks left their random state; None if none did."""


def newest(checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    """The resumable checkpoint with the highest step; the greatest path where two have the same step."""
    resumable = [c for c in checkpoints if c.cls is CheckpointClass.RESUMABLE]
    return max(resumable, key=_order, default=None)


def in_the_way(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Those that must be set aside before a trainer that takes the highest number is started, in order of path.

    That is every torn one; and a weights-only one above the newest resumable one beside it, because a trainer resumes
    from it without a word and with a fresh optimiser. Where no resumable one stands beside it, it is left alone.
    Model directories are never set aside.
    """
    numbered = [c for c in checkpoints if c.step is not None]
    best: dict[bytes, int] = {}
    for one in numbered:
        if one.cls is CheckpointClass.RESUMABLE:
            parent = posixpath.dirname(one.path)
            best[parent] = max(best.get(parent, -1), one.step or 0)

    def blocks(one: Checkpoint) -> bool:
        if one.cls is CheckpointClass.WEIGHTS_ONLY:
            return (one.step or 0) > best.get(posixpath.dirname(one.path), one.step or 0)
        return one.cls is CheckpointClass.TORN

    return sorted(filter(blocks, numbered), key=lambda c: c.path)


def by_company(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """The verdicts once more, each in the light of its neighbours.

    Beside a resumable checkpoint a directory of an unknown layout is of the same trainer, which then has left something
    out: torn. Alone it may be another trainer's and whole.
    """
    judged = list(checkpoints)
    known = {posixpath.dirname(one.path) for one in judged if one.cls is CheckpointClass.RESUMABLE}
    return [
        replace(one, cls=CheckpointClass.TORN)
        if one.cls is CheckpointClass.UNKNOWN and posixpath.dirname(one.path) in known
        else one
        for one in judged
    ]


def _order(one: Checkpoint) -> tuple[int, bytes]:
    return (-1 if one.step is None else one.step, one.path)
