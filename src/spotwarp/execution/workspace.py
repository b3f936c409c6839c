"""How a workspace stands to its run, and how it is brought up to it without losing what is only here.

A workspace is *fresh* (it stems from nothing), *current* (from the run's last snapshot) or *behind* (from an earlier
one). Local work is what is neither in the snapshot to restore nor known to have been stored: it is never overwritten
unasked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from spotwarp.config import DIRECTORY as OWN
from spotwarp.config import FILE as CONFIG_FILE
from spotwarp.errors import CorruptObject, LocalWork, ObjectMissing, SpotWarpError
from spotwarp.execution import localstate
from spotwarp.execution.checkpoints import step_of
from spotwarp.persistence.beneath import ancestors
from spotwarp.persistence.compare import LocalFile, hash_local, plan
from spotwarp.persistence.entries import renamed_for_torn, shown
from spotwarp.persistence.excludes import Excludes
from spotwarp.persistence.manifest import DIRECTORY, FILE, CheckpointFact, Entry, Manifest, builder
from spotwarp.persistence.repository import Repository
from spotwarp.persistence.runlog.entry import Snapshot
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.persistence.scan import Scanned, scan
from spotwarp.persistence.statcache import StatCache
from spotwarp.persistence.table import Table

_OWN = OWN.encode() + b"/"
_CONFIG = _OWN + CONFIG_FILE.encode()
_NAMED = 8
_LATER = ("resumable", "weights-only", "unknown")


class Choice(Enum):
    """What to do with newer local work."""

    ASK = "ask"
    RESTORE = "restore"
    KEEP = "keep-local"


@dataclass(frozen=True, slots=True)
class Difference:
    """What separates the workspace from a snapshot, decided per path."""

    manifest: Manifest
    """The snapshot's, with torn checkpoints under the names they come back under."""
    fetch: Sequence[Entry]
    stale: tuple[bytes, ...]
    """Here, known to be stored, and no part of the snapshot: set aside. With a slash: a directory, removed if that
    leaves it empty."""
    own: tuple[bytes, ...]
    """Local work."""
    older: bool = False
    """Some file of `fetch` is here with other content, perhaps an older one of which pieces are the same."""


def compare(
    workspace: Path,
    manifest: Manifest,
    number: int,
    *,
    origin: Manifest | None,
    fresh: bool,
    cache: StatCache,
    exclude: Sequence[str],
) -> Difference:
    """Compare the workspace with snapshot `number`. `origin` is the manifest of the snapshot it stems from, if to be
    had."""
    found = {e.path: e for e in scan(workspace, Excludes(exclude)).entries if not e.path.startswith(_OWN)}
    target = _under_free_names(workspace, manifest, number, found)
    if not found:  # all of it, as a table: there may be a million
        return Difference(target, _all_but_own(workspace, target), (), ())
    entries = [e for e in target.entries if e.path != _CONFIG and not _longer_log(workspace, e)]
    local = {path: _local(workspace, entry, target) for path, entry in found.items()}
    planned = plan(entries, local, frozenset())
    before = {e.path: e for e in origin.entries} if origin else {}

    def stored(path: bytes) -> bool:
        return _stored(workspace, found[path], before.get(path), origin, cache)

    extra = [p for p in planned.extra if found[p].kind != DIRECTORY]
    own = [p for p in planned.differing if found[p].kind != DIRECTORY and not stored(p)]
    own += [p for p in extra if not stored(p) and (not fresh or _in_checkpoint(p))]
    stale = () if fresh else tuple(p for p in extra if stored(p))
    left = {above for path in stale for above in ancestors(path)} - {e.path for e in entries}
    stale += tuple(path + b"/" for path in sorted(left))
    older = any(found[path].kind == FILE for path in planned.differing)
    return Difference(target, planned.fetch, stale, tuple(sorted(own)), older)


def _all_but_own(workspace: Path, target: Manifest) -> Table[Entry]:
    entries = builder()
    for entry in target.entries:
        if entry.path != _CONFIG and not _longer_log(workspace, entry):
            entries.add(entry)
    return entries.table()


def _under_free_names(workspace: Path, manifest: Manifest, number: int, found: dict[bytes, Scanned]) -> Manifest:
    """`manifest` with its torn checkpoints renamed; a name that is here with other content is left to what is here.

    The same content is what an earlier restore put there, and no reason for a second copy.
    """
    target = renamed_for_torn(manifest, number)
    taken = set()
    for torn in {fact.path for fact in target.checkpoints if fact.cls == "torn"} & found.keys():
        beneath = [e for e in target.entries if e.path == torn or e.path.startswith(torn + b"/")]
        here = {p: _local(workspace, e, target) for p, e in found.items() if p == torn or p.startswith(torn + b"/")}
        planned = plan(beneath, here, frozenset())
        if planned.fetch or planned.extra:
            taken.add(torn)
    return renamed_for_torn(manifest, number, taken=taken) if taken else target


def _longer_log(workspace: Path, entry: Entry) -> bool:
    """Whether this is a log of SpotWarp's that is here already, with all that was stored of it: logs only grow."""
    if entry.kind != FILE or not entry.path.startswith(_OWN):
        return False
    try:
        return (workspace / os.fsdecode(entry.path)).stat().st_size >= entry.size
    except OSError:
        return False


def _local(workspace: Path, entry: Scanned, manifest: Manifest) -> LocalFile:
    return LocalFile(entry.kind, entry.size, entry.target, lambda wanted: hash_local(workspace, wanted, manifest.blobs))


def _stored(workspace: Path, entry: Scanned, before: Entry | None, origin: Manifest | None, cache: StatCache) -> bool:
    """Whether this content is known to be stored: unchanged since it was, or else by its content, as the origin's.

    The cache is only a shortcut: after a reboot, or a copy of the workspace, it knows nothing.
    """
    if entry.kind == FILE and cache.lookup(entry) is not None:
        return True
    if before is None or origin is None or before.kind != entry.kind:
        return False
    return hash_local(workspace, before, origin.blobs)


def _in_checkpoint(path: bytes) -> bool:
    parts = path.split(b"/")
    return any(step_of(part) is not None for part in parts[:-1])


def manifest_at(repository: Repository, log: RunLog, number: int) -> Manifest | None:
    """The manifest of snapshot `number` if it can still be had."""
    try:
        entry = log.read(number)
        return repository.manifest(log.run, entry) if isinstance(entry, Snapshot) else None
    except (CorruptObject, ObjectMissing):
        return None


RUN_HINT = (
    "`--restore` sets it aside under .spotwarp/set-aside/ and takes the run's state; "
    "`--keep-local` goes on from what is here; or use an empty directory. Nothing was changed."
)
VERB_HINT = (
    "`--force` sets it aside under .spotwarp/set-aside/; `--to DIR` restores elsewhere; `spotwarp run --keep-local` "
    "goes on from what is here. Nothing was changed."
)


def decide(
    difference: Difference, choice: Choice, *, where: str, fresh: bool, behind: str = "", hint: str = RUN_HINT
) -> tuple[bytes, ...] | None:
    """The paths to set aside before restoring, or None to leave the workspace as it is. Raises `LocalWork`.

    `behind` says how the store lacks the snapshot that the workspace stems from, where it does (see `origin`).
    """
    if not difference.own:
        return difference.stale
    if choice is Choice.KEEP:
        return None
    if choice is Choice.RESTORE:
        return (*difference.stale, *difference.own)
    some = ", ".join(shown(p) for p in difference.own[:_NAMED])
    more = f" and {len(difference.own) - _NAMED} more" if len(difference.own) > _NAMED else ""
    if behind:
        raise LocalWork(f"{behind}; so this is stored nowhere now: {some}{more}", hint=hint)
    been = "is not from this run" if fresh else f"is behind {where}"
    raise LocalWork(
        f"this workspace {been}, but has work that is stored nowhere: {some}{more}",
        hint=hint,
    )


def excludes_in(repository: Repository, log: RunLog, env: Mapping[str, str]) -> tuple[str, ...]:
    """The excludes in the config file that the run's last snapshot holds; none if it cannot be read."""
    from tempfile import TemporaryDirectory

    from spotwarp import config
    from spotwarp.clock import SystemClock
    from spotwarp.persistence.restore import fetch

    del env
    manifest = manifest_at(repository, log, log.head().state.snapshot)
    wanted = [e for e in manifest.entries if e.path == _CONFIG and e.kind == FILE] if manifest else []
    if manifest is None or not wanted:
        return ()
    with TemporaryDirectory(prefix="spotwarp-") as scratch:
        try:
            staging = Path(scratch) / "workspace"
            fetch(store=repository.store, manifest=manifest, wanted=wanted, staging=staging, clock=SystemClock())
            return config.load(staging, env={}).exclude
        except SpotWarpError:
            return ()


def is_empty(workspace: Path) -> bool:
    """Whether nothing but SpotWarp's own files is here."""
    with os.scandir(workspace) as found:
        return all(entry.name == OWN for entry in found)


def may_follow(fact: CheckpointFact) -> bool:
    """Whether a checkpoint is of the kind that can come in after the command has started."""
    return fact.cls in _LATER and fact.path.rpartition(b"/")[2].startswith(b"checkpoint-")


def awaited(workspace: Path, repository: str, run: str, manifest: Manifest | None) -> tuple[bytes, ...]:
    """What is noted as still to come in of `manifest`, the last snapshot.

    Where the note is damaged it may be any checkpoint that can follow: rather one too many comes back than one that was
    to come is taken for deleted.
    """
    known = localstate.awaited(workspace, repository, run)
    if known is not None:
        return known
    return tuple(fact.path for fact in manifest.checkpoints if may_follow(fact)) if manifest is not None else ()
