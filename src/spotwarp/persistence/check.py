"""Are the snapshots of a run restorable? Every problem is found, and told with the snapshots that it costs.

Reads only. Without `read_data` it proves that every manifest is the one its entry names and that every pack it names is
there, has its size and a table that agrees; with `read_data` also that every blob decodes to its hash. One damaged
object never hides another. A store that does not answer is an error, not damage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from spotwarp.errors import CorruptObject, ObjectMissing, UnsupportedFormat
from spotwarp.persistence import layout
from spotwarp.persistence.entries import checked
from spotwarp.persistence.listing import sizes
from spotwarp.persistence.manifest import NO_BASE, Blob, Manifest, PackRef, decode
from spotwarp.persistence.parallel import each
from spotwarp.persistence.reads import Bases, decoded, merged, twice, whole
from spotwarp.persistence.store.api import Buffer, Store

FILES_NAMED: Final = 20
"""How many files a problem names."""

Snapshot = tuple[int, str, str]
"""A snapshot as its log entry names it: number, manifest id, manifest address."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One damaged object."""

    kind: str
    """`manifest-missing`, `manifest-damaged`, `pack-missing`, `pack-size`, `pack-table` or `blob`."""
    key: str
    what: str
    snapshots: tuple[int, ...]
    """Those that cannot be restored whole, or (a damaged table, data not read) are not proven to be."""
    files: tuple[bytes, ...] = ()
    """Files of those snapshots that need the object, at most `FILES_NAMED`."""
    files_total: int = 0


@dataclass(frozen=True, slots=True)
class CheckProgress:
    """Packs looked at, of how many, and bytes read."""

    packs: int
    total: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found; all is well when `problems` is empty."""

    problems: tuple[Problem, ...]
    fine: tuple[int, ...]
    """Snapshots that no problem touches."""
    objects: int
    """Manifests and packs looked at, each once."""
    bytes: int
    """Read from the store."""
    unreferenced: int
    """Packs and manifests of the run that no snapshot given here names: garbage, or a backup at work."""
    unreferenced_bytes: int


_Row = tuple[int, int, int, int, bytes, bytes]
"""A blob: offset, stored, codec, raw, digest, and the digest of what it is coded against."""


@dataclass(slots=True)
class _Pack:
    """A pack, the blobs that any snapshot wants of it, and those snapshots."""

    ref: PackRef
    blobs: set[_Row] = field(default_factory=set)
    snapshots: set[int] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)
    """As the snapshots name it: one, or somebody is wrong."""

    @property
    def key(self) -> str:
        return layout.pack_key(self.ref.run, self.ref.id)


@dataclass(frozen=True, slots=True)
class _Fault:
    """What is wrong with a pack, and which of its blobs it costs; None is all."""

    kind: str
    pack: _Pack
    what: str
    rows: frozenset[_Row] | None = None


def check(
    *,
    store: Store,
    run: str,
    snapshots: Iterable[Snapshot],
    read_data: bool = False,
    workers: int = 8,
    progress: Callable[[CheckProgress], None] | None = None,
    cancel: threading.Event | None = None,
) -> CheckReport:
    """Check `snapshots` of `run`. Raises `Interrupted` and the errors of a store that does not answer."""
    wanted = list(snapshots)
    work = _Check(store, run, wanted, read_data, progress)
    each(wanted, work.manifests, workers=workers, cancel=cancel)
    work.list_packs()
    each(work.present(), work.packs, workers=workers, cancel=cancel)
    return work.report()


class _Check:
    """One check at work; what its threads share is changed under `_lock`."""

    def __init__(
        self,
        store: Store,
        run: str,
        snapshots: list[Snapshot],
        read_data: bool,
        progress: Callable[[CheckProgress], None] | None,
    ) -> None:
        self._store, self._run, self._snapshots = store, run, snapshots
        self._read_data, self._progress = read_data, progress
        self._lock = threading.Lock()
        self._packs: dict[tuple[str, str], _Pack] = {}
        self._bases: dict[bytes, tuple[PackRef, Blob]] = {}
        """Where the blobs are that others are coded against, by digest."""
        self._sizes: dict[str, int] = {}
        self._problems: list[Problem] = []
        self._faults: list[_Fault] = []
        self._objects = self._bytes = self._looked_at = 0

    # ------------------------------------------------------------------------------------------------ manifests

    def manifests(self, snapshots: Iterable[Snapshot]) -> None:
        for snapshot in snapshots:
            try:
                manifest, size = self._manifest(snapshot)
                checked(manifest.entries)
            except (ObjectMissing, CorruptObject, UnsupportedFormat) as error:
                kind = "manifest-missing" if isinstance(error, ObjectMissing) else "manifest-damaged"
                key = layout.manifest_key(self._run, snapshot[1])
                with self._lock:
                    self._problems.append(Problem(kind, key, error.message, (snapshot[0],)))
                continue
            with self._lock:
                self._objects, self._bytes = self._objects + 1, self._bytes + size
                self._add(snapshot[0], manifest)

    def _manifest(self, snapshot: Snapshot) -> tuple[Manifest, int]:
        _, identifier, address = snapshot
        key = layout.manifest_key(self._run, identifier)

        def read() -> tuple[Manifest, int]:
            data = self._store.get(key)
            return decode(data, key, expected=address, fetch=whole(self._store)), len(data)

        return twice(read)

    def _add(self, n: int, manifest: Manifest) -> None:
        packs = [self._packs.setdefault((ref.run, ref.id), _Pack(ref)) for ref in manifest.packs]
        for pack, ref in zip(packs, manifest.packs, strict=True):
            pack.snapshots.add(n)
            pack.sizes.add(ref.size)
        for blob in manifest.blobs:
            packs[blob.pack].blobs.add(_row(blob, manifest))
            if blob.base != NO_BASE:
                base = manifest.blobs[blob.base]
                self._bases.setdefault(base.digest, (manifest.packs[base.pack], base))

    # ---------------------------------------------------------------------------------------------------- packs

    def list_packs(self) -> None:
        """One listing for each run whose packs are named (most often one); what it lacks is asked for by name."""
        for run in sorted({self._run} | {run for run, _ in self._packs}):
            expected = {pack.key: pack.ref.size for pack in self._packs.values() if pack.ref.run == run}
            self._sizes |= sizes(self._store, layout.packs_prefix(run), expected)

    def present(self) -> Iterator[_Pack]:
        """The packs that are there; those that are not are noted."""
        for pack in sorted(self._packs.values(), key=lambda pack: pack.key):
            if pack.key in self._sizes:
                yield pack
            else:
                self._fault(_Fault("pack-missing", pack, "is missing"))

    def packs(self, packs: Iterable[_Pack]) -> None:
        for pack in packs:
            read = 0
            try:
                self._check_table(pack)
                if self._read_data:
                    read = self._check_blobs(pack)
            except ObjectMissing:
                self._fault(_Fault("pack-missing", pack, "vanished while it was checked"))
            with self._lock:
                self._looked_at += 1
                self._objects, self._bytes = self._objects + 1, self._bytes + read
                if self._progress is not None:
                    self._progress(CheckProgress(self._looked_at, len(self._packs), self._bytes))

    def _check_table(self, pack: _Pack) -> None:
        from spotwarp.persistence.pack import read_trailer

        # When the data is read next, that tells what is lost; else nothing the table should have vouched for is proven.
        cost = frozenset[_Row]() if self._read_data else None
        size = self._sizes[pack.key]
        if pack.sizes != {size}:
            written = " or ".join(map(str, sorted(pack.sizes)))
            self._fault(_Fault("pack-size", pack, f"has {size} bytes where {written} were written", cost))
            return
        try:
            rows = twice(lambda: read_trailer(self._store, pack.key, size))
        except (CorruptObject, UnsupportedFormat) as error:
            self._fault(_Fault("pack-table", pack, error.message, cost))
            return
        wrong = pack.blobs - {(row.offset, row.stored, row.codec, row.raw, row.digest, row.base) for row in rows}
        if wrong:
            what = f"its table does not have {len(wrong)} of the {len(pack.blobs)} blobs that snapshots name"
            self._fault(_Fault("pack-table", pack, what, frozenset(wrong) if cost is None else cost))

    def _check_blobs(self, pack: _Pack) -> int:
        rows = sorted(pack.blobs)
        needed = sorted({row[-1] for row in rows} - {b""})
        numbers = {name: len(rows) + number for number, name in enumerate(needed)}
        blobs = [Blob(0, *row[:-1], numbers.get(row[-1], NO_BASE)) for row in rows]
        packs = [pack.ref]
        for name in needed:
            ref, base = self._bases[name]
            blobs.append(replace(base, pack=len(packs)))
            packs.append(ref)
        bases = Bases(self._store, packs, blobs)
        theirs: set[bytes] = set()
        """Digests of blobs whose base is damaged: the fault of the base's pack, which names all files."""

        def base_of(blob: Blob) -> Buffer | CorruptObject | UnsupportedFormat | None:
            found = bases.of(blob)
            if isinstance(found, CorruptObject | UnsupportedFormat):
                theirs.add(blob.digest)
            return found

        reads = merged(blobs, range(len(rows)))
        bad: dict[_Row, str] = {}
        for read in reads:
            for index, data in decoded(self._store, pack.key, read, blobs, base_of):
                if isinstance(data, CorruptObject | UnsupportedFormat) and blobs[index].digest not in theirs:
                    bad[rows[index]] = data.message
        if bad:
            what = f"{len(bad)} of {len(rows)} blobs are damaged; the first: {bad[min(bad)]}"
            self._fault(_Fault("blob", pack, what, frozenset(bad)))
        return sum(read.length for read in reads)

    def _fault(self, fault: _Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    # --------------------------------------------------------------------------------------------------- report

    def report(self) -> CheckReport:
        problems = sorted([*self._problems, *self._explained()], key=lambda problem: (problem.key, problem.kind))
        harmed = {n for problem in problems for n in problem.snapshots}
        named = {pack.key for pack in self._packs.values()}
        garbage = [size for key, size in self._sizes.items() if key not in named and self._own(key)]
        manifests = {layout.manifest_key(self._run, identifier) for _, identifier, _ in self._snapshots}
        listed = self._store.list(layout.manifests_prefix(self._run))
        garbage += [meta.size for meta in listed if meta.key not in manifests]
        return CheckReport(
            tuple(problems),
            tuple(n for n, _, _ in self._snapshots if n not in harmed),
            self._objects,
            self._bytes,
            len(garbage),
            sum(garbage),
        )

    def _own(self, key: str) -> bool:
        return key.startswith(layout.packs_prefix(self._run) + "/")

    def _explained(self) -> Iterator[Problem]:
        """The faults with the snapshots and files they cost: the manifests concerned are read once more."""
        snapshots: dict[int, set[int]] = {}
        files: dict[int, set[bytes]] = {}
        concerned = {n for fault in self._faults for n in fault.pack.snapshots}
        for snapshot in self._snapshots:
            if snapshot[0] not in concerned:
                continue
            try:
                manifest, _ = self._manifest(snapshot)
            except (ObjectMissing, CorruptObject):  # it was whole a moment ago; its files can no longer be named
                for number, fault in enumerate(self._faults):
                    if snapshot[0] in fault.pack.snapshots:
                        snapshots.setdefault(number, set()).add(snapshot[0])
                continue
            for number, fault in enumerate(self._faults):
                lost = _files(manifest, fault)
                if lost:
                    snapshots.setdefault(number, set()).add(snapshot[0])
                    files.setdefault(number, set()).update(lost)
        for number, fault in enumerate(self._faults):
            lost_files = sorted(files.get(number, ()))
            yield Problem(
                fault.kind,
                fault.pack.key,
                fault.what,
                tuple(sorted(snapshots.get(number, ()))),
                tuple(lost_files[:FILES_NAMED]),
                len(lost_files),
            )


def _row(blob: Blob, manifest: Manifest) -> _Row:
    base = manifest.blobs[blob.base].digest if blob.base != NO_BASE else b""
    return blob.offset, blob.stored, blob.codec, blob.raw, blob.digest, base


def _files(manifest: Manifest, fault: _Fault) -> set[bytes]:
    """The files of `manifest` that need what `fault` costs."""
    packs = {
        number
        for number, ref in enumerate(manifest.packs)
        if (ref.run, ref.id) == (fault.pack.ref.run, fault.pack.ref.id)
    }
    lost = {
        number
        for number, blob in enumerate(manifest.blobs)
        if blob.pack in packs and (fault.rows is None or _row(blob, manifest) in fault.rows)
    }
    lost |= {number for number, blob in enumerate(manifest.blobs) if blob.base in lost}
    return {entry.path for entry in manifest.entries if any(extent.blob in lost for extent in entry.extents)}
