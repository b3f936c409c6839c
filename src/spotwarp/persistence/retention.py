"""Which snapshots a new one lets go. Pure; wall times decide only what is kept, never what is safe.

Kept: the newest snapshot of each of the last few resumable checkpoints, one per hour for a day, and always the newest
resumable one, the new one and the one before it (the new one is not read back yet). Forgetting rides in the snapshot
entry, so that rotation costs no extra write and works without a second commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from spotwarp.persistence.runlog.entry import Snapshot


@dataclass(frozen=True, slots=True)
class Retention:
    """How many to keep: of distinct resumable checkpoints, and hours with one snapshot each."""

    resumable: int = 3
    hourly: int = 24


def forgets(retained: Sequence[Snapshot], new: Snapshot, policy: Retention) -> tuple[int, ...]:
    """Numbers in `retained` (oldest first) that `new` makes superfluous. `new` itself is never among them."""
    newest_first = [new, *reversed(retained)]
    keep = {id(new)}
    if retained:
        keep.add(id(retained[-1]))  # the new one is not read back yet: forgetting rides in its entry
    seen_checkpoints: set[tuple[str, int | None]] = set()
    for snapshot in newest_first:
        checkpoint = (snapshot.checkpoint, snapshot.step)
        if snapshot.cls == "resumable" and checkpoint not in seen_checkpoints:
            if len(seen_checkpoints) < max(1, policy.resumable):
                keep.add(id(snapshot))
            seen_checkpoints.add(checkpoint)
    now = _time(new)
    seen_hours: set[datetime] = set()
    for snapshot in newest_first:
        when = _time(snapshot)
        if when is None or now is None:
            keep.add(id(snapshot))  # an unreadable time is no reason to let go
            continue
        hour = when.replace(minute=0, second=0, microsecond=0)
        if now - when < timedelta(hours=policy.hourly) and hour not in seen_hours:
            seen_hours.add(hour)
            keep.add(id(snapshot))
    return tuple(s.n for s in retained if id(s) not in keep)


def _time(snapshot: Snapshot) -> datetime | None:
    try:
        return datetime.fromisoformat(snapshot.wall)
    except ValueError:
        return None
