"""A snapshot's entries, fetched and verified into a staging directory.

Everything verified or nothing that looks whole (I2): the staging is declared ready only when every blob has been
decoded and hashed, every file, link and directory stands, and all of it is on the disk. What an interrupted fetch left
is kept as far as its *content* is right. Writes beneath the staging only; moving it into place is `install`'s.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotwarp import system
from spotwarp.clock import Clock
from spotwarp.errors import CorruptObject, ObjectMissing, UnsupportedFormat, WorkspaceFault
from spotwarp.persistence import staging as stage
from spotwarp.persistence.beneath import ELSEWHERE, Tree, split
from spotwarp.persistence.compare import holds
from spotwarp.persistence.entries import OTHER_CHECKPOINT, checked, is_whole, linked, room, shown, urgency
from spotwarp.persistence.layout import pack_key
from spotwarp.persistence.manifest import FILE, Entry, Extent, Manifest, builder, tabled
from spotwarp.persistence.parallel import Job, each
from spotwarp.persistence.reads import Bases, Read, decoded, merged
from spotwarp.persistence.store.api import Buffer, Store
from spotwarp.persistence.table import Cursor, Table
from spotwarp.persistence.uses import Part, Uses

_NAMED = 20
"""How many damaged files a message names."""
_TOGETHER = 512
"""Entries that one thread verifies in a row."""


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How to fetch."""

    workers: int = 4
    """Threads; they wait for the network as much as they compute, so there may be more than cores."""
    sync: bool = True
    """Wait until the disk has it all before it is called whole: a power cut then leaves nothing half."""


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """Bytes of content in place, of how many."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class FetchReport:
    """What a fetch did: entries staged and files among them, bytes of content, how many were there already, bytes
    read from the store, hard links that came to be files of their own."""

    entries: int
    files: int
    bytes: int
    kept_bytes: int
    read_bytes: int
    duration_s: float
    copies: int = 0


def fetch(
    *,
    store: Store,
    manifest: Manifest,
    wanted: Sequence[Entry] | None = None,
    staging: Path,
    clock: Clock,
    options: FetchOptions | None = None,
    progress: Callable[[FetchProgress], None] | None = None,
    cancel: threading.Event | None = None,
) -> FetchReport:
    """Fill `staging` with `wanted` (all of `manifest` when None), whose extents point into `manifest`'s blobs.

    `staging` is absent, empty, or left by an earlier fetch. `progress` is called from several threads, one at a time.
    Raises `CorruptObject` (damage, or entries that must not be restored), `WorkspaceFault` (no room, not writable),
    `Interrupted`, and the store's errors; `staging` is then not ready, and the same call continues it.
    """
    started = clock.monotonic()
    entries = tabled(manifest.entries if wanted is None else wanted)
    checked(entries)
    with _disk_faults(staging):
        resumed = stage.begin(staging, manifest, entries)
        work = _Fetch(store, manifest, entries, staging, options or FetchOptions(), progress, cancel)
        work.run(resumed=resumed)
    files = sum(1 for entry in entries if entry.kind == FILE)
    duration_s = clock.monotonic() - started
    return FetchReport(len(entries), files, work.total, work.kept, work.read, duration_s, work.copies)


@contextlib.contextmanager
def _disk_faults(staging: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise WorkspaceFault(
            f"{staging} cannot be filled: {error.strerror or error}; nothing of it was put in place",
            hint="Make room and run the same command again: it continues." if full else None,
        ) from error


class _Fetch:
    """One fetch at work; the counters are shared by its threads under `_lock`."""

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        entries: Table[Entry],
        staging: Path,
        options: FetchOptions,
        progress: Callable[[FetchProgress], None] | None,
        cancel: threading.Event | None,
    ) -> None:
        self._links = linked(entries)
        self._names = len(entries)
        self._entries = _without(entries, self._links) if self._links else entries
        """What is written; the other names of files are made at the end."""
        self._store, self._manifest, self._staging = store, manifest, staging
        self._options, self._progress, self._cancel = options, progress, cancel
        self._lock = threading.Lock()
        self._bases = Bases(store, manifest.packs, manifest.blobs)
        self._missing: dict[int, int] = {}
        """Extents still to come, by number, of the files that are not written in one go."""
        self._rank = urgency(manifest.checkpoints)
        self._uses: Uses
        self.kept = self.read = self.copies = self.total = 0
        for entry in self._entries:
            self.total += sum(extent.length for extent in entry.extents)
            self.copies += bool(entry.link)  # the first name is not among what is wanted
        self._done = 0

    def run(self, *, resumed: bool) -> None:
        kept: set[Part] = self._verify() if resumed else set()
        self._check_room(resumed=resumed)
        with Tree(self._staging) as tree:
            stage.lay_out(tree, self._entries)
            for above in sorted({split(path)[0] for path in self._links} - {b""}):
                tree.directory(above, make=True)
        self._assign(kept)
        self._each(merged(self._manifest.blobs, self._uses.blobs(), rank=self._uses.rank), self._read_all)
        with Tree(self._staging) as tree:
            stage.link(tree, self._entries)
            stage.settle(tree, self._numbered({number for number, _ in kept}))
            self.copies += stage.link_files(tree, self._links)
            stage.settle(tree, (entry for entry in reversed(self._entries) if entry.kind != FILE), passable=True)
        stage.finish(self._staging, sync=self._options.sync)

    def _each(self, jobs: Sequence[Job], work: Callable[[Iterable[Job]], None]) -> None:
        each(jobs, work, workers=min(self._options.workers, max(len(jobs), 1)), cancel=self._cancel)

    # ------------------------------------------------------------------------------------ what is there already

    def _verify(self) -> set[Part]:
        """The parts that an interrupted fetch left complete, by their content."""
        kept: set[Part] = set()
        count = len(self._entries)

        def verify(jobs: Iterable[range]) -> None:
            entries = Cursor(self._entries)
            with Tree(self._staging) as tree:
                for job in jobs:
                    for number in job:
                        kept.update((number, part) for part in self._held(tree, entries.at(number)))

        self._each([range(at, min(at + _TOGETHER, count)) for at in range(0, count, _TOGETHER)], verify)
        return kept

    def _numbered(self, numbers: Iterable[int]) -> Iterator[Entry]:
        entries = Cursor(self._entries)
        return (entries.at(number) for number in sorted(numbers, reverse=True))

    def _held(self, tree: Tree, entry: Entry) -> list[int]:
        if not entry.extents:
            return []
        try:
            fd = tree.open(entry.path, os.O_RDONLY | system.NONBLOCK)
        except OSError as error:
            if error.errno not in ELSEWHERE:
                raise
            return []
        try:
            return holds(fd, entry, self._manifest.blobs) if os.fstat(fd).st_size == entry.size else []
        finally:
            os.close(fd)

    def _check_room(self, *, resumed: bool) -> None:
        """Refuse before anything is written: a tree that stops half-way is worth nothing."""
        about = os.statvfs(self._staging)
        block = about.f_frsize or 4096
        needed, names = 0, self._names
        with Tree(self._staging) as tree:
            for entry in self._entries:
                have = tree.lstat(entry.path) if resumed else None
                needed += max(room(entry, block) - (have.st_blocks * 512 if have else 0), 0)
                names -= have is not None
        free = about.f_bavail * block
        if needed > free:
            shortage = f"needs {_size(needed)}, has {_size(free)}"
        elif about.f_files and names > about.f_favail:
            shortage = f"needs room for {names} names, has {about.f_favail}"
        else:
            return
        raise WorkspaceFault(
            f"no room to restore into {self._staging}: it {shortage}; nothing was written",
            hint="Make room there, or restore to another disk.",
        )

    # ----------------------------------------------------------------------------------------------- what is not

    def _assign(self, kept: set[Part]) -> None:
        for number, entry in enumerate(self._entries):
            if entry.extents and not is_whole(entry):
                self._missing[number] = len(entry.extents)
        entries = Cursor(self._entries)
        for number, part in sorted(kept):
            self.kept += entries.at(number).extents[part].length
            if number in self._missing:
                self._missing[number] -= 1
        self._done = self.kept
        have = (lambda number, part: (number, part) in kept) if kept else (lambda _number, _part: False)
        self._uses = Uses(self._entries, len(self._manifest.blobs), self._rank, have=have)

    def _read_all(self, reads: Iterable[Read]) -> None:
        entries = Cursor(self._entries)
        with Tree(self._staging) as tree:
            for read in reads:
                self._read_one(tree, entries, read)

    def _read_one(self, tree: Tree, entries: Cursor[Entry], read: Read) -> None:
        pack = self._manifest.packs[read.pack]
        written = 0
        try:
            for blob, data in decoded(
                self._store, pack_key(pack.run, pack.id), read, self._manifest.blobs, self._bases
            ):
                if isinstance(data, UnsupportedFormat):
                    raise data
                if isinstance(data, CorruptObject):
                    raise self._damaged(data.message, (blob,)) from data
                written += self._place(tree, entries, blob, data)
        except ObjectMissing as error:
            blobs = [blob for blob in self._uses.blobs() if self._manifest.blobs[blob].pack == read.pack]
            raise self._damaged(f"pack {pack.id} is missing", blobs) from error
        with self._lock:
            self.read += read.length
            self._done += written
            if self._progress is not None:
                self._progress(FetchProgress(self._done, self.total))

    def _place(self, tree: Tree, entries: Cursor[Entry], blob: int, data: Buffer) -> int:
        view = memoryview(data)
        written = 0
        for number, part in self._uses.of(blob):
            entry = entries.at(number)
            extent = entry.extents[part]
            self._write(tree, number, entry, extent, view[extent.inner : extent.inner + extent.length])
            written += extent.length
        return written

    def _write(self, tree: Tree, number: int, entry: Entry, extent: Extent, piece: memoryview) -> None:
        if is_whole(entry):
            stage.write_whole(tree, entry, piece)
            return
        stage.write_part(tree, entry, piece, extent.offset, soon=self._rank(entry.path) < OTHER_CHECKPOINT)
        with self._lock:
            self._missing[number] -= 1
            last = self._missing[number] == 0
        if last:
            stage.settle(tree, (entry,))

    def _damaged(self, what: str, blobs: Iterable[int]) -> CorruptObject:
        files = sorted({number for blob in blobs for number, _ in self._uses.of(blob)})
        some = list(self._numbered(files[:_NAMED]))[::-1]
        names = ", ".join(shown(entry.path) for entry in some) + (" …" if len(files) > _NAMED else "")
        return CorruptObject(
            f"{what}; files of this snapshot that need it: {len(files)} ({names}); nothing was put in place",
            hint="`spotwarp check` tells which snapshots are whole; restore one of those.",
        )


def _without(entries: Table[Entry], paths: Container[bytes]) -> Table[Entry]:
    rest = builder()
    for entry in entries:
        if entry.path not in paths:
            rest.add(entry)
    return rest.table()


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MiB"
