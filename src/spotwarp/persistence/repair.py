"""A snapshot that is damaged in the store, made whole again as far as the store goes: a new one takes its place.

Every pack tells what is in it, so what is lost in one place is looked for by its digest in all other packs of the run,
also in those that no snapshot names, and is put again under a name of its own (P1). A file that is nowhere whole is
left out and named, and a checkpoint that lacks one is torn. The damaged snapshot stays as it is. Puts packs and one
manifest and nothing else; the caller commits them.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from spotwarp.clock import Rng
from spotwarp.errors import CorruptObject, ObjectMissing, UnsupportedFormat
from spotwarp.persistence import codec, layout
from spotwarp.persistence import manifest as manifests
from spotwarp.persistence.backup.sharing import Packs, shared_out
from spotwarp.persistence.manifest import (
    FILE,
    NO_BASE,
    Blob,
    CheckpointFact,
    Entry,
    Manifest,
    PackRef,
    RecordsBuilder,
    Skipped,
    is_model,
)
from spotwarp.persistence.pack import PackBuilder, PackedBlob, read_trailer
from spotwarp.persistence.parallel import each
from spotwarp.persistence.reads import Bases, Read, decoded, merged, twice
from spotwarp.persistence.store.api import Buffer, ObjectMeta, Store

LOST = "damaged in the store"
_LEVEL = 3


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair put; all of it is acknowledged. See `receipts.Upload`."""

    manifest_id: str
    address: str
    manifest: Manifest
    new_packs: tuple[PackRef, ...]
    files: int
    bytes: int
    stored_bytes: int
    found: int
    """Blobs that were found elsewhere and put again."""
    lost: tuple[builtins.bytes, ...]
    """The paths of the files that are nowhere whole."""
    read_bytes: int = 0
    late_files: int = 0
    late_bytes: int = 0


def damaged(store: Store, manifest: Manifest, *, workers: int = 8) -> frozenset[int]:
    """The numbers of the blobs that cannot be read. Reads all; of one whose base is damaged nothing can be said."""
    bad: set[int] = set()
    lock = threading.Lock()
    blobs, bases = manifest.blobs, Bases(store, manifest.packs, manifest.blobs)

    def base_of(blob: Blob) -> Buffer | CorruptObject | UnsupportedFormat | None:
        found = bases.of(blob)
        if isinstance(found, CorruptObject | UnsupportedFormat):
            with lock:
                bad.add(blob.base)
        return found

    def look(reads: Iterable[Read]) -> None:
        for read in reads:
            pack = manifest.packs[read.pack]
            try:
                for number, data in decoded(store, layout.pack_key(pack.run, pack.id), read, blobs, base_of):
                    if isinstance(data, CorruptObject | UnsupportedFormat) and blobs[number].base not in bad:
                        with lock:
                            bad.add(number)
            except ObjectMissing:
                with lock:
                    bad.update(read.blobs)

    each(merged(blobs, range(len(blobs))), look, workers=workers)
    return frozenset(bad)


def repair(store: Store, run: str, generation: int, manifest: Manifest, bad: Collection[int], rng: Rng) -> Repaired:
    """Put what a snapshot needs that says what `manifest` does without its `bad` blobs.

    Raises the store's errors.
    """
    packs = Packs(store, run, generation, rng)
    found = dict(_Search(store, run, manifest, frozenset(bad)).put_again(packs))
    kept = _Kept(manifest, frozenset(bad), found)
    made = kept.manifest(generation)
    made = shared_out(made, manifest, packs)
    data = manifests.encode(made)
    name = layout.new_object_id(generation, rng)
    store.put(layout.manifest_key(run, name), data)
    return Repaired(
        *(name, manifests.address(data), made, tuple(packs.put), kept.files, kept.bytes),
        stored_bytes=len(data) + sum(pack.size for pack in packs.put),
        found=len(found),
        lost=tuple(kept.lost),
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a blob was put again."""

    pack: PackRef
    row: PackedBlob


class _Search:
    """For the contents of damaged blobs, in all packs of the run."""

    def __init__(self, store: Store, run: str, manifest: Manifest, bad: frozenset[int]) -> None:
        self._store, self._run, self._manifest = store, run, manifest
        wanted = [number for number, blob in enumerate(manifest.blobs) if number in bad or blob.base in bad]
        self._wanted = {manifest.blobs[number].digest: number for number in wanted}
        self._where = {(manifest.packs[b.pack].id, b.offset) for b in (manifest.blobs[number] for number in wanted)}

    def put_again(self, packs: Packs) -> Iterator[tuple[int, _Place]]:
        """Each blob that is whole elsewhere, and where it lies now; `packs` gets them."""
        builder: PackBuilder | None = None
        waiting: list[tuple[int, PackedBlob]] = []
        for meta in self._store.list(layout.packs_prefix(self._run)):
            for row in self._rows(meta):
                if (data := self._whole(meta, row)) is None:
                    continue
                number = self._wanted.pop(row.digest)
                how, parts = codec.encode(data, level=_LEVEL)
                size = sum(memoryview(part).nbytes for part in parts)
                if builder is not None and not builder.fits(size):
                    yield from _placed(packs.end(), waiting)
                    builder, waiting = None, []
                builder = builder or packs.begin()
                waiting.append((number, builder.add(row.digest, how, row.raw, *parts)))
        if waiting:
            yield from _placed(packs.end(), waiting)

    def _rows(self, meta: ObjectMeta) -> list[PackedBlob]:
        """What the pack has of what is wanted, but where it was damaged; only what is decoded by itself."""
        identifier = meta.key.rpartition("/")[2]
        try:
            rows = twice(lambda: read_trailer(self._store, meta.key, meta.size))
        except (CorruptObject, ObjectMissing, UnsupportedFormat):
            return []
        return [
            r for r in rows if r.digest in self._wanted and not r.base and (identifier, r.offset) not in self._where
        ]

    def _whole(self, meta: ObjectMeta, row: PackedBlob) -> Buffer | None:
        if row.digest not in self._wanted:
            return None  # the same pack has it twice
        blob = Blob(0, row.offset, row.stored, row.codec, row.raw, row.digest)
        read = Read(0, row.offset, row.stored, (0,))
        try:
            ((_, data),) = decoded(self._store, meta.key, read, (blob,), lambda _: None)
        except ObjectMissing:
            return None
        return None if isinstance(data, CorruptObject | UnsupportedFormat) else bytes(data)


def _placed(pack: PackRef, rows: list[tuple[int, PackedBlob]]) -> Iterator[tuple[int, _Place]]:
    for number, row in rows:
        yield number, _Place(pack, row)


@dataclass(slots=True)
class _Kept:
    """What is left of a manifest, with new places for some of its blobs."""

    old: Manifest
    bad: frozenset[int]
    found: Mapping[int, _Place]
    lost: list[builtins.bytes] = field(default_factory=list)
    files: int = 0
    bytes: int = 0

    def manifest(self, generation: int) -> Manifest:
        """The new one. What was coded against a blob that lies elsewhere now is so still."""
        packs = [*self.old.packs, *dict.fromkeys(place.pack for place in self.found.values())]
        numbers = {pack: number for number, pack in enumerate(packs)}
        blobs = list(self.old.blobs)
        for number, place in self.found.items():
            row = place.row
            pack = numbers[place.pack]
            blobs[number] = Blob(pack, row.offset, row.stored, row.codec, row.raw, row.digest, NO_BASE)
        good = self._good(blobs)
        made = RecordsBuilder(packs, blobs)
        for entry in self.old.entries:
            if all(good(extent.blob) for extent in entry.extents):
                self._count(entry)
                made.add(entry)
            else:
                self.lost.append(entry.path)
        entries = made.records()
        skipped = (*self.old.skipped, *(Skipped(path, LOST) for path in self.lost))
        return replace(
            self.old,
            generation=generation,
            packs=made.packs,
            blobs=made.blobs,
            entries=entries,
            checkpoints=tuple(self._facts()),
            skipped=tuple(sorted(skipped, key=lambda skip: skip.path)),
            versions=tuple(fact for fact in self.old.versions if fact.path not in set(self.lost)),
            shared=(),
        )

    def _good(self, blobs: list[Blob]) -> Callable[[int], bool]:
        """Whether a blob can be read: it is whole or lies elsewhere now, and so is its base."""

        def by_itself(number: int) -> bool:
            return number not in self.bad or number in self.found

        def good(number: int) -> bool:
            return by_itself(number) and (blobs[number].base == NO_BASE or by_itself(blobs[number].base))

        return good

    def _count(self, entry: Entry) -> None:
        if entry.kind == FILE:
            self.files, self.bytes = self.files + 1, self.bytes + entry.size

    def _facts(self) -> Iterator[CheckpointFact]:
        above = {path[:at] for path in self.lost for at in range(len(path)) if path[at : at + 1] == b"/"}
        for fact in self.old.checkpoints:
            if fact.path not in above:
                yield fact
            elif not is_model(fact):
                yield replace(fact, cls="torn", reason="a file of it was damaged in the store")
