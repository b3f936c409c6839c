"""Files that are stored in whole versions only: the new one, or the one that the base snapshot has. Pure.

A `last.ckpt` that is rewritten in place is torn for as long as that takes, and for ever if its trainer dies meanwhile.
Somebody who can read such files (`execution.versions`) says of each what shall become of it; here that is carried out.
The base's version stays referenced by the new snapshot, so that no prune can delete it. Never keeps a part of a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from heapq import merge
from pathlib import Path

import msgspec

from spotwarp.persistence.backup.outcome import KEPT, Kept, as_before, moved
from spotwarp.persistence.backup.plan import Belief
from spotwarp.persistence.manifest import FILE, CheckpointFact, Entry, FileFact, Manifest, Skipped, tabled
from spotwarp.persistence.scan import Scanned
from spotwarp.persistence.statcache import StatCache
from spotwarp.persistence.table import Cursor, Table


class Take(Enum):
    """What a snapshot holds of a file."""

    NEW = "new"
    """What is on disk, if nobody writes to it until it is read."""
    BASE = "base"
    """The base's version; what is on disk is not whole."""
    NONE = "none"
    """Nothing: what is on disk is not whole, and the base has no version."""
    ASIDE = "aside"
    """The base's version, if it has one, and what is on disk under a name that says that nobody vouches for it."""


@dataclass(frozen=True, slots=True)
class Version:
    """The decision on one file."""

    take: Take
    format: str
    reason: str = ""
    """Why it is not what is on disk."""
    aside: bytes = b""
    """The path for what is on disk, with `Take.ASIDE`."""


@dataclass(frozen=True, slots=True)
class Versions:
    """Decisions by path, and how they come out."""

    base: Manifest | None = None
    number: int = 0
    """Of the base snapshot; 0: none."""
    of: Mapping[bytes, Version] = field(default_factory=dict)
    asked: bool = False
    """Somebody relies on this snapshot to have everything: what it has no version of is a lack."""

    def unwanted(self) -> frozenset[bytes]:
        """The files of which nothing on disk is wanted."""
        return frozenset(path for path, version in self.of.items() if version.take in (Take.BASE, Take.NONE))

    def settled(self, entries: Table[Scanned], lstat: Callable[[bytes], os.stat_result | None]) -> Versions:
        """After the reading: what was written to since it was judged is no version that anybody vouched for."""
        if not self.of:
            return self
        have = held(self.base)
        found = dict(self.of)
        for path, version in sorted(self.of.items()):
            entry = entries.find(path)
            if entry is None or version.take not in (Take.NEW, Take.ASIDE):
                continue
            if why := moved(entry, lstat):
                take = Take.BASE if path in have else Take.NONE
                found[path] = replace(version, take=take, reason=why, aside=b"")
        return replace(self, of=found)

    def without(self, late: Container[bytes]) -> Versions:
        """The same when what is on disk at the paths `late` did not get to the store in time."""
        have = held(self.base)
        found = dict(self.of)
        for path, version in self.of.items():
            if path in late and version.take in (Take.NEW, Take.ASIDE):
                if path in have:
                    reason = version.reason or KEPT
                    found[path] = replace(version, take=Take.BASE, reason=reason, aside=b"")
                else:
                    del found[path]
        return replace(self, of=found)

    def applied(self, read: Callable[[], Iterable[Kept]]) -> Iterator[Kept]:
        """What the snapshot holds, in path order; `read` gives what reading came to, anew each time."""
        if not self.of:
            yield from read()
            return
        have = held(self.base)
        back = [path for path, v in self.of.items() if v.take in (Take.BASE, Take.ASIDE) and path in have]
        added = [as_before(have[path]) for path in back]
        if any(version.take is Take.ASIDE for version in self.of.values()):
            added += [self._aside(one) for one in read() if self._take(one) is Take.ASIDE]
        stay = (one for one in read() if self._take(one) is Take.NEW)
        yield from merge(stay, sorted(added, key=_path), key=_path)

    def _take(self, one: Kept) -> Take:
        version = self.of.get(one.entry.path)
        return Take.NEW if version is None else version.take

    def _aside(self, one: Kept) -> Kept:
        """What was read, under the name that says that nobody vouches for it."""
        entry = msgspec.structs.replace(one.entry, path=self.of[one.entry.path].aside)
        return Kept(entry, one.digests, None, as_seen=False)

    def facts(self) -> tuple[FileFact, ...]:
        """What the manifest says of the files that are in it in a whole version."""
        before = {fact.path: fact for fact in self.base.versions} if self.base else {}
        have = held(self.base)
        facts = []
        for path, version in sorted(self.of.items()):
            if version.take is Take.NEW:
                facts.append(FileFact(path, version.format))
            elif version.take is not Take.NONE and path in have:
                was = before.get(path)
                number = was.kept if was is not None and was.kept else self.number
                facts.append(FileFact(path, version.format, number, version.reason))
        return tuple(facts)

    def left_out(self) -> list[Skipped]:
        """The files that the snapshot has no version of."""
        return [Skipped(path, v.reason, unreadable=self.asked) for path, v in self.of.items() if v.take is Take.NONE]

    def unknown(self) -> set[bytes]:
        """The paths whose content on disk is not what the snapshot has there."""
        return {path for path, version in self.of.items() if version.take is not Take.NEW}


VersionRule = Callable[
    [Path, Table[Scanned], Sequence[CheckpointFact], Manifest | None, StatCache, Belief],
    Versions,
]
"""Decides, on top of a base manifest, on those files of a workspace that come in whole versions; one that it does not
name is stored as any."""


def held(base: Manifest | None) -> dict[bytes, Entry]:
    """The files of which `base` has a whole version, by path."""
    if base is None:
        return {}
    entries = Cursor(tabled(base.entries))
    found = (entries.find(fact.path) for fact in base.versions)
    return {entry.path: entry for entry in found if entry is not None and entry.kind == FILE}


def _path(one: Kept) -> bytes:
    return one.entry.path
