"""Which snapshot a workspace stems from, as its own note says and the run's log bears out.

A log only grows. One that lacks what the note names was put back from an older copy, or the store lost data, lies or
lags: then nothing that was noted here proves that anything is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spotwarp.errors import CorruptObject, ObjectMissing, UnsupportedFormat
from spotwarp.execution import localstate
from spotwarp.persistence.repository import Repository
from spotwarp.persistence.runlog.entry import AnyEntry, Snapshot, Unknown
from spotwarp.persistence.runlog.log import Head, RunLog

BEHIND_HINT = (
    "Bring the store back to where it was, if that can be; else `spotwarp run --keep-local` goes on from what is here, "
    "as a new snapshot after the store's last one, and `spotwarp run --restore` takes the store's state and sets what "
    "is here aside. Nothing was changed."
)


@dataclass(frozen=True, slots=True)
class Stem:
    """What a workspace's content stems from."""

    snapshot: int | None = None
    """The log position that it was decided on; None: nothing of this run that the log has."""
    behind: str = ""
    """The log lacks the snapshot that it stems from: that, in words. Empty where it does not."""


def stem_of(workspace: Path, repository: Repository, log: RunLog) -> Stem:
    """What `workspace` stems from, by its note and by the log as it is now. Raises store errors.

    A life that died in a commit did not learn whether it stands: the log knows. One that never came to stand was
    never more than local work, and is no reason for alarm.
    """
    origin = localstate.load(localstate.runtime(workspace) / localstate.STATE, localstate.Origin)
    if origin is None or origin.repository != repository.identity.id or origin.run != log.run:
        return Stem()
    head = log.head()  # after the note was read: whatever it names was in the log before
    pending = _committed(log, head, origin) if origin.pending else None
    if pending is not None:
        return Stem(pending)
    if origin.snapshot <= 0:
        return Stem()
    words = lacking(origin, head, _read(log, origin.snapshot) if origin.snapshot <= head.n else None)
    return Stem(None, words) if words else Stem(origin.snapshot)


def origin_of(workspace: Path, repository: Repository, log: RunLog) -> int | None:
    """The log position that this workspace's content was decided on, None when it stems from nothing that the log has.

    Raises store errors.
    """
    return stem_of(workspace, repository, log).snapshot


def lacking(origin: localstate.Origin, head: Head, there: AnyEntry | Unknown | Damaged | None) -> str:
    """How the log that ends with `head` lacks the snapshot that `origin` names, in words; empty where it has it.

    `there` is the entry of that number, None where there is none. One that cannot be read tells nothing.
    """
    number, last = origin.snapshot, head.state.snapshot
    ends = f"the store's last one is {last}" if last else "the store has none"
    if isinstance(there, (Damaged, Unknown)):
        return ""
    if isinstance(there, Snapshot) and origin.manifest in ("", there.manifest):
        return ""
    been = f"it was at snapshot {number}, "
    been += ends if there is None else f"and that is another one there ({ends})"
    return f"the store is behind this workspace: {been}: somebody put back an older copy, or the store lost data"


@dataclass(frozen=True, slots=True)
class Damaged:
    """An entry that is there and cannot be read."""


def manifest_id(log: RunLog, number: int) -> str:
    """The id of the manifest of snapshot `number`; empty where that cannot be told."""
    there = _read(log, number) if number else None
    return there.manifest if isinstance(there, Snapshot) else ""


def same_boot(workspace: Path) -> bool:
    """Whether the machine has been up since the workspace's content was decided on."""
    origin = localstate.load(localstate.runtime(workspace) / localstate.STATE, localstate.Origin)
    return origin is not None and origin.boot == localstate.boot_id()


def _read(log: RunLog, number: int) -> AnyEntry | Unknown | Damaged | None:
    try:
        return log.read(number)
    except ObjectMissing:
        return None
    except (CorruptObject, UnsupportedFormat):
        return Damaged()


def _committed(log: RunLog, head: Head, origin: localstate.Origin) -> int | None:
    """The number of the snapshot with the pending manifest, None when there is none."""
    n = head.state.snapshot
    while n > origin.snapshot:
        entry = _read(log, n)
        if not isinstance(entry, Snapshot):
            return None
        if entry.manifest == origin.pending:
            return n
        n = entry.base
    return None
