"""A snapshot's contents, self-contained: everything a restore needs in one object.

A head (packs, blobs, checkpoints) and a `Table` of entries in the order of their paths, which stays coded in memory.
Blobs are listed once; files point into that list. Paths are bytes, relative to the workspace. Fields are positional on
the wire (arrays), so new ones are only ever added at the end. Normative: docs/format.md.
"""

from __future__ import annotations

import builtins
import re
import struct
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from spotwarp.errors import CorruptObject
from spotwarp.persistence.envelope import Kind, digest, seal, unsealed
from spotwarp.persistence.table import Directory, Table, TableBuilder, directory, placed, plausible

FILE: Final = 0
DIRECTORY: Final = 1
SYMLINK: Final = 2

NO_BASE: Final = -1
"""A blob that is decoded by itself."""
MAX_HEAD: Final = 1 << 30
"""Upper bound in bytes of a decompressed head; a larger announcement is damage, not data."""


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


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_ID: Final = re.compile(r"[0-9]{1,18}-[0-9a-zA-Z]{1,64}")


class _Head(msgspec.Struct, array_like=True, frozen=True):
    version: int
    run: str
    generation: int
    packs: tuple[PackRef, ...]
    blobs: tuple[Blob, ...]
    segments: Directory
    checkpoints: tuple[CheckpointFact, ...]
    skipped: tuple[Skipped, ...]
    versions: tuple[FileFact, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Head)
_LEVEL: Final = 3


def builder() -> TableBuilder[Entry]:
    """Makes the entries of a manifest."""
    return TableBuilder(Entry, level=_LEVEL, weigh=_weight)


def tabled(entries: Iterable[Entry]) -> Table[Entry]:
    """`entries`, sorted already or not, as a manifest has them."""
    return Table.of(Entry, entries, weigh=_weight)


def _weight(entry: Entry) -> int:
    return 1 + len(entry.extents)


def encode(manifest: Manifest) -> bytes:
    """The object to put."""
    import zstandard

    entries = tabled(manifest.entries)
    head = _Head(
        manifest.version,
        manifest.run,
        manifest.generation,
        manifest.packs,
        manifest.blobs,
        directory(entries),
        manifest.checkpoints,
        manifest.skipped,
        manifest.versions,
    )
    coded = zstandard.ZstdCompressor(level=_LEVEL).compress(_encoder.encode(head))
    segments = (segment.data for segment in entries.segments)
    return seal(Kind.MANIFEST, struct.pack("<I", len(coded)), coded, *segments)


def decode(data: bytes, name: str, *, expected: str | None = None) -> Manifest:
    """The manifest in the object `data`; `expected` is its address as a snapshot entry names it (`address`).

    The entries stay where they are in `data`. Raises `CorruptObject` (damaged, or not the object the entry named) or
    `UnsupportedFormat`.
    """
    if expected is not None and address(data) != expected:
        raise CorruptObject(f"{name} is not the manifest its snapshot entry names (hash differs)")
    body = unsealed(data, Kind.MANIFEST, name)
    head, rest = _head(body, name)
    try:
        entries = placed(Entry, head.segments, rest)
        found = Manifest(
            head.version,
            head.run,
            head.generation,
            head.packs,
            head.blobs,
            entries,
            head.checkpoints,
            head.skipped,
            head.versions,
        )
        _check_references(found, name)
    except CorruptObject as error:
        raise error if error.message.startswith(name) else CorruptObject(f"{name}: {error.message}") from error
    return found


def _head(body: memoryview, name: str) -> tuple[_Head, memoryview]:
    import zstandard

    length = struct.unpack_from("<I", body)[0] if body.nbytes >= 4 else 0
    if not 0 < length <= body.nbytes - 4:
        raise CorruptObject(f"{name} announces a head of {length} bytes in {body.nbytes}")
    coded = body[4 : 4 + length]
    try:
        size = zstandard.frame_content_size(coded)
        if not plausible(size, length, MAX_HEAD):
            raise CorruptObject(f"{name} announces {size} bytes")
        return _decoder.decode(zstandard.ZstdDecompressor().decompress(coded)), body[4 + length :]
    except (zstandard.ZstdError, msgspec.DecodeError, RecursionError) as error:
        raise CorruptObject(f"{name} cannot be decoded: {error}") from error


def address(data: bytes) -> str:
    """blake3-128 of a whole manifest object, hex: how a snapshot entry names its bytes."""
    return digest(data).hex()


def _check_references(manifest: Manifest, name: str) -> None:
    """Every index must point inside its table: a reader never meets an IndexError later."""
    for ref in manifest.packs:
        if not _NAME.fullmatch(ref.run) or not _ID.fullmatch(ref.id) or ref.size < 0:
            raise CorruptObject(f"{name} names a pack that cannot be one: {ref.id!r}")
    _check_blobs(manifest.blobs, len(manifest.packs), name)
    _check_entries(manifest.entries, manifest.blobs, name)


def _check_blobs(blobs: Sequence[Blob], packs: int, name: str) -> None:
    for blob in blobs:
        if not 0 <= blob.pack < packs or min(blob.offset, blob.stored, blob.raw) < 0:
            raise CorruptObject(f"{name} has a blob outside its packs")
        if blob.base != NO_BASE and not (0 <= blob.base < len(blobs) and blobs[blob.base].base == NO_BASE):
            raise CorruptObject(f"{name} has a blob whose base is none")


def _check_entries(entries: Iterable[Entry], blobs: Sequence[Blob], name: str) -> None:
    last = b""
    for entry in entries:
        if entry.path < last:
            raise CorruptObject(f"{name} has its entries in another order than that of their paths")
        last = entry.path
        for extent in entry.extents:
            if not 0 <= extent.blob < len(blobs) or min(extent.offset, extent.length, extent.inner) < 0:
                raise CorruptObject(f"{name} has a file that points outside its blobs")
            if extent.inner + extent.length > blobs[extent.blob].raw or extent.offset + extent.length > entry.size:
                raise CorruptObject(f"{name} has a file that reaches outside its blob or itself")


def without_packs(manifest: Manifest, packs: frozenset[str]) -> Manifest:
    """`manifest` less every blob in `packs` (ids) or with its base there, every file that needs one, and every
    checkpoint that has such a file: what may still be referred to."""
    bad = {number for number, ref in enumerate(manifest.packs) if ref.id in packs}
    blobs = manifest.blobs
    good = [b.pack not in bad for b in blobs]
    left = [n for n, b in enumerate(blobs) if good[n] and (b.base == NO_BASE or good[b.base])]
    numbers = {old: new for new, old in enumerate(left)} | {NO_BASE: NO_BASE}
    entries = builder()
    lost: set[bytes] = set()
    for entry in manifest.entries:
        if all(x.blob in numbers for x in entry.extents):
            extents = tuple(msgspec.structs.replace(x, blob=numbers[x.blob]) for x in entry.extents)
            entries.add(msgspec.structs.replace(entry, extents=extents))
        else:
            above = entry.path
            while above and above not in lost:
                lost.add(above)
                above = above.rpartition(b"/")[0]
    return msgspec.structs.replace(
        manifest,
        blobs=tuple(msgspec.structs.replace(blobs[old], base=numbers[blobs[old].base]) for old in left),
        entries=entries.table(),
        checkpoints=tuple(fact for fact in manifest.checkpoints if fact.path not in lost),
        versions=tuple(fact for fact in manifest.versions if fact.path not in lost),
    )
