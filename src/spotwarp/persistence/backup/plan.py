"""What a backup reads, and in which order. Pure.

The newest resumable checkpoint comes first, then small files (code, configuration, logs), then the other checkpoints,
and the bulk last, so that what a resume needs is safe soonest. Files of one checkpoint directory form a group; packs
never mix groups, so a rotated checkpoint's packs die as a whole. A file that has not changed, and whose content is
known, is not read at all. Jobs are made when they are asked for: a million small files are never in memory at once.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from spotwarp.persistence.content import SMALL
from spotwarp.persistence.held import Held, Identity
from spotwarp.persistence.index import Index
from spotwarp.persistence.manifest import FILE, CheckpointFact, is_model
from spotwarp.persistence.scan import Scan, Scanned, names_hash
from spotwarp.persistence.statcache import Record, StatCache
from spotwarp.persistence.table import Table

BUNDLE: Final = 1 << 20
"""Bytes of small files that are coded as one blob, and given to a worker as one job."""

REST: Final = b""
"""The group of everything that is in no checkpoint."""

_RANK: Final = {"resumable": 0, "weights-only": 1}


@dataclass(frozen=True, slots=True)
class SmallFiles:
    """About a bundle's worth of files below `content.SMALL`."""

    group: bytes
    files: tuple[Scanned, ...]
    named: bool = True
    """What is read is wanted by path; else in path order, for there may be a million."""


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


KEEP, BUNDLED, NAMED, UNWANTED = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of each entry, and how much is to be read in files and bytes."""

    entries: Table[Scanned]
    fates: bytearray
    """For each of `entries`: `KEEP` what it is, read it `BUNDLED` with small files of no checkpoint, or by name, as
    `pending` has it, or it is `UNWANTED`."""
    pending: dict[bytes, list[Scanned]]
    """By group: files of checkpoints, big files, and files with several names that must be read."""
    first: tuple[bytes, ...]
    """The checkpoint before all, if one is resumable."""
    others: tuple[bytes, ...]
    """The other checkpoints, most urgent first."""
    read_files: int
    read_bytes: int
    aliases: tuple[Alias, ...] = ()
    """Further names of files that are read once, under another name."""

    def jobs(self) -> Iterator[Job]:
        """In order; each call begins anew."""
        return chain.from_iterable(self.phases())

    def phases(self) -> Iterator[Iterator[Job]]:
        """The checkpoint before all, small files, other checkpoints, bulk: each is of more use than what follows."""
        yield chain.from_iterable(map(self._group, self.first))
        yield self._small()
        yield chain.from_iterable(map(self._group, self.others))
        yield _big(REST, self.pending.get(REST, []))

    def large(self) -> list[bytes]:
        """The paths of all big files that are read, in order."""
        return sorted(file.path for files in self.pending.values() for file in files if file.size >= SMALL)

    def _small(self) -> Iterator[Job]:
        bundled = (entry for number, entry in enumerate(self.entries) if self.fates[number] == BUNDLED)
        yield from _bundles(REST, bundled, named=False)
        yield from _bundles(REST, (file for file in self.pending.get(REST, []) if file.size < SMALL))

    def _group(self, group: bytes) -> Iterator[Job]:
        files = self.pending.get(group, [])
        yield from _bundles(group, (file for file in files if file.size < SMALL))
        yield from _big(group, files)


class Groups:
    """Which checkpoint or model a path belongs to: the nearest of `facts` at or above it.

    A model has only what lies directly in its directory, which is often a trainer's whole output.
    """

    def __init__(self, facts: Iterable[CheckpointFact]) -> None:
        self._of: dict[bytes, bytes] = {REST: REST}
        self._models: set[bytes] = set()
        for fact in facts:
            if is_model(fact):
                self._models.add(fact.path)
            else:
                self._of[fact.path] = fact.path

    def of(self, path: bytes) -> bytes:
        """The fact's path, or `REST`."""
        directory = path.rpartition(b"/")[0]
        if directory in self._models and path not in self._of:
            return directory
        if len(self._of) == 1:
            return REST
        above = path
        while (found := self._of.get(above)) is None:
            above = above.rpartition(b"/")[0]
        if above not in (path, directory):
            self._of[directory] = found
        return found


def plan(
    seen: Scan,
    facts: Sequence[CheckpointFact],
    cache: StatCache,
    index: Index,
    belief: Belief = Belief(),
    unwanted: Container[bytes] = (),
) -> Plan:
    """Decide what of `seen` must be read; `unwanted` are paths of which nothing that is on disk is."""
    groups = Groups(facts)
    fates = bytearray(len(seen.entries))
    pending: dict[bytes, list[Scanned]] = {}
    files = size = 0
    for number, entry in enumerate(seen.entries):
        if entry.kind != FILE:
            continue
        if entry.path in unwanted:
            fates[number] = UNWANTED
            continue
        record = belief.record(cache, entry)
        if record is not None and index.knows(entry.path, record.digests):
            continue
        group = groups.of(entry.path)
        several = entry.nlink > 1 and names_hash(entry) in seen.several
        if group == REST and entry.size < SMALL and not several:
            fates[number] = BUNDLED
            files, size = files + 1, size + entry.size
        else:
            fates[number] = NAMED
            pending.setdefault(group, []).append(entry)
    aliases = _aliases(facts, pending)
    named = [entry for group in pending.values() for entry in group]
    files, size = files + len(named), size + sum(entry.size for entry in named)
    order = tuple(dict.fromkeys(fact.path for fact in sorted(facts, key=_urgency) if fact.path != REST))
    ahead = 1 if any(fact.cls == "resumable" for fact in facts) else 0
    return Plan(seen.entries, fates, pending, order[:ahead], order[ahead:], files, size, aliases)


def apart(aliases: Iterable[Alias]) -> Plan:
    """Read `aliases` each by itself after all."""
    pending: dict[bytes, list[Scanned]] = {}
    for alias in aliases:
        pending.setdefault(alias.group, []).append(alias.file)
    others = tuple(group for group in pending if group != REST)
    return Plan(Table(Scanned, ()), bytearray(), pending, (), others, sum(map(len, pending.values())), 0)


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


def _urgency(fact: CheckpointFact) -> tuple[int, int, bytes]:
    """Sorts resumable before the rest, new before old."""
    return _RANK.get(fact.cls, 2), -1 if fact.step is None else -fact.step - 2, fact.path


def _big(group: bytes, files: Iterable[Scanned]) -> Iterator[BigFile]:
    """The big files, the biggest last."""
    for file in sorted((file for file in files if file.size >= SMALL), key=lambda file: file.size):
        yield BigFile(group, file)


def _bundles(group: bytes, files: Iterable[Scanned], *, named: bool = True) -> Iterator[SmallFiles]:
    """Small files in path order, a bundle's worth at a time."""
    batch: list[Scanned] = []
    weight = 0
    for file in files:
        batch.append(file)
        weight += file.size
        if weight >= BUNDLE or len(batch) >= 1024:
            yield SmallFiles(group, tuple(batch), named)
            batch, weight = [], 0
    if batch:
        yield SmallFiles(group, tuple(batch), named)
