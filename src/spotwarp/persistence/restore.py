"""A snapshot's entries, fetched and verified into a staging directory.

Everything verified or nothing that looks whole (I2): the staging is declared ready only when every blob has been
decoded and hashed, every file, link and directory stands, and all of it is on the disk. What an interrupted fetch left
is kept as far as its *content* is right. Writes beneath the staging only; moving it into place is `install`'s.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotwarp import system
from spotwarp.clock import Clock
from spotwarp.errors import CorruptObject, ObjectMissing, UnsupportedFormat, WorkspaceFault
from spotwarp.persistence import staging as stage
from spotwarp.persistence.beneath import ELSEWHERE, Tree, split
from spotwarp.persistence.compare import holds, pieces
from spotwarp.persistence.cuts import CHUNK
from spotwarp.persistence.entries import OTHER_CHECKPOINT, checked, is_whole, room, shown, urgency
from spotwarp.persistence.manifest import FILE, Entry, Extent, Manifest, builder, tabled
from spotwarp.persistence.parallel import Job, each, yield_to_others
from spotwarp.persistence.reads import READ_SIZE, Read, based, fetched
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.table import Cursor, Table
from spotwarp.persistence.uses import Part, Uses

_NAMED = 20
"""How many damaged files a message names."""
_LOCAL_WORKERS, _FAR_WORKERS = 3, 6
"""Each has some ten megabytes in its hands."""
_TOGETHER = 512
"""Entries that one thread verifies in a row."""


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How to fetch."""

    workers: int | None = None
    """Threads; None: what the store asks for. Those of a network wait as much as they compute."""
    sync: bool = True
    """Wait until the disk has it all before it is called whole: a power cut then leaves nothing half."""
    nice: int = 0
    """How far the threads step back behind others, as of nice(1)."""
    turn: Callable[[], object] = lambda: None
    """Called before each read; it may wait."""
    spare: int = 0
    """Bytes of disk that must be left when all is in place."""


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
    older: Path | None = None,
    clock: Clock,
    options: FetchOptions | None = None,
    progress: Callable[[FetchProgress], None] | None = None,
    cancel: threading.Event | None = None,
) -> FetchReport:
    """Fill `staging` with `wanted` (all of `manifest` when None), whose extents point into `manifest`'s blobs.

    `staging` is absent, empty, or left by an earlier fetch. Pieces that the directory `older` has at their places, by
    content, are copied from there. `progress` is called from several threads, one at a time.
    Raises `CorruptObject` (damage, or entries that must not be restored), `WorkspaceFault` (no room, not writable),
    `Interrupted`, and the store's errors; `staging` is then not ready, and the same call continues it.
    """
    started = clock.monotonic()
    entries = tabled(manifest.entries if wanted is None else wanted).kept()
    links = checked(entries)
    with _disk_faults(staging):
        resumed = stage.begin(staging, manifest, entries)
        work = _Fetch(store, manifest, entries, links, staging, options or FetchOptions(), progress, cancel)
        work.run(resumed=resumed, older=older)
    duration_s = clock.monotonic() - started
    return FetchReport(len(entries), work.files, work.total, work.kept, work.read, duration_s, work.copies)


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
        links: dict[bytes, bytes],
        staging: Path,
        options: FetchOptions,
        progress: Callable[[FetchProgress], None] | None,
        cancel: threading.Event | None,
    ) -> None:
        self._links = links
        self._names = len(entries)
        self._entries = _without(entries, links).kept() if links else entries
        """What is written; the other names of files are made at the end."""
        self._store, self._manifest, self._staging = store, manifest, staging
        self._options, self._progress, self._cancel = options, progress, cancel
        self._lock = threading.Lock()
        self._missing: dict[int, int] = {}
        """Extents still to come, by number, of the files that are not written in one go."""
        self._rank = urgency(manifest.checkpoints)
        self._uses: Uses
        self.kept = self.read = self.copies = self.total = 0
        self.files = len(links)
        for entry in self._entries:
            self.files += entry.kind == FILE
            for extent in entry.extents:
                self.total += extent.length
            if entry.link:
                self.copies += 1  # the first name is not among what is wanted
        self._done = 0

    def run(self, *, resumed: bool, older: Path | None) -> None:
        kept: set[Part] = self._verify() if resumed else set()
        self._check_room(resumed=resumed)
        with Tree(self._staging) as tree:
            stage.lay_out(tree, self._entries)
            for above in sorted({split(path)[0] for path in self._links} - {b""}):
                tree.directory(above, make=True)
        if older is not None:
            kept |= self._taken(older, kept)
        self._assign(kept)
        most = CHUNK if self._is_near else READ_SIZE  # a request to a directory costs next to nothing
        self._each(based(self._manifest.blobs, self._uses.blobs(), rank=self._uses.rank, most=most), self._read_all)
        with Tree(self._staging) as tree:
            stage.link(tree, self._entries)
            stage.settle(tree, self._numbered({number for number, _ in kept}))
            self.copies += stage.link_files(tree, self._links)
            stage.settle(tree, (entry for entry in reversed(self._entries) if entry.kind != FILE), passable=True)
        stage.finish(self._staging, sync=self._options.sync)

    def _each(self, jobs: Sequence[Job], work: Callable[[Iterable[Job]], None]) -> None:
        workers = self._options.workers or (_LOCAL_WORKERS if self._is_near else _FAR_WORKERS)
        each(jobs, work, workers=min(workers, max(len(jobs), 1)), cancel=self._cancel)

    @property
    def _is_near(self) -> bool:
        return self._store.url.startswith("file:")

    # ------------------------------------------------------------------------------------ what is there already

    def _verify(self) -> set[Part]:
        """The parts that an interrupted fetch left complete, by their content."""
        kept: set[Part] = set()

        def verify(jobs: Iterable[range]) -> None:
            with Tree(self._staging) as tree:
                for number, entry in self._of(jobs):
                    with _at_path(tree, entry) as fd:
                        if fd is not None and os.fstat(fd).st_size == entry.size:
                            kept.update((number, part) for part in holds(fd, entry, self._manifest.blobs))

        self._each(self._batches(), verify)
        return kept

    def _taken(self, older: Path, kept: Container[Part]) -> set[Part]:
        """The parts that the directory `older` has at their places, copied: what was hashed is what is written."""
        taken: set[Part] = set()

        def take(jobs: Iterable[range]) -> None:
            with Tree(older) as source, Tree(self._staging) as target:
                writer = stage.Writer(target)
                for number, entry in self._of(jobs):
                    wanted = [part for part in range(len(entry.extents)) if (number, part) not in kept]
                    with _at_path(source, entry) as fd:
                        found = pieces(fd, entry, self._manifest.blobs, wanted) if fd is not None else ()
                        for part, data in found:
                            self._put(writer, entry, entry.extents[part], memoryview(data))
                            taken.add((number, part))

        self._each(self._batches(), take)
        return taken

    def _batches(self) -> list[range]:
        count = len(self._entries)
        return [range(at, min(at + _TOGETHER, count)) for at in range(0, count, _TOGETHER)]

    def _of(self, jobs: Iterable[range]) -> Iterator[tuple[int, Entry]]:
        """The numbers and entries of all files with content in `jobs`."""
        entries = Cursor(self._entries)
        return ((number, entry) for job in jobs for number in job if (entry := entries.at(number)).extents)

    def _numbered(self, numbers: Iterable[int]) -> Iterator[Entry]:
        entries = Cursor(self._entries)
        return (entries.at(number) for number in sorted(numbers, reverse=True))

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
        needed += self._options.spare
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
        yield_to_others(self._options.nice)
        entries = Cursor(self._entries)
        with Tree(self._staging) as tree:
            writer = stage.Writer(tree)
            for read in reads:
                self._options.turn()
                settled = self._read_one(writer, entries, read)
                stage.settle(tree, settled)

    def _read_one(self, writer: stage.Writer, entries: Cursor[Entry], read: Read) -> list[Entry]:
        """Fetch and place; gives the files that lack nothing more."""
        pack = self._manifest.packs[read.pack]
        written = 0
        parts: list[int] = []
        try:
            for blob, data in fetched(self._store, self._manifest.packs, read, self._manifest.blobs):
                if isinstance(data, UnsupportedFormat):
                    raise data
                if isinstance(data, CorruptObject):
                    raise self._damaged(data.message, (blob,)) from data
                view = memoryview(data)
                for number, part in self._uses.of(blob):
                    entry = entries.at(number)
                    extent = entry.extents[part]
                    self._put(writer, entry, extent, view[extent.inner : extent.inner + extent.length])
                    written += extent.length
                    if number in self._missing:
                        parts.append(number)
        except ObjectMissing as error:
            blobs = [number for number, blob in enumerate(self._manifest.blobs) if blob.pack == read.pack]
            raise self._damaged(f"pack {pack.id} is missing", blobs) from error
        settled = []
        with self._lock:
            for number in parts:
                self._missing[number] -= 1
                if self._missing[number] == 0:
                    settled.append(entries.at(number))
            self.read += read.bytes
            self._done += written
            if self._progress is not None:
                self._progress(FetchProgress(self._done, self.total))
        return settled

    def _put(self, writer: stage.Writer, entry: Entry, extent: Extent, piece: memoryview) -> None:
        if is_whole(entry):
            writer.whole(entry, piece)
        else:
            writer.part(entry, piece, extent.offset, soon=self._rank(entry.path) < OTHER_CHECKPOINT)

    def _damaged(self, what: str, blobs: Iterable[int]) -> CorruptObject:
        lost = set(blobs)
        lost |= {blob for blob in self._uses.blobs() if self._manifest.blobs[blob].base in lost}
        files = sorted({number for blob in lost for number, _ in self._uses.of(blob)})
        some = list(self._numbered(files[:_NAMED]))[::-1]
        names = ", ".join(shown(entry.path) for entry in some) + (" …" if len(files) > _NAMED else "")
        return CorruptObject(
            f"{what}; files of this snapshot that need it: {len(files)} ({names}); nothing was put in place",
            hint="`spotwarp check` tells which snapshots are whole; restore one of those.",
        )


@contextlib.contextmanager
def _at_path(tree: Tree, entry: Entry) -> Iterator[int | None]:
    """What is at the entry's path, opened; None for what cannot be a copy of it."""
    try:
        fd = tree.open(entry.path, os.O_RDONLY | system.NONBLOCK)
    except OSError as error:
        if error.errno not in ELSEWHERE:
            raise
        yield None
        return
    try:
        yield fd if stat.S_ISREG(os.fstat(fd).st_mode) else None
    finally:
        os.close(fd)


def _without(entries: Table[Entry], paths: Container[bytes]) -> Table[Entry]:
    rest = builder()
    for entry in entries:
        if entry.path not in paths:
            rest.add(entry)
    return rest.table()


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MiB"
