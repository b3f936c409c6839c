"""What was read when: a file's status, and the hashes of the content it had then.

A cache of one machine between two boots, kept in `.spotwarp/cache/stat`; losing it, or finding it damaged, costs
reading and nothing else. It maps to content hashes only, never to places in the bucket, so a stale one cannot make a
snapshot point at what is not there. Asked in the order of the paths it is quick; any other order is merely correct.
"""

from __future__ import annotations

import dataclasses
import math
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import merge
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from spotwarp.errors import SpotWarpError
from spotwarp.persistence.envelope import Kind, seal, unsealed
from spotwarp.persistence.held import Held, Identity
from spotwarp.persistence.manifest import DIRECTORY, Manifest
from spotwarp.persistence.scan import Scanned
from spotwarp.persistence.table import Cursor, Directory, Table, TableBuilder, apart, directory, placed

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_FINE_GUARD_NS: Final = 100_000_000
_COARSE_GUARD_NS: Final = 2_000_000_000
_FORM: Final = 1
"""Raised when what records say changes its meaning: those of another SpotWarp are not believed."""
_MOST_MOVED: Final = 200_000
"""Files looked for under another path, by what they are; of more at once the rest is read again."""


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A file as it was read: its status before and after, and the content hashes (see `index`)."""

    path: bytes
    size: int
    mtime_ns: int
    ctime_ns: int
    ino: int
    dev: int
    read_ns: int
    """The file system's clock before the reading; 0 when it was not known."""
    digests: bytes
    held_s: float | None = None
    """Monotonic: when it was read while somebody held it (see `held`) and its times told nothing; None: nobody did."""

    def trusted(self) -> bool:
        """Whether a later write must have moved the time stamps.

        A write within the same tick as the last one before the reading would leave them as they are. Ticks are
        milliseconds where stamps have a fraction of one, up to two seconds where they have not.
        """
        guard = _FINE_GUARD_NS if self.ctime_ns % 1_000_000 else _COARSE_GUARD_NS
        return max(self.mtime_ns, self.ctime_ns) + guard < self.read_ns


class _Proof(msgspec.Struct, array_like=True, frozen=True):
    """A `Quiet` but for what was seen."""

    manifest: str
    sums: tuple[int, int]
    held: frozenset[Identity]
    silent: frozenset[int]
    known: bool
    own: frozenset[Identity]
    oldest: float
    segments: Directory


class _Head(msgspec.Struct, array_like=True, frozen=True):
    boot: str
    root_dev: int
    segments: Directory
    form: int = 0
    """Of the records; see `_FORM`."""
    proof: _Proof | None = None
    """Its segments follow those of the records."""


_decoder = msgspec.msgpack.Decoder(_Head)


@dataclass(frozen=True, slots=True)
class Quiet:
    """A workspace of which all is in a snapshot, and no file can change from now on without its status showing."""

    seen: Table[Scanned]
    stored: Manifest | None
    """None: not read yet by this process; its id is `manifest`."""
    sums: tuple[int, int]
    """Files, and bytes in them."""
    held: Held
    """What was held when it was read."""
    own: frozenset[Identity]
    """Those of `held.files` that are files of this workspace."""
    oldest: float
    """Monotonic: when the first of the files that were held was read; infinite when none was."""
    manifest: str = ""
    """The id of `stored` in the store, once it is known."""

    def as_held(self, held: Held, since: float, seen: Table[Scanned]) -> bool:
        """Whether nothing was taken hold of since, or let go, and what was held was read after `since`."""
        if not (held.known and self.held.known) or held.silent != self.held.silent or self.oldest <= since:
            return False
        taken = held.files - self.held.files
        return self.own <= held.files and not (taken and any((one.dev, one.ino) in taken for one in seen))


class StatCache:
    """The records by path. Not for several threads."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._records = Table.of(Record, records)
        self._others = Cursor(self._records)
        self._moved: dict[int, int] | None = None
        """Numbers of records by the hash of their identities."""
        self._saved: tuple[Table[Record], Quiet | None] | None = None
        self._quiet: Quiet | None = None

    def twin(self) -> StatCache:
        """The same records for another thread: changes on either side do not show on the other."""
        other = StatCache(Table(Record, self._records.segments))
        other._quiet = self._quiet
        return other

    def __len__(self) -> int:
        """How many files are recorded."""
        return len(self._records)

    def record(self, entry: Scanned, since: float = math.inf) -> Record | None:
        """What is recorded of a file that has not changed since it was read, or None when it must be read.

        Looked up by path, then by inode: files below a renamed directory keep theirs. Of a file that was held when it
        was read, only what was read after `since` (monotonic) counts: never, unless said.
        """
        found = self._records.find(entry.path)
        if found is None:
            found = self._elsewhere(entry)
        if found is None or not _same(found, entry) or not found.trusted():
            return None
        if found.held_s is not None and found.held_s <= since:
            return None
        return found

    def lookup(self, entry: Scanned, since: float = math.inf) -> bytes | None:
        """The content hashes of an unchanged file, or None when it must be read; see `record`."""
        found = self.record(entry, since)
        return None if found is None else found.digests

    def last(self, path: bytes) -> Record | None:
        """What was recorded of `path` when it was last read, whatever has become of it."""
        return self._records.find(path)

    def add(self, *more: Record) -> None:
        """Know some more files."""
        new = {record.path: record for record in more}
        records = TableBuilder(Record)
        for one in merge((r for r in self._records if r.path not in new), sorted(new.values(), key=_path), key=_path):
            records.add(one)
        self.replace(records.table())

    def replace(self, records: Table[Record]) -> None:
        """Know exactly `records` from now on."""
        self._records, self._others = records, Cursor(records)
        self._moved = self._quiet = None

    def remember(self, quiet: Quiet) -> None:
        """What a later `quiet` is asked against; forgotten with the next `replace`."""
        self._quiet = quiet

    def stored_again(self, manifest: Manifest) -> None:
        """What `quiet` has just found to be stored is in `manifest` too."""
        if self._quiet is not None:
            self._quiet = dataclasses.replace(self._quiet, stored=manifest, manifest="")

    def known_as(self, stored: Manifest, manifest: str) -> None:
        """`stored` is the manifest with the id `manifest`, in the store: by it another process knows it again."""
        quiet = self._quiet
        if quiet is None:
            return
        if quiet.stored is stored and quiet.manifest != manifest:
            self._quiet = dataclasses.replace(quiet, manifest=manifest)
        elif quiet.stored is None and quiet.manifest == manifest:
            self._quiet = dataclasses.replace(quiet, stored=stored)

    def quiet(
        self, seen: Table[Scanned], base: Manifest, held: Held | None = None, since: float = -math.inf
    ) -> tuple[int, int] | None:
        """The sums of `base` if `seen` is certain to be what it holds: only times of directories have moved since.

        Compares coded rows, segment by segment; None only means that it must be looked at more closely. `held` and
        `since` as for a `Belief`; without `held` only what the times show counts.
        """
        quiet = self._quiet
        if quiet is None or quiet.stored is not base or len(seen) != len(quiet.seen):
            return None
        if held is not None and not quiet.as_held(held, since, seen):
            return None
        pairs = zip(*apart(seen, quiet.seen), strict=True)
        return quiet.sums if all(a == b or _same_directory(a, b) for a, b in pairs) else None

    @classmethod
    def load(cls, path: Path, root: Path, *, boot: str | None = None) -> StatCache:
        """The cache at `path` of the workspace `root`; an empty one when there is none that can be believed.

        After a reboot none can: time stamps may have reached the disk without the data they speak of. `boot` is this
        boot's identity, asked of the kernel when not given.
        """
        try:
            body = unsealed(path.read_bytes(), Kind.STATCACHE, "the stat cache")
            (length,) = struct.unpack_from("<I", body)
            head = _decoder.decode(body[4 : 4 + length])
            seen_from = 4 + length + sum(size for _, _, size in head.segments)
            records = placed(Record, head.segments, body[4 + length : seen_from])
            quiet = _proven(head.proof, body[seen_from:])
            if records.segments:
                records.rows(records.segments[0])  # of another SpotWarp's records none can be read
            believed = head.form == _FORM and head.boot == (boot or _boot()) and head.root_dev == root.stat().st_dev
        except (OSError, SpotWarpError, struct.error, msgspec.DecodeError, RecursionError):
            return cls()
        if not believed:
            return cls()
        cache = cls(records)
        cache._quiet = quiet
        cache._saved = cache._records, quiet
        return cache

    def save(self, path: Path, root: Path) -> bool:
        """Write the cache of the workspace `root` to `path`, atomically; False when that was not possible.

        It is not synced to the disk: what a crash of the machine could tear is not believed after the reboot anyway.
        """
        quiet = self._quiet if self._quiet is not None and self._quiet.manifest else None
        if self._saved is not None and self._saved[0] is self._records and path.exists():
            was = self._saved[1]
            if quiet is was or (quiet and was and quiet.seen is was.seen and quiet.manifest == was.manifest):
                return True
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            proof = _proof(quiet) if quiet is not None else None
            head = msgspec.msgpack.encode(_Head(_boot(), root.stat().st_dev, directory(self._records), _FORM, proof))
            path.parent.mkdir(parents=True, exist_ok=True)
            segments = [*self._records.segments, *(quiet.seen.segments if quiet is not None else ())]
            data = seal(Kind.STATCACHE, struct.pack("<I", len(head)), head, *(segment.data for segment in segments))
            temporary.write_bytes(data)
            temporary.replace(path)
        except OSError:
            try:
                temporary.unlink(missing_ok=True)
            except OSError:
                return False
            return False
        self._saved = self._records, quiet
        return True

    def _elsewhere(self, entry: Scanned) -> Record | None:
        """The record of the same file under another path: of any of the first `_MOST_MOVED`, made when first asked."""
        if self._moved is None:
            some = zip(self._records, range(_MOST_MOVED), strict=False)
            self._moved = {hash(_identity(record)): number for record, number in some}
        number = self._moved.get(hash(_identity(entry)))
        if number is None:
            return None
        found = self._others.at(number)
        return replace(found, path=entry.path) if _same(found, entry) else None


def _path(record: Record) -> bytes:
    return record.path


def _identity(file: Record | Scanned) -> tuple[int, int, int, int, int]:
    """What a file is, wherever it lies."""
    return file.dev, file.ino, file.size, file.mtime_ns, file.ctime_ns


def _same(record: Record, entry: Scanned) -> bool:
    return (
        record.mtime_ns == entry.mtime_ns
        and record.ctime_ns == entry.ctime_ns
        and record.size == entry.size
        and record.ino == entry.ino
        and record.dev == entry.dev
    )


def _same_directory(one: Scanned, other: Scanned) -> bool:
    """Whether both are the same directory but for its times: every temporary file that came and went moves them."""
    return one.kind == other.kind == DIRECTORY and (one.path, one.mode) == (other.path, other.mode)


def _proof(quiet: Quiet) -> _Proof:
    held = quiet.held
    return _Proof(
        *(quiet.manifest, quiet.sums, held.files, held.silent, held.known, quiet.own, quiet.oldest),
        segments=directory(quiet.seen),
    )


def _proven(proof: _Proof | None, segments: memoryview) -> Quiet | None:
    """What `_proof` was made from. Raises `CorruptObject`."""
    seen = placed(Scanned, proof.segments if proof is not None else [], segments)
    if proof is None:
        return None
    if seen.segments:
        seen.rows(seen.segments[0])
    held = Held(proof.held, proof.silent, proof.known)
    return Quiet(seen, None, proof.sums, held, proof.own, proof.oldest, proof.manifest)


def _boot() -> str:
    return _BOOT_ID.read_text().strip()
