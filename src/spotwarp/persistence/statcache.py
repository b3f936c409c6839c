"""What was read when: a file's status, and the hashes of the content it had then.

A cache of one machine between two boots, kept in `.spotwarp/cache/stat`; losing it, or finding it damaged, costs
reading and nothing else. It maps to content hashes only, never to places in the bucket, so a stale one cannot make a
snapshot point at what is not there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from spotwarp.errors import SpotWarpError
from spotwarp.persistence.envelope import Kind, seal, unseal
from spotwarp.persistence.scan import Scanned

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_FINE_GUARD_NS: Final = 100_000_000
_COARSE_GUARD_NS: Final = 2_000_000_000
_LIMIT: Final = 1 << 30
"""Bytes that a decompressed cache may announce; more is damage."""


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A file as it was read: its status before and after, and the content hashes (see `index`)."""

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


class _File(msgspec.Struct, array_like=True, frozen=True):
    boot: str
    root_dev: int
    records: dict[bytes, Record]


_decoder = msgspec.msgpack.Decoder(_File)


class StatCache:
    """The records by path. Not for several threads."""

    def __init__(self, records: Mapping[bytes, Record] | None = None) -> None:
        self._records: dict[bytes, Record] = dict(records or {})
        self._by_identity: dict[tuple[int, int, int, int, int], Record] | None = None
        self._saved: dict[bytes, Record] | None = None

    def __len__(self) -> int:
        """How many files are recorded."""
        return len(self._records)

    def record(self, entry: Scanned, since: float = math.inf) -> Record | None:
        """What is recorded of a file that has not changed since it was read, or None when it must be read.

        Looked up by path, then by inode: files below a renamed directory keep theirs. Of a file that was held when it
        was read, only what was read after `since` (monotonic) counts: never, unless said.
        """
        found = self._records.get(entry.path)
        if found is None or not _same(found, entry):
            found = self._identities().get((entry.dev, entry.ino, entry.size, entry.mtime_ns, entry.ctime_ns))
        if found is None or not found.trusted() or (found.held_s is not None and found.held_s <= since):
            return None
        return found

    def lookup(self, entry: Scanned, since: float = math.inf) -> bytes | None:
        """The content hashes of an unchanged file, or None when it must be read; see `record`."""
        found = self.record(entry, since)
        return None if found is None else found.digests

    def last(self, path: bytes) -> Record | None:
        """What was recorded of `path` when it was last read, whatever has become of it."""
        return self._records.get(path)

    def add(self, path: bytes, record: Record) -> None:
        """Know one more file."""
        self._records = {**self._records, path: record}
        self._by_identity = None

    def replace(self, records: dict[bytes, Record]) -> None:
        """Know exactly `records` from now on."""
        self._records = records
        self._by_identity = None

    @classmethod
    def load(cls, path: Path, root: Path, *, boot: str | None = None) -> StatCache:
        """The cache at `path` of the workspace `root`; an empty one when there is none that can be believed.

        After a reboot none can: time stamps may have reached the disk without the data they speak of. `boot` is this
        boot's identity, asked of the kernel when not given.
        """
        import zstandard

        try:
            body = unseal(path.read_bytes(), Kind.STATCACHE, "the stat cache")
            if zstandard.frame_content_size(body) > _LIMIT:
                return cls()
            file = _decoder.decode(zstandard.ZstdDecompressor().decompress(body))
            believed = file.boot == (boot or _boot()) and file.root_dev == root.stat().st_dev
        except (OSError, SpotWarpError, zstandard.ZstdError, msgspec.DecodeError):
            return cls()
        cache = cls(file.records if believed else None)
        cache._saved = cache._records
        return cache

    def save(self, path: Path, root: Path) -> bool:
        """Write the cache of the workspace `root` to `path`, atomically; False when that was not possible.

        It is not synced to the disk: what a crash of the machine could tear is not believed after the reboot anyway.
        """
        import zstandard

        if self._records is self._saved and path.exists():
            return True
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            body = msgspec.msgpack.encode(_File(_boot(), root.stat().st_dev, self._records))
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(seal(Kind.STATCACHE, zstandard.ZstdCompressor(level=1).compress(body)))
            temporary.replace(path)
        except OSError:
            try:
                temporary.unlink(missing_ok=True)
            except OSError:
                return False
            return False
        self._saved = self._records
        return True

    def _identities(self) -> dict[tuple[int, int, int, int, int], Record]:
        """The records by what a file is, wherever it lies; made when first asked for."""
        if self._by_identity is None:
            self._by_identity = {(r.dev, r.ino, r.size, r.mtime_ns, r.ctime_ns): r for r in self._records.values()}
        return self._by_identity


def _same(record: Record, entry: Scanned) -> bool:
    return (
        record.mtime_ns == entry.mtime_ns
        and record.ctime_ns == entry.ctime_ns
        and record.size == entry.size
        and record.ino == entry.ino
        and record.dev == entry.dev
    )


def _boot() -> str:
    return _BOOT_ID.read_text().strip()
