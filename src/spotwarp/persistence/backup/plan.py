"""What a backup reads, and in which order. Pure.

The newest resumable checkpoint comes first, then small files (code, configuration, logs), then the other checkpoints,
and the bulk last, so that what a resume needs is safe soonest. Files of one checkpoint directory form a group; packs
never mix groups, so a rotated checkpoint's packs die as a whole. A file that has not changed, and whose content is
known, is not read at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from spotwarp.persistence.held import Held, Identity
from spotwarp.persistence.index import SMALL, Index
from spotwarp.persistence.manifest import FILE, CheckpointFact
from spotwarp.persistence.scan import Scanned
from spotwarp.persistence.statcache import Record, StatCache

BUNDLE: Final = 1 << 20
"""Bytes of small files that are coded as one blob, and given to a worker as one job."""

REST: Final = b""
"""The group of everything that is in no checkpoint."""

_RANK: Final = {"resumable": 0, "weights-only": 1}


@dataclass(frozen=True, slots=True)
class SmallFiles:
    """About a bundle's worth of files below `index.SMALL`."""

    group: bytes
    files: tuple[Scanned, ...]


@dataclass(frozen=True, slots=True)
class BigFile:
    """One file that is read in chunks."""

    group: bytes
    file: Scanned


Job = SmallFiles | BigFile


@dataclass(frozen=True, slots=True)
class Alias:
    """A hard link: `file` is what is read as `read_as`."""

    group: bytes
    file: Scanned
    read_as: bytes


@dataclass(frozen=True, slots=True)
class Belief:
    """What the stat cache is believed."""

    held: Held = field(default_factory=Held)
    """What somebody may be writing now."""
    since: float = -math.inf
    """Monotonic: what was read of a held file until then is read again."""

    def record(self, cache: StatCache, entry: Scanned) -> Record | None:
        """The record of a file that need not be read."""
        found = cache.record(entry, self.since)
        if found is not None and (found.held_s is not None) != ((entry.dev, entry.ino) in self.held):
            return None  # taken hold of since, or let go: what was written in between need not show
        return found


@dataclass(frozen=True, slots=True)
class Plan:
    """The jobs in order, the files that need not be read, and what is to be read in files and bytes."""

    jobs: tuple[Job, ...]
    unchanged: dict[bytes, Record]
    read_files: int
    read_bytes: int
    aliases: tuple[Alias, ...] = ()
    """Further names of files that are read once, under another name."""


class Groups:
    """Which checkpoint a path belongs to: the nearest of `facts` at or above it."""

    def __init__(self, facts: Sequence[CheckpointFact]) -> None:
        self._of: dict[bytes, bytes] = {REST: REST} | {fact.path: fact.path for fact in facts}
        self._any = len(self._of) > 1
        self._all = any(fact.path == REST for fact in facts)

    def covers(self, path: bytes) -> bool:
        """Whether a path is part of a checkpoint; the workspace itself may be one."""
        return self._all or self.of(path) != REST

    def of(self, path: bytes) -> bytes:
        """The checkpoint's path, or `REST`."""
        if not self._any:
            return REST
        above = path
        while (found := self._of.get(above)) is None:
            above = above.rpartition(b"/")[0]
        if above != path and above != (directory := path.rpartition(b"/")[0]):
            self._of[directory] = found
        return found


def plan(
    entries: Sequence[Scanned],
    facts: Sequence[CheckpointFact],
    cache: StatCache,
    index: Index,
    belief: Belief = Belief(),
) -> Plan:
    """Decide what of `entries` (in path order) must be read."""
    groups = Groups(facts)
    unchanged: dict[bytes, Record] = {}
    pending: dict[bytes, list[Scanned]] = {}
    for entry in entries:
        if entry.kind != FILE:
            continue
        record = belief.record(cache, entry)
        if record is not None and index.knows(record.digests):
            unchanged[entry.path] = record
        else:
            pending.setdefault(groups.of(entry.path), []).append(entry)
    aliases = _aliases(facts, pending)
    files = [entry for group in pending.values() for entry in group]
    jobs = tuple(_in_order(facts, pending))
    return Plan(jobs, unchanged, len(files), sum(entry.size for entry in files), aliases)


def apart(aliases: Iterable[Alias]) -> Plan:
    """Read `aliases` each by itself after all."""
    jobs = tuple(job for alias in aliases for job in _jobs(alias.group, [alias.file]))
    return Plan(jobs, {}, len(jobs), 0)


def _aliases(facts: Sequence[CheckpointFact], pending: dict[bytes, list[Scanned]]) -> tuple[Alias, ...]:
    """Take further names of a file out of `pending`: it is read under the one that is needed soonest."""
    first: dict[Identity, bytes] = {}
    aliases: list[Alias] = []
    for group in dict.fromkeys([*(fact.path for fact in sorted(facts, key=_urgency)), REST]):
        for file in pending.get(group, ()):
            if file.nlink > 1 and (name := first.setdefault((file.dev, file.ino), file.path)) != file.path:
                aliases.append(Alias(group, file, name))
    taken = {alias.file.path for alias in aliases}
    for group in {alias.group for alias in aliases}:
        pending[group] = [file for file in pending[group] if file.path not in taken]
    return tuple(aliases)


def _in_order(facts: Sequence[CheckpointFact], pending: dict[bytes, list[Scanned]]) -> Iterator[Job]:
    groups = [fact.path for fact in sorted(facts, key=_urgency) if fact.path != REST]
    first = groups[:1] if groups and any(fact.cls == "resumable" for fact in facts) else []
    rest = list(_jobs(REST, pending.get(REST, [])))
    for group in first:
        yield from _jobs(group, pending.get(group, []))
    yield from (job for job in rest if isinstance(job, SmallFiles))
    for group in dict.fromkeys(groups):
        if group not in first:
            yield from _jobs(group, pending.get(group, []))
    yield from (job for job in rest if isinstance(job, BigFile))


def _urgency(fact: CheckpointFact) -> tuple[int, int, bytes]:
    """Sorts resumable before the rest, new before old."""
    return _RANK.get(fact.cls, 2), -1 if fact.step is None else -fact.step - 2, fact.path


def _jobs(group: bytes, files: list[Scanned]) -> Iterator[Job]:
    """Small files first, in path order, a bundle's worth at a time; then the big ones, the biggest last."""
    batch: list[Scanned] = []
    weight = 0
    for file in files:
        if file.size >= SMALL:
            continue
        batch.append(file)
        weight += file.size
        if weight >= BUNDLE or len(batch) >= 1024:
            yield SmallFiles(group, tuple(batch))
            batch, weight = [], 0
    if batch:
        yield SmallFiles(group, tuple(batch))
    for file in sorted((file for file in files if file.size >= SMALL), key=lambda file: file.size):
        yield BigFile(group, file)
