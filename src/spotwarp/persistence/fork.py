"""A run that begins from another's snapshot: pinned in the parent's log first, then the child's first entry (P6).

The child's snapshots may name the parent's packs for as long as the pin stands; nothing here ever takes one away. Every
step is safe to repeat: whoever dies in between is carried on by the next call.
"""

from __future__ import annotations

from spotwarp.errors import LeaseError, UsageError
from spotwarp.persistence import layout
from spotwarp.persistence.repository import Repository
from spotwarp.persistence.runlog.entry import Fork, Pin, Snapshot, State, decode
from spotwarp.persistence.runlog.log import Head, RunLog, Stands


def fork(parent: RunLog, child: RunLog, snapshot: int) -> None:
    """Make `child` a run that begins from `snapshot` of `parent`.

    Raises `LeaseError` when that is no snapshot to begin from, `UsageError` when the child's name is another run's.
    """
    try:
        if parent.head().state.pins.get(child.run) != snapshot:
            parent.append(lambda _: Pin(child=child.run, snapshot=snapshot))
    except LeaseError:
        if parent.head().state.pins.get(child.run) != snapshot:  # else another call pinned it just now
            raise
    child.append(lambda head: _first(child, head, Fork(parent=parent.run, snapshot=snapshot)))


def _first(child: RunLog, head: Head, entry: Fork) -> Fork:
    if not head.n:
        return entry
    there = child.read(1)
    if isinstance(there, Fork) and (there.parent, there.snapshot) == (entry.parent, entry.snapshot):
        raise Stands(there)
    raise UsageError(f"{child.run!r} is another run already", hint="Give it another name with --run.")


def origin(repository: Repository, state: State) -> tuple[str, Snapshot] | None:
    """The parent run and the snapshot that a run whose fold is `state` begins from; None for one that was not forked.

    Raises `CorruptObject`, `ObjectMissing`.
    """
    if state.fork is None or state.detached:
        return None
    run, number = state.fork
    key = layout.log_key(run, number)
    entry = decode(repository.store.get(key), number, key)
    return (run, entry) if isinstance(entry, Snapshot) else None
