"""The files of a plan, read on a few threads, each into its packer.

Threads lower their own priority: the trainer shares the machine. What vanished, could not be read or would not hold
still is noted, never fatal; a failing store is. Owns no file format and writes nothing itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from spotwarp.errors import WorkspaceFault
from spotwarp.persistence.backup.coding import Coding, FileCoding
from spotwarp.persistence.backup.cutoff import TimeUp
from spotwarp.persistence.backup.keeping import keep_open
from spotwarp.persistence.backup.live import GONE, BigContent, read_small
from spotwarp.persistence.backup.packing import Packer, Uploads
from spotwarp.persistence.backup.plan import Alias, BigFile, Job, Plan, SmallFiles
from spotwarp.persistence.backup.progress import Meter
from spotwarp.persistence.backup.share import CpuShare
from spotwarp.persistence.beneath import Tree
from spotwarp.persistence.index import Index
from spotwarp.persistence.manifest import Skipped
from spotwarp.persistence.parallel import each, yield_to_others
from spotwarp.persistence.scan import OURS, Scanned, reason
from spotwarp.persistence.table import Table, TableBuilder


class Content(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A file as it was read."""

    path: bytes
    entry: Scanned
    digests: bytes
    stable: bool
    """Whether nobody wrote to it meanwhile."""


@dataclass(slots=True)
class Found:
    """What reading came to. Filled by several threads, each path by one."""

    named: dict[bytes, Content] = field(default_factory=dict)
    """Files of checkpoints, big files and files with several names, by path."""
    bundled: dict[bytes, Table[Content]] = field(default_factory=dict)
    """Small files of no checkpoint, by the first path of the job: the jobs follow each other in path order."""
    unstable: list[bytes] = field(default_factory=list)
    """Files that were written to while they were read."""
    vanished: list[bytes] = field(default_factory=list)
    unreadable: list[Skipped] = field(default_factory=list)

    def in_order(self) -> Iterator[Content]:
        """The bundled files in path order."""
        for first in sorted(self.bundled):
            yield from self.bundled[first]

    def share(self, aliases: Iterable[Alias]) -> list[Alias]:
        """Give further names of a file what was read of it; returns those whose file has another first name by now."""
        left = []
        for alias in aliases:
            content = self.named.get(alias.read_as)
            path, file = alias.file.path, alias.file
            if content is None or (content.entry.dev, content.entry.ino) != (file.dev, file.ino):
                left.append(alias)
                continue
            entry = msgspec.structs.replace(content.entry, path=path)
            self.named[path] = Content(path, entry, content.digests, content.stable)
            if not content.stable:
                self.unstable.append(path)
        return left

    def of(self, job: SmallFiles | BigFile) -> dict[bytes, Content]:
        """What of a job was read, by path."""
        if isinstance(job, BigFile) or job.named:
            return self.named
        return {content.path: content for content in self.bundled.get(job.files[0].path, ())}

    def missing(self, path: bytes, error: OSError) -> None:
        """A file could not be read; what is this process's own failure is raised."""
        if error.errno in GONE:
            self.vanished.append(path)
        elif error.errno in OURS:
            raise WorkspaceFault(f"the workspace cannot be read: {error.strerror}") from error
        else:
            self.unreadable.append(Skipped(path, reason(error), unreadable=True))


@dataclass(frozen=True, slots=True)
class _Span:
    """Some pieces of a big file."""

    group: bytes
    big: BigContent
    coding: FileCoding
    pieces: range


class Reading:
    """Reads plans' files, one plan after the other."""

    def __init__(
        self,
        tree: Tree,
        index: Index,
        uploads: Uploads,
        meter: Meter,
        coding: Coding,
        share: CpuShare,
        *,
        level: int,
        nice: int,
    ) -> None:
        """`tree` is the workspace; `level` is that of bundles; `nice` is the threads'."""
        self._tree, self._index, self._uploads, self._meter = tree, index, uploads, meter
        self._coding, self._share = coding, share
        self._root = tree.directory(b"")
        self._level = level
        self._nice = nice
        self._open: dict[BigContent, FileCoding] = {}
        self._early: dict[bytes, int] = {}
        """Files that were opened before their turn."""
        self.found = Found()

    def run(self, plan: Plan, *, workers: int, cancel: threading.Event | None) -> Found:
        """Read everything and hand it over. Raises the first `StoreError` seen so far, or `Interrupted`."""
        self._early = keep_open(self._tree, plan)
        try:
            # Before a cut nothing is sent while a part of what is of more use is still in a thread's hand.
            for jobs in plan.phases() if self._uploads.hurried else (plan.jobs(),):
                each(self._jobs(jobs), self._work, workers=workers, cancel=cancel)
        finally:
            for big, coding in list(self._open.items()):
                big.close()
                coding.close()
            while self._early:
                os.close(self._early.popitem()[1])
        return self.found

    def _jobs(self, jobs: Iterable[Job]) -> Iterator[SmallFiles | _Span]:
        """The jobs for the threads; big files are opened when their turn comes, and cut into spans."""
        for job in jobs:
            if not isinstance(job, BigFile):
                yield job
                continue
            coding = self._coding.of(self._tree, job)
            try:
                big = BigContent(self._tree, job.file, coding.cut, self._early.pop(job.file.path, None))
            except OSError as error:
                coding.close()
                self.found.missing(job.file.path, error)
                continue
            self._open[big] = coding
            for pieces in big.spans:
                yield _Span(job.group, big, coding, pieces)

    def _work(self, jobs: Iterable[SmallFiles | _Span]) -> None:
        """One thread."""
        yield_to_others(self._nice)
        self._share.begin()
        packer = Packer(self._uploads, self._index, level=self._level)
        # At the cut each thread ends where it is: what it did not get to is late, and named by `outcome`.
        with Tree(self._root) as tree, suppress(TimeUp):
            for job in jobs:
                self._uploads.check_time()
                packer.enter(job.group)
                if isinstance(job, SmallFiles):
                    self._small_files(job, tree, packer)
                else:
                    self._span(job, packer)
                self._share.pay(hurried=self._uploads.hurried)
            packer.flush()

    def _small_files(self, job: SmallFiles, tree: Tree, packer: Packer) -> None:
        contents = TableBuilder(Content)
        read = files = 0
        try:
            for file in job.files:
                files += 1
                try:
                    content = read_small(tree, file, self._early.pop(file.path, None))
                except OSError as error:
                    self.found.missing(file.path, error)
                    continue
                read += len(content.data)
                kept = self._kept(content.entry, packer.small(content.data), stable=content.stable)
                if job.named:
                    self.found.named[file.path] = kept
                else:
                    contents.add(kept)
        finally:  # also at the cut
            if contents.count:
                self.found.bundled[job.files[0].path] = contents.table()
        self._meter.count(files=files, read=read)

    def _span(self, job: _Span, packer: Packer) -> None:
        """Read a span; the thread that is through with a file's last one settles the file."""
        big = job.big
        try:
            if big.error is None:
                self._pieces(job, job.pieces, packer)
        except OSError as error:
            big.error = error
        if big.span_done():
            self._settle(job, packer)

    def _settle(self, job: _Span, packer: Packer) -> None:
        """Keep what was read, or read the whole file again, alone, until it can be kept."""
        big = job.big
        try:
            while big.error is None and not big.settled():
                for pieces in big.spans:
                    self._pieces(job, pieces, packer)
        except OSError as error:
            big.error = error
        big.close()
        del self._open[big]
        job.coding.close()
        if big.error is None:
            entry, digests = big.content()
            job.coding.settled()
            self.found.named[big.path] = self._kept(entry, digests, stable=big.stable)
        else:
            self.found.missing(big.path, big.error)
        self._meter.count(files=1)

    def _pieces(self, job: _Span, pieces: range, packer: Packer) -> None:
        big = job.big
        for piece in pieces:
            self._uploads.check_time()
            digest, got = packer.piece(big, piece, job.coding)
            big.took(piece, digest, got)
            self._meter.count(read=got)
            self._share.pay(hurried=self._uploads.hurried)

    def _kept(self, entry: Scanned, digests: bytes, *, stable: bool) -> Content:
        if not stable:
            self.found.unstable.append(entry.path)
        return Content(entry.path, entry, digests, stable)
