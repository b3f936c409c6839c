"""What reading came to: the entries to keep, the checkpoints that did not hold still, what to remember. Pure.

A checkpoint is what it was judged to be only if none of its files and directories moved between the scan and the end of
the reading: then all that was kept of it, read now or long ago, is its state at the scan.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import msgspec

from spotwarp.persistence.backup.plan import REST, Groups, Plan, SmallFiles
from spotwarp.persistence.backup.reading import Found
from spotwarp.persistence.entries import shown
from spotwarp.persistence.held import Held
from spotwarp.persistence.index import digests_of
from spotwarp.persistence.manifest import DIRECTORY, FILE, CheckpointFact, Entry, Manifest, Skipped
from spotwarp.persistence.scan import Scan, Scanned
from spotwarp.persistence.statcache import Record

TORN: Final = "torn"
KEPT: Final = "no time before the machine's end: kept as the snapshot before has it"
LEFT_OUT: Final = "no time before the machine's end: left out"
_NAMED: Final = 1000
"""So many late files are named, the largest; the count is of all."""


def outcome(entries: Sequence[Scanned], plan: Plan, found: Found) -> Iterator[tuple[Scanned, bytes]]:
    """What the snapshot holds, in path order, each with its content's digests; what could not be read is left out."""
    for entry in entries:
        if entry.kind != FILE:
            yield entry, b""
        elif (record := plan.unchanged.get(entry.path)) is not None:
            yield entry, record.digests
        elif (content := found.contents.get(entry.path)) is not None:
            yield content


@dataclass(frozen=True, slots=True)
class Late:
    """What did not get to the store before the cut, and what the snapshot has in its stead."""

    kept: tuple[tuple[Scanned, bytes], ...]
    """As `outcome` gives it, in path order."""
    facts: tuple[CheckpointFact, ...]
    paths: tuple[bytes, ...]
    bytes: int
    """Files that are late, and bytes in them."""
    skipped: tuple[Skipped, ...]
    """The first of them, and what became of each."""


def late_paths(plan: Plan, found: Found, stored: Callable[[builtins.bytes], bool]) -> dict[builtins.bytes, int]:
    """The files of `plan` that are not in the store, with their sizes; `stored` judges the digests of what was read."""
    late: dict[builtins.bytes, int] = {}
    gone = {*found.vanished, *(skip.path for skip in found.unreadable)}
    read = (file for job in plan.jobs for file in (job.files if isinstance(job, SmallFiles) else (job.file,)))
    for file in chain(read, (alias.file for alias in plan.aliases)):
        content = found.contents.get(file.path)
        if (content is None and file.path not in gone) or (content is not None and not stored(content[1])):
            late[file.path] = file.size
    return late


def without_late(
    kept: Iterable[tuple[Scanned, builtins.bytes]],
    facts: Sequence[CheckpointFact],
    late: Mapping[builtins.bytes, int],
    base: Manifest | None,
) -> Late:
    """Leave out what is late: of a checkpoint all of it, since a part of one is none.

    What the base has in its place, a file or a whole checkpoint, stays as it was there.
    """
    groups = Groups(facts)
    hit = {groups.of(path) for path in late} - {REST}
    rest = [one for one in kept if one[0].path not in late and groups.of(one[0].path) not in hit]
    here = {entry.path for entry, _ in rest}
    old = Groups(base.checkpoints) if base else groups
    saved = {fact.path for fact in base.checkpoints} & hit if base else set()
    stays = []
    for entry in base.entries if base else ():
        wanted = old.of(entry.path) in saved or (
            entry.path in late and entry.kind == FILE and old.of(entry.path) == REST
        )
        digests = digests_of(entry, base.blobs) if wanted and base and entry.path not in here else None
        if digests is not None:
            stays.append((_as_scanned(entry), digests))
    facts = (
        *(f for f in facts if f.path not in hit),
        *(f for f in (base.checkpoints if base else ()) if f.path in saved),
    )
    back = {entry.path for entry, _ in stays}
    named = sorted(late, key=lambda path: (-late[path], path))[:_NAMED]
    return Late(
        tuple(sorted((*rest, *stays), key=lambda one: one[0].path)),
        tuple(sorted(facts, key=lambda fact: fact.path)),
        tuple(sorted(late)),
        sum(late.values()),
        tuple(Skipped(path, KEPT if path in back else LEFT_OUT, unreadable=True) for path in named),
    )


def _as_scanned(entry: Entry) -> Scanned:
    return Scanned(entry.path, entry.kind, entry.mode, entry.mtime_ns, 0, entry.size, 0, 0, 0, entry.target)


def linked(kept: Iterable[tuple[Scanned, bytes]]) -> dict[bytes, bytes]:
    """Which of what the snapshot holds are one file under several names: each further name, and the first.

    Only where all of it is the same: a file that was written to between two names is kept as two.
    """
    first: dict[tuple[int | bytes, ...], bytes] = {}
    links = {}
    for entry, digests in kept:
        if entry.kind == FILE and entry.nlink > 1:
            same = (entry.dev, entry.ino, entry.mode, entry.mtime_ns, entry.size, digests)
            name = first.setdefault(same, entry.path)
            if name != entry.path:
                links[entry.path] = name
    return links


def broken(
    facts: Sequence[CheckpointFact], seen: Scan, found: Found, lstat: Callable[[bytes], os.stat_result | None]
) -> dict[bytes, str]:
    """The paths in checkpoints that are not in the snapshot as they were at the scan, and why."""
    reasons = {path: "could not be read" for path in chain(seen.unreadable, (skip.path for skip in found.unreadable))}
    if not facts:
        return reasons
    groups = Groups(facts)
    for entry in seen.entries:
        if groups.covers(entry.path) and (why := moved(entry, lstat)):
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


def records(
    plan: Plan, found: Found, fs_time_ns: int, held: Held, now: float, *, without: Container[bytes] = ()
) -> dict[bytes, Record]:
    """What the stat cache shall know: the files not read, and those that held still while they were.

    `held` was looked at before they were read, at `now` (monotonic), and after `fs_time_ns`. Not `without`: these are
    in the snapshot with other content than on disk, or not at all.
    """
    known = {path: record for path, record in plan.unchanged.items() if path not in without}
    unstable = set(found.unstable)
    for path, (entry, digests) in found.contents.items():
        if path not in unstable and path not in without:
            known[path] = Record(
                entry.size,
                entry.mtime_ns,
                entry.ctime_ns,
                entry.ino,
                entry.dev,
                fs_time_ns,
                digests,
                now if (entry.dev, entry.ino) in held else None,
            )
    return known


def equal(new: Manifest, base: Manifest) -> bool:
    """Whether a snapshot would say nothing new.

    The times of directories do not count: every temporary file that came and went moves them.
    """
    return (
        new.run == base.run
        and new.skipped == base.skipped
        and new.checkpoints == base.checkpoints
        and new.versions == base.versions
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


def moved(entry: Scanned, lstat: Callable[[bytes], os.stat_result | None]) -> str:
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
