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

from spotwarp.persistence.backup.outcome import KEPT, Kept, moved
from spotwarp.persistence.backup.plan import Belief
from spotwarp.persistence.index import digests_of
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
    """The base's version, and beside it what is on disk, under a name that says that nobody vouches for it."""


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

    def applied(self, kept: Iterable[Kept]) -> Iterator[Kept]:
        """What the snapshot holds, in path order, given what reading came to."""
        if not self.of:
            yield from kept
            return
        have = held(self.base)
        added = [_again(have[path], self.base) for path, v in self.of.items() if v.take in (Take.BASE, Take.ASIDE)]
        aside: list[Kept] = []
        asides = sorted((v.aside, path) for path, v in self.of.items() if v.take is Take.ASIDE)
        added.sort(key=_path)
        # A name beside another sorts after it: what is set aside has been read by the time its place has come.
        for one in merge(self._read(kept, aside), added, key=_path):
            while asides and asides[0][0] < one.entry.path:
                yield from _named(aside, asides.pop(0)[0])
            yield one
        for name, _ in asides:
            yield from _named(aside, name)

    def _read(self, kept: Iterable[Kept], aside: list[Kept]) -> Iterator[Kept]:
        """Without what is to lie under another name, which is put into `aside`."""
        for one in kept:
            version = self.of.get(one.entry.path)
            if version is None or version.take is Take.NEW:
                yield one
            elif version.take is Take.ASIDE:
                entry = msgspec.structs.replace(one.entry, path=version.aside)
                aside.append(Kept(entry, one.digests, None, as_seen=False))

    def facts(self) -> tuple[FileFact, ...]:
        """What the manifest says of the files that are in it in a whole version."""
        before = {fact.path: fact for fact in self.base.versions} if self.base else {}
        facts = []
        for path, version in sorted(self.of.items()):
            if version.take is Take.NEW:
                facts.append(FileFact(path, version.format))
            elif version.take is not Take.NONE:
                was = before.get(path)
                number = was.kept if was is not None and was.kept else self.number
                facts.append(FileFact(path, version.format, number, version.reason))
        return tuple(facts)

    def left_out(self) -> list[Skipped]:
        """The files that the snapshot has no version of."""
        return [Skipped(path, v.reason) for path, v in self.of.items() if v.take is Take.NONE]

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
    """The files of which `base` has a whole version that can be named once more, by path."""
    if base is None:
        return {}
    entries = Cursor(tabled(base.entries))
    found = (entries.find(fact.path) for fact in base.versions)
    files = (entry for entry in found if entry is not None and entry.kind == FILE)
    return {entry.path: entry for entry in files if digests_of(entry, base.blobs) is not None}


def _path(one: Kept) -> bytes:
    return one.entry.path


def _named(aside: Iterable[Kept], name: bytes) -> Iterator[Kept]:
    return (one for one in aside if one.entry.path == name)


def _again(entry: Entry, base: Manifest | None) -> Kept:
    """An entry of the base as if it had just been read."""
    digests = digests_of(entry, base.blobs) if base else None
    assert digests is not None  # noqa: S101 - a version that is `held`
    seen = Scanned(entry.path, FILE, entry.mode, entry.mtime_ns, 0, entry.size, 0, 0, 0)
    return Kept(seen, digests, None, as_seen=False)
