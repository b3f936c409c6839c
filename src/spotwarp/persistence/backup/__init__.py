"""A live directory becomes a snapshot's objects: packs first, each acknowledged, and the manifest last.

    scan → judge the checkpoints → plan → read, hash, code, pack, put → look again at the checkpoints → put the manifest

Puts packs and one manifest and nothing else; the snapshot begins to exist when the caller appends its entry to the run
log. Reuses only what the base snapshot names and what this call put (P1, P3). Whatever fails, nothing is half recorded:
what was put is garbage that no entry names, and the stat cache is as it was.
"""

from __future__ import annotations

import builtins
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from spotwarp.clock import Clock, Rng
from spotwarp.errors import WorkspaceFault
from spotwarp.persistence import manifest as manifests
from spotwarp.persistence.backup.awaited import Awaited
from spotwarp.persistence.backup.coding import Coding, Mode
from spotwarp.persistence.backup.concurrency import START
from spotwarp.persistence.backup.cutoff import Cutoff, cut_before
from spotwarp.persistence.backup.lanes import Lanes
from spotwarp.persistence.backup.outcome import (
    Late,
    Times,
    broken,
    changed,
    demoted,
    equal,
    late_paths,
    outcome,
)
from spotwarp.persistence.backup.packing import Uploads, refuse_stopped
from spotwarp.persistence.backup.pages import Pages
from spotwarp.persistence.backup.plan import Belief, Plan, apart, plan
from spotwarp.persistence.backup.progress import Meter, Progress
from spotwarp.persistence.backup.reading import Found, Reading
from spotwarp.persistence.backup.share import CpuShare
from spotwarp.persistence.backup.sharing import Packs, own_size, shared_out
from spotwarp.persistence.backup.tally import Tally
from spotwarp.persistence.backup.versions import VersionRule, Versions
from spotwarp.persistence.beneath import Tree
from spotwarp.persistence.cuts import CHUNK
from spotwarp.persistence.envelope import FORMAT_VERSION
from spotwarp.persistence.held import Held, look
from spotwarp.persistence.index import Carried, Index
from spotwarp.persistence.layout import manifest_key, new_object_id
from spotwarp.persistence.manifest import CheckpointFact, Manifest, PackRef, Skipped
from spotwarp.persistence.pack import TARGET
from spotwarp.persistence.parallel import default_workers
from spotwarp.persistence.scan import ExcludeRule, Scan, Scanned, scan
from spotwarp.persistence.statcache import StatCache
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.store.metered import usage_of
from spotwarp.persistence.table import Table

__all__ = [
    "RECHECK_S",
    "BackupOptions",
    "Carry",
    "Cutoff",
    "Judge",
    "Mode",
    "Pages",
    "Progress",
    "Uploaded",
    "backup",
    "cut_before",
    "own_size",
    "unchanged",
]

Judge = Callable[[Path, Table[Scanned]], Sequence[CheckpointFact]]
"""Says what the checkpoints among the entries of a workspace are; see `execution.checkpoints`."""

RECHECK_S: Final = 600.0
"""How long what was read of a file that somebody held for writing is taken for what it is."""
_MOST_BUFFERS: Final = 5
_LEAST_PACK: Final = CHUNK + (1 << 16)
"""Bytes of the smallest pack that a cut may ask for: one chunk and its table."""


_SLOW_S: Final = 8.0
"""A full pack is under way for so long at most, as far as the smallest pack allows."""


def pack_size(bytes_s: float | None) -> int:
    """Bytes of a full pack for a link of `bytes_s`; what is under way when a machine goes is lost. Pure."""
    return TARGET if not bytes_s else int(min(TARGET, max(_LEAST_PACK, bytes_s * _SLOW_S)))


@dataclass(frozen=True, slots=True)
class BackupOptions:
    """How a backup uses the machine."""

    workers: int = field(default_factory=default_workers)
    """Threads that read, hash and code."""
    cores: float | None = None
    """Processors that those threads may use, all together; None for no limit."""
    uploads: int = START
    """Packs put at the same time, to begin with; see `concurrency`."""
    chunk_level: int = 1
    bundle_level: int = 3
    """zstd levels for chunks of big files and for bundles of small ones."""
    coding: Mode = "planes"
    """What numbers are coded as."""
    pack_size: int = TARGET
    """Bytes of a full pack."""
    nice: int = 10
    """How far the reading threads step back behind the trainer, as of nice(1); 0 when there is none any more."""

    @property
    def buffers(self) -> int:
        """Full packs' worth of memory: one for each worker, and some under way, but rather five than more."""
        return max(self.workers + 1, min(self.workers + START, _MOST_BUFFERS))


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What a backup put; all of it is acknowledged."""

    manifest_id: str
    """Empty when `unchanged`."""
    address: str
    """The manifest's bytes' hash, as the snapshot entry names it; empty when `unchanged`."""
    manifest_size: int
    manifest: Manifest
    """The base when `unchanged`."""
    files: int
    bytes: int
    """Files in the snapshot, and bytes in them."""
    read_bytes: int
    stored_bytes: int
    """Bytes put: packs and manifest."""
    new_packs: tuple[PackRef, ...]
    """The packs of this backup that the manifest names."""
    skipped: tuple[Skipped, ...]
    """What is not in the snapshot, and why (also in the manifest)."""
    vanished: tuple[builtins.bytes, ...]
    """Files that were there at the scan and gone at the reading; no fault of anyone's."""
    unstable: tuple[builtins.bytes, ...]
    """Files that were written to while they were read: kept as read, and read again next time."""
    changed_files: int
    """Files that are not in the base with this size, time and hash."""
    duration_s: float
    late_files: int = 0
    late_bytes: int = 0
    """Files that did not get to the store before the cut, and their size: left out, or kept as the base has them."""
    unchanged: bool = False
    """Nothing differs from the base (but the times of directories): nothing was put, nothing needs an entry."""
    cpu_s: float = 0.0
    """Processor seconds that reading, hashing and coding took."""
    uploads: int = START
    """Packs that were put at the same time in the end."""
    sighted: bool = True
    """False: who holds files could not be seen, and all were taken for held."""


@dataclass(slots=True)
class Carry:
    """What the backups of one generation put and no snapshot names yet. Emptied by the caller after a commit."""

    content: Carried = field(default_factory=Carried)


def backup(
    *,
    store: Store,
    run: str,
    generation: int,
    root: Path,
    base: Manifest | None,
    cache: StatCache,
    excludes: ExcludeRule,
    judge: Judge,
    clock: Clock,
    rng: Rng,
    options: BackupOptions | None = None,
    progress: Callable[[Progress], None] | None = None,
    cancel: threading.Event | None = None,
    always: bool = False,
    cutoff: Cutoff | None = None,
    carry: Carry | None = None,
    recheck_s: float = RECHECK_S,
    look: Callable[[Path], Held] = look,
    versions: VersionRule | None = None,
    pages: Pages | None = None,
    awaited: Sequence[builtins.bytes] = (),
) -> Uploaded:
    """Put what a snapshot of `root` needs beyond `base`, which must be the run's last snapshot, or None.

    `cache` is brought up to date on success only; the caller saves it. `progress` is called from several threads, one
    at a time. `always` puts a manifest even when nothing changed (a final snapshot is one of its own). After `cutoff`
    no more data is moved, and what is late is left out or kept as the base has it. `carry` is what earlier backups of
    this generation put in vain; this one adds to it, whatever becomes of it. A file that was held for writing when it
    was read, as `look` saw it, is read again after `recheck_s`, whatever its times say; with 0 each time. `versions`
    says which files are stored in whole versions only, and which of them are whole. `pages` tells which pages of a
    rewritten file are new; without it such a file's chunks are stored whole. `awaited`: see `Awaited`.

    Raises `WorkspaceFault`, the first `StoreError` of any put, `Interrupted` once `cancel` is set.
    """
    started, options = clock.monotonic(), options or BackupOptions()
    seen = scan(root, excludes, on_progress=_looking(progress, cancel))
    facts = tuple(judge(root, seen.entries))
    coming = Awaited(awaited, seen.entries, base)
    times = Times(seen.fs_time_ns, clock.monotonic())
    belief = Belief(look(root), times.looked_s - recheck_s)  # before anything is read: see `held`
    cutoff, carry = cutoff or Cutoff(clock), carry or Carry()
    with _open(root, seen) as tree:
        if base is not None and (sums := _nothing_new(tree, seen, facts, coming, cache, base, belief)):
            refuse_stopped(cancel)
            if not always or _current(base, run):
                put = _put_again(store, base, generation, cache, rng, cutoff) if always else _Put("", "", 0)
                return _as_it_stands(base, put, sums, clock.monotonic() - started)
        index = Index(base, carry.content)
        whole = versions(root, seen.entries, facts, base, cache, belief) if versions is not None else Versions()
        work = plan(seen, facts, cache, index, belief, whole.unwanted())
        meter = Meter(work.read_files, work.read_bytes, progress)
        lanes, share = _lanes(store, cutoff, options), CpuShare(clock, options.cores)
        uploads = Uploads(store, index, rng, run=run, generation=generation, lanes=lanes, cancel=cancel, cutoff=cutoff)
        coding = Coding(base, options.coding, options.chunk_level, pages, files=work.large())
        reading = Reading(tree, index, uploads, meter, coding, share, level=options.bundle_level, nice=options.nice)
        with _carrying(carry, index, uploads):
            found = _read(reading, work, uploads, options, cancel)
        facts = demoted(facts, broken(facts, seen, found, tree.lstat, tree.names))
        whole = whole.settled(seen.entries, tree.lstat)
    paths = _late_paths(work, found, index, uploads) if cutoff.left() is not None else {}
    whole = whole.without(paths)
    kept = whole.applied(lambda: outcome(work, found, cache, belief, times))
    late = Late(paths, facts, base) if paths else None
    kept, facts = (late.stand_in(kept), late.facts) if late else (kept, facts)
    kept, facts = coming.stand_in(kept), coming.joined(facts)
    tally = Tally(seen, belief.held)
    made = index.manifest(tally.pass_on(kept), version=FORMAT_VERSION, run=run, generation=generation)
    skipped = (*seen.skipped, *coming.skipped, *found.unreadable, *whole.left_out(), *(late.skipped() if late else ()))
    manifest = msgspec.structs.replace(made, checkpoints=facts, skipped=_sorted(skipped), versions=whole.facts())
    uploads.check()
    same = not always and base is not None and equal(manifest, base)
    put = _Put("", "", 0) if same else _put_manifest(store, manifest, base, rng, hurried=cutoff.left() is not None)
    manifest = base if same and base is not None else put.manifest or manifest
    _remember(tally, manifest, cache, pages)
    amounts = uploads.stored_bytes + put.size, meter.bytes
    done = _Done(put, found, late, *amounts, index.new_packs() | put.packs, share.used_s, lanes.lanes)
    took_s = clock.monotonic() - started
    return _uploaded(done, tally, manifest, base, duration_s=took_s, unchanged=same, belief=belief)


def _remember(tally: Tally, manifest: Manifest, cache: StatCache, pages: Pages | None) -> None:
    """Bring what is kept on this machine up to date."""
    cache.replace(tally.records.table())
    if pages is not None:
        pages.keep_only(tally.large)
    if (quiet := tally.quiet(manifest)) is not None:
        cache.remember(quiet)


def unchanged(
    *,
    root: Path,
    base: Manifest,
    cache: StatCache,
    excludes: ExcludeRule,
    judge: Judge,
    clock: Clock,
    recheck_s: float = RECHECK_S,
    look: Callable[[Path], Held] = look,
    awaited: Sequence[builtins.bytes] = (),
) -> Uploaded | None:
    """What `backup` would give if a look at the directories alone proves that there is nothing to put; else None.

    Asks no store and changes nothing. Raises `WorkspaceFault`.
    """
    started = clock.monotonic()
    seen = scan(root, excludes)
    facts = tuple(judge(root, seen.entries))
    coming = Awaited(awaited, seen.entries, base)
    looked = clock.monotonic()
    belief = Belief(look(root), looked - recheck_s)
    with _open(root, seen) as tree:
        sums = _nothing_new(tree, seen, facts, coming, cache, base, belief)
    return _as_it_stands(base, _Put("", "", 0), sums, clock.monotonic() - started) if sums is not None else None


def _current(base: Manifest, run: str) -> bool:
    return (base.version, base.run) == (FORMAT_VERSION, run)


def _put_again(store: Store, base: Manifest, generation: int, cache: StatCache, rng: Rng, cutoff: Cutoff) -> _Put:
    """Put a manifest that says what `base` does."""
    again, hurried = msgspec.structs.replace(base, generation=generation), cutoff.left() is not None
    put = _put_manifest(store, again, base, rng, hurried=hurried)
    cache.stored_again(put.manifest or base)
    return put


def _as_it_stands(base: Manifest, put: _Put, sums: tuple[int, int], duration_s: float) -> Uploaded:
    manifest = put.manifest or base
    files, stored = (*put[:3], manifest, *sums, 0), put.size
    return Uploaded(*files, stored, tuple(put.packs), base.skipped, (), (), 0, duration_s, unchanged=not put.id)


class _Put(NamedTuple):
    id: str
    address: str
    size: int
    manifest: Manifest | None = None
    packs: frozenset[PackRef] = frozenset()


@dataclass(frozen=True, slots=True)
class _Done:
    put: _Put
    found: Found
    late: Late | None
    stored_bytes: int
    read_bytes: int
    new_packs: frozenset[PackRef]
    cpu_s: float
    uploads: int


def _uploaded(
    done: _Done,
    tally: Tally,
    manifest: Manifest,
    base: Manifest | None,
    *,
    duration_s: float,
    unchanged: bool,
    belief: Belief,
) -> Uploaded:
    return Uploaded(
        *(*done.put[:3], manifest, tally.files, tally.bytes),
        read_bytes=done.read_bytes,
        stored_bytes=done.stored_bytes,
        new_packs=tuple(pack for pack in manifest.packs if pack in done.new_packs),
        skipped=manifest.skipped,
        vanished=tuple(sorted(done.found.vanished)),
        unstable=tuple(sorted(done.found.unstable)),
        changed_files=0 if unchanged else changed(manifest, base),
        duration_s=duration_s,
        unchanged=unchanged,
        late_files=done.late.files if done.late else 0,
        late_bytes=done.late.bytes if done.late else 0,
        cpu_s=done.cpu_s,
        uploads=done.uploads,
        sighted=belief.held.known,
    )


def _read(
    reading: Reading, work: Plan, uploads: Uploads, options: BackupOptions, cancel: threading.Event | None
) -> Found:
    """Read all of `work`, and by themselves the names whose file turned out to have another first one."""
    if not work.read_files:
        return reading.found
    with uploads.open():
        found = reading.run(work, workers=options.workers, cancel=cancel)
        if left := found.share(work.aliases):
            reading.run(apart(left), workers=options.workers, cancel=cancel)
    return found


def _lanes(store: Store, cutoff: Cutoff, options: BackupOptions) -> Lanes:
    """The room and the turns of the uploads."""
    usage = usage_of(store)
    return Lanes(
        cutoff.clock,
        buffers=options.buffers,
        capacity=cutoff.capacity(options.pack_size, _LEAST_PACK),
        least=_LEAST_PACK,
        lanes=options.uploads,
        refusals=(lambda: usage.now().refused) if usage else lambda: 0,
    )


def _sorted(skipped: Iterable[Skipped]) -> tuple[Skipped, ...]:
    return tuple(sorted(skipped, key=lambda skip: skip.path))


def _late_paths(work: Plan, found: Found, index: Index, uploads: Uploads) -> dict[builtins.bytes, int]:
    """The files that are not in the store now that the cut has come, with their sizes."""
    missing = index.unacknowledged(uploads.acknowledged)
    return late_paths(work, found, lambda digests: not index.lies_in(digests, missing))


@contextmanager
def _carrying(carry: Carry, index: Index, uploads: Uploads) -> Iterator[None]:
    """Whatever becomes of the uploads, what was acknowledged of them is known afterwards."""
    try:
        yield
    finally:
        carry.content = index.carried(uploads.acknowledged)


def _looking(
    progress: Callable[[Progress], None] | None, cancel: threading.Event | None
) -> Callable[[int], None] | None:
    """Tells how far the scan is, and ends it once `cancel` is set."""

    def tell(entries: int) -> None:
        refuse_stopped(cancel)
        if progress is not None:
            progress(Progress(0, 0, 0, 0, seen=entries))

    return tell


def _nothing_new(
    tree: Tree,
    seen: Scan,
    facts: tuple[CheckpointFact, ...],
    coming: Awaited,
    cache: StatCache,
    base: Manifest,
    belief: Belief,
) -> tuple[int, int] | None:
    """The files in `base` and their bytes if a look at the directories alone proves that it holds all there is.

    The common case, and cheap; None when it needs a closer look.
    """
    sums = cache.quiet(seen.entries, base, belief.held, belief.since)
    skipped = _sorted((*seen.skipped, *coming.skipped))
    if sums is None or skipped != base.skipped or any(fact.kept for fact in base.versions):
        return None
    whole = demoted(facts, broken(facts, seen, Found(), tree.lstat, tree.names))
    return sums if coming.joined(whole) == base.checkpoints else None


def _put_manifest(store: Store, manifest: Manifest, base: Manifest | None, rng: Rng, *, hurried: bool) -> _Put:
    """Put the manifest under a name that is used once, and before it the packs of what it shares with later ones.

    `hurried`: a machine is about to go, and what is put after the cut is only what the commit needs.
    """
    packs = Packs(store, manifest.run, manifest.generation, rng)
    manifest = shared_out(manifest, base, packs, hurried=hurried)
    data = manifests.encode(manifest)
    name = new_object_id(manifest.generation, rng)
    store.put(manifest_key(manifest.run, name), data)
    size = len(data) + sum(pack.size for pack in packs.put)
    return _Put(name, manifests.address(data), size, manifest, frozenset(packs.put))


def _open(root: Path, seen: Scan) -> Tree:
    """The workspace that was scanned; `WorkspaceFault` when another lies in its place."""
    try:
        tree = Tree(root)
    except OSError as error:
        raise WorkspaceFault(f"the workspace {root} cannot be read: {error.strerror}") from error
    status = os.fstat(tree.directory(b""))
    if (status.st_dev, status.st_ino) != seen.root:
        tree.__exit__(None, None, None)
        raise WorkspaceFault(f"the workspace {root} was replaced while it was being read")
    return tree
