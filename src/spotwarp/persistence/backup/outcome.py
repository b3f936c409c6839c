"""What reading came to: the entries to keep, the checkpoints that did not hold still, what to remember. Pure.

A checkpoint is what it was judged to be only if none of its files and directories moved between the scan and the end of
the reading: then all that was kept of it, read now or long ago, is its state at the scan.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from spotwarp.persistence.backup.plan import Groups, Plan
from spotwarp.persistence.backup.reading import Found
from spotwarp.persistence.entries import shown
from spotwarp.persistence.manifest import DIRECTORY, FILE, CheckpointFact, Entry, Manifest
from spotwarp.persistence.scan import Scan, Scanned
from spotwarp.persistence.statcache import Record

TORN = "torn"


def outcome(entries: Sequence[Scanned], plan: Plan, found: Found) -> Iterator[tuple[Scanned, bytes]]:
    """What the snapshot holds, in path order, each with its content's digests; what could not be read is left out."""
    for entry in entries:
        if entry.kind != FILE:
            yield entry, b""
        elif (record := plan.unchanged.get(entry.path)) is not None:
            yield entry, record.digests
        elif (content := found.contents.get(entry.path)) is not None:
            yield content


def broken(
    facts: Sequence[CheckpointFact], seen: Scan, found: Found, lstat: Callable[[bytes], os.stat_result | None]
) -> dict[bytes, str]:
    """The paths in checkpoints that are not in the snapshot as they were at the scan, and why."""
    reasons = {path: "could not be read" for path in chain(seen.unreadable, (skip.path for skip in found.unreadable))}
    if not facts:
        return reasons
    groups = Groups(facts)
    for entry in seen.entries:
        if groups.covers(entry.path) and (why := _moved(entry, lstat)):
            reasons.setdefault(entry.path, why)
    return reasons


def demoted(facts: Sequence[CheckpointFact], reasons: Mapping[bytes, str]) -> tuple[CheckpointFact, ...]:
    """`facts`, with those that have a broken path at or beneath theirs made torn."""
    settled = []
    for fact in facts:
        beneath = fact.path + b"/" if fact.path else b""
        bad = [path for path in reasons if path == fact.path or path.startswith(beneath)]
        if bad and fact.cls != TORN:
            first = min(bad)
            name = shown(first[len(beneath) :]) or "it"
            fact = msgspec.structs.replace(fact, cls=TORN, reason=f"{name} {reasons[first]}")
        settled.append(fact)
    return tuple(settled)


def records(plan: Plan, found: Found, fs_time_ns: int) -> dict[bytes, Record]:
    """What the stat cache shall know: the files not read, and those that held still while they were."""
    known = dict(plan.unchanged)
    unstable = set(found.unstable)
    for path, (entry, digests) in found.contents.items():
        if path not in unstable:
            known[path] = Record(entry.size, entry.mtime_ns, entry.ctime_ns, entry.ino, entry.dev, fs_time_ns, digests)
    return known


def equal(new: Manifest, base: Manifest) -> bool:
    """Whether a snapshot would say nothing new.

    The times of directories do not count: every temporary file that came and went moves them.
    """
    return (
        new.run == base.run
        and new.skipped == base.skipped
        and new.checkpoints == base.checkpoints
        and new.packs == base.packs
        and new.blobs == base.blobs
        and len(new.entries) == len(base.entries)
        and all(map(_same, new.entries, base.entries))
    )


def changed(new: Manifest, base: Manifest | None) -> int:
    """How many files of `new` are not in `base` with the same size, time and hash."""
    old = {entry.path: entry for entry in base.entries} if base else {}
    return sum(
        (was := old.get(entry.path)) is None
        or (was.kind, was.size, was.mtime_ns, was.digest) != (FILE, entry.size, entry.mtime_ns, entry.digest)
        for entry in new.entries
        if entry.kind == FILE
    )


def _same(new: Entry, old: Entry) -> bool:
    if new == old:
        return True
    return new.kind == old.kind == DIRECTORY and new.path == old.path and new.mode == old.mode


def _moved(entry: Scanned, lstat: Callable[[bytes], os.stat_result | None]) -> str:
    """How an entry differs from what the scan saw, in words; empty when it does not."""
    try:
        now = lstat(entry.path)
    except OSError:
        now = None
    if now is None:
        return "vanished while it was being stored"
    if (now.st_mtime_ns, now.st_ctime_ns, now.st_ino) != (entry.mtime_ns, entry.ctime_ns, entry.ino):
        return "changed while it was being stored"
    return ""
