"""What should be in a snapshot and is not, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from spotwarp.model import human_bytes
from spotwarp.persistence.entries import shown
from spotwarp.persistence.manifest import Skipped
from spotwarp.persistence.runlog.entry import Snapshot

_NAMED: Final = 5


def lacking(snapshot: Snapshot, skipped: Iterable[Skipped]) -> str:
    """Says it of `snapshot` and of what was `skipped` for it; empty when nothing is missing."""
    left = [one for one in skipped if one.unreadable]
    words = "; ".join(f"{shown(one.path)} ({one.reason})" for one in left[:_NAMED])
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    if snapshot.late:
        has = f"; the newest resumable checkpoint in it is {snapshot.checkpoint}" if snapshot.checkpoint else ""
        size = human_bytes(snapshot.late_bytes)
        return f"{snapshot.late} file(s), {size}, did not get to the store in time: {words}{more}{has}"
    if not left:
        return ""
    read = all(one.reason.startswith("cannot be read") for one in left)
    return f"{len(left)} path(s) could not be {'read' if read else 'stored'}: {words}{more}"
