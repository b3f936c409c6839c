"""What a manifest consists of, and what can be said of it without its bytes. Pure."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from spotwarp.persistence.table import Table, TableBuilder

FILE: Final = 0
DIRECTORY: Final = 1
SYMLINK: Final = 2

_DAMAGED: Final = "was found damaged in the store"

NO_BASE: Final = -1
"""A blob that is decoded by itself."""


class PackRef(msgspec.Struct, array_like=True, frozen=True):
    """A pack this snapshot names: the run that owns it, its id, its size in bytes."""

    run: str
    id: str
    size: int


class Blob(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A coded chunk or bundle: where it lies, how it is coded, what it must decode to."""

    pack: int
    """Index into `Manifest.packs`."""
    offset: int
    """Of the coded bytes in the pack."""
    stored: int
    """Length of the coded bytes."""
    codec: int
    raw: int
    """Length of the decoded bytes."""
    digest: bytes
    """blake3-128 of the decoded bytes."""
    base: int = NO_BASE
    """Index of the blob with whose decoded bytes this one is decoded; that one has no base itself."""


class Extent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """`length` bytes of a file at `offset` = bytes of blob number `blob` from `inner`. What no extent covers is
    zeros."""

    offset: int
    length: int
    blob: int
    inner: int


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One file, directory or symbolic link."""

    path: bytes
    kind: int
    mode: int
    """Permission bits only."""
    mtime_ns: int
    size: int
    extents: tuple[Extent, ...] = ()
    target: bytes = b""
    """Of a symbolic link."""
    digest: bytes = b""
    """blake3-128 of a bundled file's content; empty for chunked files."""
    link: bytes = b""
    """The first name of the file that this is a further name of (a hard link), if it is one."""


class CheckpointFact(msgspec.Struct, array_like=True, frozen=True):
    """What was known of one checkpoint directory when this snapshot was taken."""

    path: builtins.bytes
    cls: str
    """`resumable`, `weights-only`, `unknown` or `torn`."""
    step: int | None = None
    framework: str = ""
    reason: str = ""
    bytes: int = 0
    loss: float | None = None
    world_size: int | None = None


def is_model(fact: CheckpointFact) -> bool:
    """Whether it is a directory with a model in it, often a trainer's whole output: only the files directly in it
    count, and nothing of it is ever set aside."""
    return fact.step is None and fact.cls == "weights-only"


def is_damaged(fact: CheckpointFact) -> bool:
    """Whether it lacks what the store lost: as it was, it is nowhere."""
    return fact.cls == "torn" and fact.reason.endswith(_DAMAGED)


class FileFact(msgspec.Struct, array_like=True, frozen=True):
    """A file that is stored in whole versions only, and is here in one."""

    path: bytes
    format: str
    """`safetensors`, `torch` (zip) or `torch-legacy`."""
    kept: int = 0
    """The snapshot of which this is the version, because what was on disk was not whole; 0: it is what was on disk."""
    reason: str = ""
    """Why what was on disk was not taken."""


class Skipped(msgspec.Struct, array_like=True, frozen=True):
    """A path that is not in the snapshot, and why."""

    path: bytes
    reason: str
    unreadable: bool = False
    """It should have been stored; otherwise it is of a kind that never is (FIFO, socket, device)."""


class Shared(msgspec.Struct, array_like=True, frozen=True):
    """A segment of the entries that lies in a pack, where later snapshots find it: the path it begins with, the pack,
    where there, its bytes there, blake3-128 of what they stand for."""

    first: builtins.bytes
    pack: PackRef
    offset: int
    stored: int
    digest: builtins.bytes


class Manifest(msgspec.Struct, frozen=True):
    """One snapshot."""

    version: int
    run: str
    generation: int
    packs: tuple[PackRef, ...]
    blobs: tuple[Blob, ...]
    entries: Sequence[Entry]
    """In the order of their paths, each path once; a `Table` unless made by hand."""
    checkpoints: tuple[CheckpointFact, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    versions: tuple[FileFact, ...] = ()
    shared: tuple[Shared, ...] = ()
    """Which segments of the entries lie in packs, in their order."""


LEVEL: Final = 3
"""zstd's, for what is written."""


def builder() -> TableBuilder[Entry]:
    """Makes the entries of a manifest."""
    return TableBuilder(Entry, level=LEVEL, weigh=weight)


def tabled(entries: Iterable[Entry]) -> Table[Entry]:
    """`entries`, sorted already or not, as a manifest has them."""
    return Table.of(Entry, entries, weigh=weight)


def weight(entry: Entry) -> int:
    """How many common rows an entry is worth in a table."""
    return 1 + len(entry.extents)


def without_packs(manifest: Manifest, packs: frozenset[str]) -> Manifest:
    """`manifest` less every blob in `packs` (ids) or with its base there, and every file that needs one: what may still
    be referred to. Such a file is named as skipped (it was stored: what is here is not lacking for it); a checkpoint
    that has one is torn, and a model with one is none."""
    bad = {number for number, ref in enumerate(manifest.packs) if ref.id in packs}
    blobs = manifest.blobs
    good = [b.pack not in bad for b in blobs]
    left = [n for n, b in enumerate(blobs) if good[n] and (b.base == NO_BASE or good[b.base])]
    numbers = {old: new for new, old in enumerate(left)} | {NO_BASE: NO_BASE}
    entries = builder()
    skipped: list[Skipped] = []
    lost: dict[bytes, bytes] = {}
    for entry in manifest.entries:
        if all(x.blob in numbers for x in entry.extents):
            extents = tuple(msgspec.structs.replace(x, blob=numbers[x.blob]) for x in entry.extents)
            entries.add(msgspec.structs.replace(entry, extents=extents))
        else:
            skipped.append(Skipped(entry.path, _DAMAGED))
            above = entry.path
            while above and above not in lost:
                lost[above] = entry.path
                above = above.rpartition(b"/")[0]
    return msgspec.structs.replace(
        manifest,
        blobs=tuple(msgspec.structs.replace(blobs[old], base=numbers[blobs[old].base]) for old in left),
        entries=entries.table(),
        checkpoints=tuple(
            _damaged(fact, lost[fact.path]) if fact.path in lost else fact
            for fact in manifest.checkpoints
            if not (fact.path in lost and is_model(fact))
        ),
        skipped=tuple(sorted((*manifest.skipped, *skipped), key=lambda one: one.path)),
        versions=tuple(fact for fact in manifest.versions if fact.path not in lost),
        shared=tuple(one for one in manifest.shared if one.pack.id not in packs),
    )


def _damaged(fact: CheckpointFact, path: bytes) -> CheckpointFact:
    if fact.cls == "torn":
        return fact
    name = path[len(fact.path) + 1 :].decode("utf-8", "backslashreplace")
    return msgspec.structs.replace(fact, cls="torn", reason=f"{name} {_DAMAGED}")
