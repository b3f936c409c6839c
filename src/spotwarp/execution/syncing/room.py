"""Will the next checkpoint fit on the disk? Said before it does not, since a save that fails ends most trainings.

Looks at the disk and at the newest checkpoint on it; decides nothing, and what it cannot see it does not mention.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from spotwarp.model import human_bytes
from spotwarp.persistence.manifest import CheckpointFact


def shortage(root: Path, checkpoints: Iterable[CheckpointFact]) -> str:
    """Why the next save into the workspace `root` may fail, in words; empty while there is room, or none is known."""
    newest = max((c for c in checkpoints if c.step is not None), key=lambda c: c.step or 0, default=None)
    if newest is None:
        return ""
    try:
        disk = os.statvfs(root)
        needed = _bytes_below(root / os.fsdecode(newest.path))
    except OSError:
        return ""
    free = disk.f_bavail * disk.f_frsize
    if free >= needed:
        return ""
    return (
        f"the disk has {human_bytes(free)} left, and the last checkpoint took {human_bytes(needed)}: "
        "the next save may fail"
    )


def _bytes_below(path: Path) -> int:
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) if path.is_dir() else path.stat().st_size
