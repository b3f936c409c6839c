"""Single-file checkpoints that are rewritten in place: which version of each does a snapshot take? (I5)

A file is taken when it is whole, else the base snapshot's version stays. A torch archive that was rewritten in place
has to agree with its checksums, byte for byte. Formats without checksums cannot prove that they are no mixture of two
versions; there, `settle` must have passed since the last write: before the look, or before the end of whoever wrote it
if that was a violent one. Decides only; times compared are the file system's own.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from spotwarp.execution.checkpoints import Shape, Single, examine_single, may_be_single
from spotwarp.persistence.backup.plan import Belief
from spotwarp.persistence.backup.versions import Take, Version, Versions, held
from spotwarp.persistence.content import digests_of
from spotwarp.persistence.held import Identity
from spotwarp.persistence.manifest import FILE, CheckpointFact, Entry, FileFact, Manifest, is_model, tabled
from spotwarp.persistence.scan import Scanned
from spotwarp.persistence.statcache import Record, StatCache
from spotwarp.persistence.table import Cursor, Table

BEING_REWRITTEN = "being rewritten"
CUT_OFF = "rewritten when its writer was ended, and it has no checksum to tell whether that was complete"
SECOND_NS = 1_000_000_000
TORN_FRESH_S = 30.0
"""A torn file of which no whole version is known is taken for one that is being written this long after its last
write; later, or when nobody can be writing it, it is stored as it is, like any file."""


LEFT_OUT_S = 60.0
"""So long at most a file is left out because it may still be being written; one that grows all the time never ages."""


class End(Enum):
    """What became of the processes that write in the workspace."""

    LIVE = "live"
    CLEAN = "clean"
    """They ended by themselves, successfully: what they wrote, they wrote to its end."""
    CUT = "cut"
    """They were ended, or failed: perhaps in the middle of a write."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When, by the file system's clock (ns), the workspace is as it is; for `End.CUT` the end of its writers."""

    now_ns: int
    end: End
    settle_s: float
    asked: bool = False
    """Somebody wants all of it now and says that nothing is being written: only who holds a file open contradicts."""


@dataclass(frozen=True, slots=True)
class WholeVersions:
    """The rule for one backup on top of snapshot number `base` (0: none)."""

    base: int
    moment: Moment
    waiting: dict[bytes, int] = field(default_factory=dict)
    """Since when (ns, as `Moment.now_ns`) files have been left out; kept from backup to backup by the caller."""

    def __call__(
        self,
        root: Path,
        entries: Table[Scanned],
        facts: Sequence[CheckpointFact],
        base: Manifest | None,
        cache: StatCache,
        belief: Belief,
    ) -> Versions:
        """See `VersionRule`. Reads every candidate that has changed since it was stored."""
        known = held(base)
        before = {fact.path: fact for fact in base.versions} if base else {}
        stored = Cursor(tabled(base.entries if base else ()))
        of: dict[bytes, Version] = {}
        for entry in candidates(entries, facts):
            fact = before.get(entry.path) if entry.path in known else None
            record, was = belief.record(cache, entry), stored.find(entry.path)
            if base is not None and record is not None and was is not None and _is(was, base, record):
                if fact is not None:
                    of[entry.path] = Version(Take.NEW, fact.format)
                continue  # it was stored as it is, in whatever form
            version = decide(root, entry, fact, cache.last(entry.path), self.moment, belief.held.files)
            if version is not None and not self._tired(entry.path, version):
                of[entry.path] = version
        return Versions(base, self.base, _named_apart(of, entries), asked=self.moment.asked)

    def _tired(self, path: bytes, version: Version) -> bool:
        """Whether a file has been left out for so long that it will not become whole: then it is one like any other."""
        if version.take is not Take.NONE:
            self.waiting.pop(path, None)
            return False
        since = self.waiting.setdefault(path, self.moment.now_ns)
        return self.moment.now_ns - since >= LEFT_OUT_S * SECOND_NS


def _is(stored: Entry, base: Manifest, record: Record) -> bool:
    """Whether what is on disk is what `base` has: what was read for a snapshot that never came to be is not."""
    return stored.kind == FILE and digests_of(stored, base.blobs) == record.digests


def candidates(entries: Iterable[Scanned], facts: Sequence[CheckpointFact]) -> Iterator[Scanned]:
    """The files that may be single-file checkpoints: by name, and in no checkpoint directory."""
    sets = tuple(fact.path + b"/" for fact in facts if not is_model(fact))
    for entry in entries:
        if entry.kind == FILE and may_be_single(entry.path) and not entry.path.startswith(sets):
            yield entry


def decide(
    root: Path,
    entry: Scanned,
    fact: FileFact | None,
    last: Record | None,
    moment: Moment,
    writing: Container[Identity] = (),
) -> Version | None:
    """What becomes of one file, None for one like any other. `fact`: the base has this whole version of it. `last`: the
    file as it was when it was last stored. `writing`: the files that somebody holds open for writing."""
    in_place = fact is not None and (last is None or (last.dev, last.ino) == (entry.dev, entry.ino))
    found = examine_single(root, entry.path, entry.size, prove=in_place)
    # ctime: nobody can set it. Whoever puts an old mtime back has written all the same.
    age_s = (moment.now_ns - entry.ctime_ns) / SECOND_NS
    if found.shape is Shape.WHOLE:
        if fact is not None and fact.reason == CUT_OFF and moment.end is End.CUT and not found.proven:
            return Version(Take.ASIDE, found.format, CUT_OFF)  # as it was decided when more was known
        open_still = (entry.dev, entry.ino) in writing
        quiet = moment.end is End.CLEAN or (age_s >= moment.settle_s and not open_still)
        if not in_place or found.proven or quiet:
            return Version(Take.NEW, found.format)
        if moment.end is End.CUT:
            return Version(Take.ASIDE, found.format, CUT_OFF)
        return Version(Take.BASE, found.format, BEING_REWRITTEN)
    if found.shape is Shape.OTHER:
        return None
    if fact is not None:
        return Version(Take.BASE, fact.format, _torn(found, moment))
    if found.shape is Shape.BLANK and entry.path.endswith(b".bin"):
        return None  # data of any kind has that name, and may begin with zeros
    if moment.end is End.CLEAN:
        return None
    young = abs(age_s) < max(TORN_FRESH_S, moment.settle_s)
    if moment.end is End.CUT:  # nobody will finish it; what there is of it is kept, under a name that nobody takes
        return Version(Take.ASIDE, found.format, _torn(found, moment)) if young else None
    fresh = (entry.dev, entry.ino) in writing if moment.asked else young
    return Version(Take.NONE, found.format, _torn(found, moment)) if fresh else None


def _torn(found: Single, moment: Moment) -> str:
    return f"{BEING_REWRITTEN}: {found.reason}" if moment.end is End.LIVE else found.reason


def _named_apart(of: dict[bytes, Version], entries: Table[Scanned]) -> dict[bytes, Version]:
    """Free names for what is stored aside."""
    taken = _Names(entries)
    for path, version in of.items():
        if version.take is Take.ASIDE:
            name = free_name(path, b".unverified", taken)
            taken.given.add(name)
            of[path] = Version(version.take, version.format, version.reason, name)
    return of


@dataclass(slots=True)
class _Names:
    """The names in a workspace, and those given out."""

    entries: Table[Scanned]
    given: set[bytes] = field(default_factory=set)

    def __contains__(self, path: object) -> bool:
        return path in self.given or (isinstance(path, bytes) and self.entries.find(path) is not None)


def free_name(path: bytes, suffix: bytes, taken: Container[bytes]) -> bytes:
    """`path` with `suffix`, and a number where that is taken; never longer than a file system takes."""
    again = b""
    while True:
        head, slash, name = path.rpartition(b"/")
        new = head + slash + name[: 255 - len(suffix) - len(again)] + suffix + again
        if new not in taken:
            return new
        again = b"-%d" % (int(again[1:] or b"1") + 1)
