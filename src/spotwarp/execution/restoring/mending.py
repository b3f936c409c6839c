"""Single-file checkpoints that a dead attempt left torn on this disk: the last whole version comes back (I5).

Runs before the command is started, when nothing writes here. What is on disk is never deleted: it stays beside, under a
name that no trainer takes. Every step may be the last one: until a file is replaced, at once, by its whole version, the
next start finds it torn and begins again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotwarp.clock import Clock
from spotwarp.config import DIRECTORY as OWN
from spotwarp.errors import CorruptObject, ObjectMissing, WorkspaceFault
from spotwarp.execution import localstate
from spotwarp.execution.checkpoints import find
from spotwarp.execution.localstate import runtime
from spotwarp.execution.syncing.versions import End, Moment, WholeVersions, free_name
from spotwarp.persistence.backup.plan import Belief
from spotwarp.persistence.backup.versions import Take, Version, held
from spotwarp.persistence.content import digests_of
from spotwarp.persistence.entries import shown
from spotwarp.persistence.excludes import Excludes
from spotwarp.persistence.install import install
from spotwarp.persistence.manifest import DIRECTORY, CheckpointFact, Entry, Manifest
from spotwarp.persistence.restore import fetch
from spotwarp.persistence.scan import scan, scanned
from spotwarp.persistence.statcache import Record, StatCache
from spotwarp.persistence.store.api import Store


@dataclass(frozen=True, slots=True)
class Place:
    """A workspace, what is never looked at in it, and where its snapshots are."""

    root: Path
    exclude: Sequence[str]
    store: Store


def mend(
    place: Place, base: Manifest | None, number: int, *, settle_s: float, clock: Clock, say: Callable[[str], None]
) -> list[str]:
    """Give the torn single-file checkpoints here back in their versions of snapshot `number`, which is `base`, where it
    has one. Returns their names.

    Raises store errors and `WorkspaceFault`; the next call goes on from there.
    """
    sign_ns = _last_sign_ns(place.root)
    if not sign_ns:
        return []  # nothing ever ran here
    cache = StatCache.load(runtime(place.root) / localstate.STATCACHE, place.root)
    entries = scan(place.root, Excludes(place.exclude)).entries
    sets = find((entry.path, entry.kind == DIRECTORY) for entry in entries)
    rule = WholeVersions(number, Moment(sign_ns, End.CUT, settle_s))
    judged = rule(
        place.root, entries, [CheckpointFact(path, "unknown", step=0) for path in sets], base, cache, Belief()
    )
    torn = {path: version for path, version in judged.of.items() if version.take is not Take.NEW}
    back = [entry for path, entry in held(base).items() if path in torn and torn[path].take is not Take.NONE]
    if back and base is not None:
        back = _fetched(place, base, back, clock, say)
    restored = {entry.path for entry in back}
    for path, version in torn.items():
        name = _beside(place.root, path, version, number, stays=path in restored)
        known = f"its version of snapshot {number} is back" if path in restored else "there is no whole version of it"
        say(f"set aside {shown(path)} as {name}: {version.reason}; {known}")
    if back and base is not None:
        install(_staging(place.root), place.root, aside=runtime(place.root) / localstate.SET_ASIDE)
        _remember(place.root, cache, back, base)
    return [shown(path) for path in torn]


def _last_sign_ns(root: Path) -> int:
    """When (ns, the file system's clock) the last attempt here was certainly still alive, as its own files say.

    0: there was none.
    """
    own = root / OWN
    with contextlib.suppress(OSError):
        traces = [own / ".now", *(own / "log").iterdir()]
        return max((os.lstat(trace).st_mtime_ns for trace in traces if trace.exists()), default=0)
    return 0


def _fetched(
    place: Place, base: Manifest, wanted: list[Entry], clock: Clock, say: Callable[[str], None]
) -> list[Entry]:
    """Fetch the whole versions beside the workspace; those that are damaged in the repository are lost, and it is
    said."""
    try:
        fetch(store=place.store, manifest=base, wanted=wanted, staging=_staging(place.root), clock=clock)
    except (CorruptObject, ObjectMissing) as damage:
        say(f"the last whole version cannot be brought back: {damage.message}")
        return []
    return wanted


def _staging(root: Path) -> Path:
    return runtime(root) / localstate.STAGING


def _beside(root: Path, path: bytes, version: Version, number: int, *, stays: bool) -> str:
    """Give what is at `path` another name; if it `stays`, also the old one until its whole version takes that."""
    suffix = b".unverified" if version.take is Take.ASIDE else b".torn-%d" % number
    base = os.fsencode(root)
    old = os.path.join(base, path)  # noqa: PTH118 - bytes: names need not be text
    taken: set[bytes] = set()
    while True:
        new = free_name(path, suffix, taken)
        target = os.path.join(base, new)  # noqa: PTH118
        if not os.path.lexists(target):
            break
        if os.path.samestat(os.lstat(target), os.lstat(old)):
            return shown(new)  # by an earlier call that was cut off
        taken.add(new)
    try:
        if not stays:
            os.rename(old, target)  # noqa: PTH104 - bytes
        else:
            try:
                os.link(old, target, follow_symlinks=False)
            except OSError:  # no hard links here
                shutil.copy2(old, target, follow_symlinks=False)
    except OSError as error:
        raise WorkspaceFault(f"{shown(path)} cannot be set aside: {error.strerror}") from error
    return shown(new)


def _remember(root: Path, cache: StatCache, entries: list[Entry], base: Manifest) -> None:
    """Let the stat cache know what has come back, so that the next sync does not take it for newly written."""
    for entry in entries:
        status = os.lstat(os.path.join(os.fsencode(root), entry.path))  # noqa: PTH118 - bytes
        seen = scanned(entry.path, status, entry.kind)
        digests = digests_of(entry, base.blobs)
        if digests is not None:
            # Written by us with nobody else about: trusted from its own time stamps on.
            settled = max(seen.ctime_ns, seen.mtime_ns) + 3_000_000_000
            stamps = seen.mtime_ns, seen.ctime_ns, seen.ino, seen.dev
            cache.add(Record(entry.path, seen.size, *stamps, settled, digests))
    cache.save(runtime(root) / localstate.STATCACHE, root)
