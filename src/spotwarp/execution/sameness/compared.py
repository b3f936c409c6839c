"""Is this the same job as before: its command, its path, its shape? Differences are named; only a shape can refuse.

A checkpoint written by eight processes mostly cannot be read by four, and finding that out after the download is too
late. So the comparison needs the log alone, and is made before anything is fetched, and again before the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotwarp.clock import Clock
from spotwarp.errors import CorruptObject, ObjectMissing, OtherShape
from spotwarp.execution.command import Command, difference
from spotwarp.execution.parts import glance
from spotwarp.execution.sameness.hardware import gpus
from spotwarp.execution.sameness.moved import MOST, holders
from spotwarp.execution.sameness.shape import fit, world_of
from spotwarp.model import legible
from spotwarp.persistence.runlog.entry import Claim, Shape, Snapshot
from spotwarp.persistence.runlog.log import Head, RunLog

LOOK_S = 10.0


def shape_here(command: Command, env: Mapping[str, str]) -> Shape:
    """What this command on this machine comes to."""
    here = gpus(env)
    world = world_of(command.words, shell=command.shell, env=env, gpus=here.count)
    return Shape(world, here.count, here.kinds)


@dataclass(frozen=True, slots=True)
class Compared:
    """An attempt against the one before it: what changed, in words, and the same change to be said aloud."""

    changes: tuple[str, ...] = ()

    def say(self, say: Callable[[str], None]) -> None:
        """Tell the user."""
        for change in self.changes:
            say(f"not as before: {change}")


def compare(
    log: RunLog, head: Head, before: Claim | None, command: Command, shape: Shape, workspace: Path, *, allowed: bool
) -> Compared:
    """Compare with the claim `before`. Raises `OtherShape` where the checkpoint does not fit, unless `allowed`."""
    checkpoint = _newest(log, head)
    found = fit(
        before.shape if before else None,
        shape,
        checkpoint=checkpoint is not None,
        ranks=checkpoint.world_size if checkpoint else None,
    )
    if found.refused and checkpoint is not None and not allowed:
        raise OtherShape(
            f"{checkpoint.checkpoint or 'the checkpoint'} does not fit here: {found.refused}",
            hint="Start it on a machine like the one before; `--allow-other-shape` if the trainer can take it. "
            "Nothing was downloaded or changed.",
        )
    changes = list(found.changes)
    if found.refused:
        changes.append(f"{found.refused} (allowed)")
    if before is not None:
        changes += _command_and_path(before, command, workspace)
    return Compared(tuple(changes))


def _newest(log: RunLog, head: Head) -> Snapshot | None:
    """The last snapshot with a resumable checkpoint, which a new machine would start from."""
    try:
        entry = log.read(head.state.resumable) if head.state.resumable else None
    except (CorruptObject, ObjectMissing):
        return None  # `restore` passes it over as well
    return entry if isinstance(entry, Snapshot) else None


def _command_and_path(before: Claim, command: Command, workspace: Path) -> list[str]:
    changes: list[str] = []
    if before.command:
        changes += difference(Command(before.command, before.shell, before.cwd), command)
    here = legible(str(workspace))
    if before.workspace and before.workspace != here:
        changes.append(f"path: was {before.workspace}, is {here}")
    return changes


def tell_moved(
    workspace: Path, before: Claim | None, exclude: Sequence[str], *, clock: Clock, say: Callable[[str], None]
) -> None:
    """Under another path than before: name what in the workspace still holds the old one. Changes nothing."""
    if before is None or not before.workspace or before.workspace == legible(str(workspace)):
        return
    seen = glance(workspace, exclude, clock, budget_s=LOOK_S)
    if seen is None:
        return
    found = holders(workspace, before.workspace, seen.entries)
    if found:
        some = "; ".join(found[:MOST]) + (f"; and {len(found) - MOST} more" if len(found) > MOST else "")
        say(f"these hold the old path {before.workspace}: {some}")
        say("put the workspace at the old path, or mend them; the run goes on as it is")
