"""A workspace that is suddenly empty, unmounted or replaced: a fault, never an update. Looks at directories only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from spotwarp.errors import WorkspaceFault
from spotwarp.persistence.manifest import FILE, Entry, Manifest
from spotwarp.persistence.scan import Scanned


def refuse_emptied(root: Path, place: tuple[int, int], entries: Iterable[Scanned], base: Manifest | None) -> None:
    """Raise `WorkspaceFault` when `root` is not the directory `place` (device, inode) any more, or has lost all files.

    `base` is the last snapshot: only what had files can have lost them.
    """
    status = root.stat()
    if (status.st_dev, status.st_ino) != place:
        raise WorkspaceFault(
            f"{root} is another directory now: unmounted or replaced", hint="The last snapshot is untouched."
        )
    if base is not None and not _users(entries) and _users(base.entries):
        raise WorkspaceFault(
            f"{root} is empty, but its last snapshot is not: moved away or deleted?",
            hint="The last snapshot is untouched; `spotwarp restore` brings it back. Put a file there to mean it.",
        )


def _users(entries: Iterable[Scanned] | Iterable[Entry]) -> bool:
    """Whether there is a file that is the user's and not SpotWarp's own."""
    return any(entry.kind == FILE and not entry.path.startswith(b".spotwarp/") for entry in entries)
