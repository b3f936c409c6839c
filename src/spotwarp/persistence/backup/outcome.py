"""What reading came to: the entries to keep, the checkpoints that did not hold still, what to remember. Pure.

A checkpoint is what it was judged to be only if none of its files and directories moved between the scan and the end of
the reading: then all that was kept of it, read now or long ago, is its state at the scan.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge, nsmallest
from itertools import chain
from typing import Final

import msgspec

from spotwarp.persistence.backup.plan import BUNDLED, KEEP, NAMED, REST, Belief, Groups, Plan, SmallFiles
from spotwarp.persistence.backup.reading import Content, Found
from spotwarp.persistence.entries import shown
from spotwarp.persistence.held import Held
from spotwarp.persistence.manifest import (
    DIRECTORY,
    FILE,
    CheckpointFact,
    Entry,
    Manifest,
    Skipped,
    is_damaged,
    is_model,
    tabled,
)
from spotwarp.persistence.scan import Scan, Scanned, names_hash
from spotwarp.persistence.statcache import Record, StatCache
from spotwarp.persistence.table import Cursor, apart

TORN: Final = "torn"
VANISHED: Final = "vanished while it was being stored"
KEPT: Final = "no time before the machine's end: kept as the snapshot before has it"
LEFT_OUT: Final = "no time before the machine's end: left out"
_NAMED: Final = 1000
"""So many late files are named, the largest; the count is of all."""


@dataclass(frozen=True, slots=True)
class Times:
    """When a backup looked: at the directories (ns, the file system's clock), and at what is held (monotonic)."""

    scan_ns: int
    looked_s: float


@dataclass(frozen=True, slots=True)
class Kept:
    """One entry of the snapshot: as the scan saw it, or as it was read."""

    entry: Scanned
    digests: bytes | None
    """Its content's; empty for what is no file. None: all of it is as the base snapshot has it."""
    record: Record | None
    """What the stat cache shall know of it; None for what would not hold still, and for what is no file."""
    as_seen: bool
    """It is what the scan saw, and any change from now on must show in its status."""


def outcome(plan: Plan, found: Found, cache: StatCache, belief: Belief, times: Times) -> Iterator[Kept]:
    """What the snapshot holds, in path order; what could not be read, and what nobody wants, is left out."""
    bundled = found.in_order()
    content = next(bundled, None)
    for number, entry in enumerate(plan.entries):
        fate = plan.fates[number]
        if entry.kind != FILE:
            yield Kept(entry, b"", None, as_seen=True)
        elif fate == KEEP:
            if (record := belief.record(cache, entry)) is not None:
                yield Kept(entry, record.digests, record, as_seen=True)
        elif fate == NAMED:
            if (named := found.named.get(entry.path)) is not None:
                yield _read(named, entry, belief.held, times)
        elif fate == BUNDLED:
            while content is not None and content.path < entry.path:
                content = next(bundled, None)
            if content is not None and content.path == entry.path:
                yield _read(content, entry, belief.held, times)


def _read(content: Content, seen: Scanned, held: Held, times: Times) -> Kept:
    entry, digests = content.entry, content.digests
    if not content.stable:
        return Kept(entry, digests, None, as_seen=False)
    stamps = entry.mtime_ns, entry.ctime_ns, entry.ino, entry.dev
    held_s = times.looked_s if (entry.dev, entry.ino) in held else None
    record = Record(entry.path, entry.size, *stamps, times.scan_ns, digests, held_s)
    return Kept(entry, digests, record, as_seen=entry == seen and record.trusted())


class Links:
    """Which of what the snapshot holds are one file under several names.

    Only where all of it is the same: a file that was written to between two names is kept as two.
    """

    def __init__(self, several: Container[int]) -> None:
        """`several` as in `Scan`."""
        self._several = several
        self._first: dict[tuple[int | bytes, ...], bytes] = {}

    def first(self, entry: Scanned, digests: bytes | None) -> bytes:
        """The first name of the file of which `entry` is a further one, else nothing; asked in path order."""
        if digests is None or entry.kind != FILE or entry.nlink < 2 or names_hash(entry) not in self._several:
            return b""
        same = (entry.dev, entry.ino, entry.mode, entry.mtime_ns, entry.size, digests)
        name = self._first.setdefault(same, entry.path)
        return b"" if name == entry.path else name


def late_paths(plan: Plan, found: Found, stored: Callable[[builtins.bytes], bool]) -> dict[builtins.bytes, int]:
    """The files of `plan` that are not in the store, with their sizes; `stored` judges the digests of what was read."""
    late: dict[builtins.bytes, int] = {}
    gone = {*found.vanished, *(skip.path for skip in found.unreadable)}

    def look(files: Iterable[Scanned], contents: Mapping[builtins.bytes, Content]) -> None:
        for file in files:
            content = contents.get(file.path)
            if (content is None and file.path not in gone) or (content is not None and not stored(content.digests)):
                late[file.path] = file.size

    for job in plan.jobs():
        look(job.files if isinstance(job, SmallFiles) else (job.file,), found.of(job))
    look((alias.file for alias in plan.aliases), found.named)
    return late


class Late:
    """What did not get to the store before the cut, and what the snapshot has in its stead.

    Of a checkpoint all is left out, since a part of one is none. What the base has in its place, a file or a whole
    checkpoint, stays as it was there. A model that lacks a file is no fact any more.
    """

    def __init__(
        self, paths: Mapping[builtins.bytes, int], facts: Sequence[CheckpointFact], base: Manifest | None
    ) -> None:
        """`paths` has the late files with their sizes, at least one."""
        self._paths, self._base = paths, base
        self._groups = Groups(fact for fact in facts if not is_model(fact))
        self._hit = {self._groups.of(path) for path in paths} - {REST}
        before = base.checkpoints if base else ()
        self._before = [fact for fact in before if not (is_model(fact) or is_damaged(fact))]
        self._saved = {fact.path for fact in self._before} & self._hit
        gone = self._hit | {path.rpartition(b"/")[0] for path in paths}
        stay = [fact for fact in facts if fact.path not in (gone if is_model(fact) else self._hit)]
        stay += [fact for fact in self._before if fact.path in self._saved]
        self.facts = tuple(sorted(stay, key=lambda fact: fact.path))
        """The checkpoints of the snapshot."""
        self.files, self.bytes = len(paths), sum(paths.values())
        self._named = dict.fromkeys(nsmallest(_NAMED, paths, key=lambda path: (-paths[path], path)), LEFT_OUT)

    def stand_in(self, kept: Iterable[Kept]) -> Iterator[Kept]:
        """`kept` without what is late, and with what takes its place; in path order."""
        last = None
        rest = (one for one in kept if not self._drops(one.entry.path))
        for one in merge(rest, self._stays(), key=lambda one: one.entry.path):
            if one.entry.path != last:
                last = one.entry.path
                if not one.as_seen and last in self._named:
                    self._named[last] = KEPT
                yield one

    def skipped(self) -> tuple[Skipped, ...]:
        """The largest that are late, and what became of each; after `stand_in` has ended."""
        return tuple(Skipped(path, reason, unreadable=True) for path, reason in self._named.items())

    def _drops(self, path: builtins.bytes) -> bool:
        return path in self._paths or self._groups.of(path) in self._hit

    def _stays(self) -> Iterator[Kept]:
        base = self._base
        if base is None:
            return
        old = Groups(self._before)
        for entry in base.entries:
            group = old.of(entry.path)
            if group in self._saved or (entry.path in self._paths and entry.kind == FILE and group == REST):
                yield as_before(entry)


def as_before(entry: Entry) -> Kept:
    """An entry that stays as the base snapshot has it."""
    seen = Scanned(entry.path, entry.kind, entry.mode, entry.mtime_ns, 0, entry.size, 0, 0, 0, entry.target)
    return Kept(seen, None, None, as_seen=False)


def broken(
    facts: Sequence[CheckpointFact],
    seen: Scan,
    found: Found,
    lstat: Callable[[bytes], os.stat_result | None],
    names: Callable[[bytes], list[bytes]],
) -> dict[bytes, str]:
    """The paths in checkpoints that are not in the snapshot as they were at the scan, and why.

    `names` gives what a directory has in it now. A checkpoint that is deleted meanwhile may be in the snapshot all the
    same: what went is no loss once its content was read; what came is.
    """
    vanished = frozenset(found.vanished)
    reasons = {path: "could not be read" for path in chain(seen.unreadable, (skip.path for skip in found.unreadable))}
    groups = Groups(facts)
    for fact in facts:
        for entry in seen.entries.beneath(fact.path):
            if groups.of(entry.path) != fact.path or (is_model(fact) and entry.kind != FILE):
                continue
            why = moved(entry, lstat)
            if why and not (_survives(entry, found, vanished) if why is VANISHED else _only_lost(entry, seen, names)):
                reasons.setdefault(entry.path, why)
    return reasons


def demoted(facts: Sequence[CheckpointFact], reasons: Mapping[bytes, str]) -> tuple[CheckpointFact, ...]:
    """`facts`, with the checkpoints that have a broken path in them made torn, and without such models.

    A torn checkpoint is restored under another name; a model directory often has all checkpoints in it.
    """
    groups = Groups(facts)
    bad: dict[bytes, bytes] = {}
    for path in reasons:
        group = groups.of(path)
        bad[group] = min(path, bad.get(group, path))
    return tuple(
        _torn(fact, bad[fact.path], reasons) if fact.path in bad else fact
        for fact in facts
        if not (fact.path in bad and is_model(fact))
    )


def _torn(fact: CheckpointFact, path: bytes, reasons: Mapping[bytes, str]) -> CheckpointFact:
    if fact.cls == TORN:
        return fact
    name = shown(path[len(fact.path) + 1 :]) or "it"
    return msgspec.structs.replace(fact, cls=TORN, reason=f"{name} {reasons[path]}")


def equal(new: Manifest, base: Manifest) -> bool:
    """Whether a snapshot would say nothing new.

    The times of directories do not count: every temporary file that came and went moves them.
    """
    return (
        new.run == base.run
        and new.skipped == base.skipped
        and new.checkpoints == base.checkpoints
        and new.versions == base.versions
        and set(new.packs) == set(base.packs) - {one.pack for one in base.shared}
        and new.blobs == base.blobs
        and len(new.entries) == len(base.entries)
        and all(map(_same, *apart(tabled(new.entries), tabled(base.entries))))
    )


def changed(new: Manifest, base: Manifest | None) -> int:
    """How many files of `new` are not in `base` with the same size, time and hash."""
    if base is None:
        return sum(entry.kind == FILE for entry in new.entries)
    old = Cursor(tabled(base.entries))
    return sum(
        (was := old.find(entry.path)) is None
        or (was.kind, was.size, was.mtime_ns, was.digest) != (FILE, entry.size, entry.mtime_ns, entry.digest)
        for entry in apart(tabled(new.entries), tabled(base.entries))[0]
        if entry.kind == FILE
    )


def _same(new: Entry, old: Entry) -> bool:
    if new == old:
        return True
    return new.kind == old.kind == DIRECTORY and new.path == old.path and new.mode == old.mode


def _survives(entry: Scanned, found: Found, vanished: Container[bytes]) -> bool:
    """Whether what is gone is in the snapshot as the scan saw it."""
    content = found.named.get(entry.path)
    if entry.kind != FILE or content is None:
        return entry.path not in vanished
    read = content.entry
    return content.stable and (read.ino, read.mtime_ns, read.size) == (entry.ino, entry.mtime_ns, entry.size)


def _only_lost(entry: Scanned, seen: Scan, names: Callable[[bytes], list[bytes]]) -> bool:
    """Whether all that happened to a directory is that names in it went."""
    if entry.kind != DIRECTORY:
        return False
    try:
        now = names(entry.path)
    except OSError:
        return False
    inside = entry.path + b"/" if entry.path else b""
    known = {one.path for one in seen.entries.beneath(entry.path)} | {skip.path for skip in seen.skipped}
    return all(inside + name in known for name in now)


def moved(entry: Scanned, lstat: Callable[[bytes], os.stat_result | None]) -> str:
    """How an entry differs from what the scan saw, in words; empty when it does not."""
    try:
        now = lstat(entry.path)
    except OSError:
        now = None
    if now is None:
        return VANISHED
    if (now.st_mtime_ns, now.st_ctime_ns, now.st_ino) != (entry.mtime_ns, entry.ctime_ns, entry.ino):
        return "changed while it was being stored"
    return ""
