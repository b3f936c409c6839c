"""A snapshot's contents, self-contained: everything a restore needs in one object.

zstd(msgpack) of a `Manifest`. Blobs are listed once in a table; files point into it. Paths are bytes, relative to the
workspace. Fields are positional on the wire (arrays), so new ones are only ever added at the end. Normative:
docs/format.md.
"""

from __future__ import annotations

import builtins
from typing import Final

import msgspec

from spotwarp.errors import CorruptObject
from spotwarp.persistence.envelope import Kind, digest, seal, unseal

FILE: Final = 0
DIRECTORY: Final = 1
SYMLINK: Final = 2

MAX_MANIFEST: Final = 4 << 30
"""Upper bound in bytes of a decompressed manifest; a larger announcement is damage, not data."""


class PackRef(msgspec.Struct, array_like=True, frozen=True):
    """A pack this snapshot names: the run that owns it, its id, its size in bytes."""

    run: str
    id: str
    size: int


class Blob(msgspec.Struct, array_like=True, frozen=True):
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


class Extent(msgspec.Struct, array_like=True, frozen=True):
    """`length` bytes of a file at `offset` = bytes of blob number `blob` from `inner`. What no extent covers is
    zeros."""

    offset: int
    length: int
    blob: int
    inner: int


class Entry(msgspec.Struct, array_like=True, frozen=True):
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


class Manifest(msgspec.Struct, array_like=True, frozen=True):
    """One snapshot."""

    version: int
    run: str
    generation: int
    packs: tuple[PackRef, ...]
    blobs: tuple[Blob, ...]
    entries: tuple[Entry, ...]
    checkpoints: tuple[CheckpointFact, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    versions: tuple[FileFact, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Manifest)


def encode(manifest: Manifest) -> bytes:
    """The object to put."""
    import zstandard

    return seal(Kind.MANIFEST, zstandard.ZstdCompressor(level=3).compress(_encoder.encode(manifest)))


def decode(data: bytes, name: str, *, expected: str | None = None) -> Manifest:
    """The manifest in the object `data`; `expected` is its address as a snapshot entry names it (`address`).

    Raises `CorruptObject` (damaged, or not the object the entry named) or `UnsupportedFormat`.
    """
    import zstandard

    if expected is not None and address(data) != expected:
        raise CorruptObject(f"{name} is not the manifest its snapshot entry names (hash differs)")
    body = unseal(data, Kind.MANIFEST, name)
    try:
        size = zstandard.frame_content_size(body)
        if size > MAX_MANIFEST:
            raise CorruptObject(f"{name} announces {size} bytes")
        manifest = _decoder.decode(zstandard.ZstdDecompressor().decompress(body))
    except (zstandard.ZstdError, msgspec.DecodeError) as error:
        raise CorruptObject(f"{name} cannot be decoded: {error}") from error
    _check_references(manifest, name)
    return manifest


def address(data: bytes) -> str:
    """blake3-128 of a whole manifest object, hex: how a snapshot entry names its bytes."""
    return digest(data).hex()


def _check_references(manifest: Manifest, name: str) -> None:
    """Every index must point inside its table: a reader never meets an IndexError later."""
    packs, blobs = len(manifest.packs), manifest.blobs
    for blob in blobs:
        if not 0 <= blob.pack < packs or min(blob.offset, blob.stored, blob.raw) < 0:
            raise CorruptObject(f"{name} has a blob outside its packs")
    for entry in manifest.entries:
        for extent in entry.extents:
            if not 0 <= extent.blob < len(blobs) or min(extent.offset, extent.length, extent.inner) < 0:
                raise CorruptObject(f"{name} has a file that points outside its blobs")
            if extent.inner + extent.length > blobs[extent.blob].raw or extent.offset + extent.length > entry.size:
                raise CorruptObject(f"{name} has a file that reaches outside its blob or itself")


def without_packs(manifest: Manifest, packs: frozenset[str]) -> Manifest:
    """`manifest` less every blob in `packs` (ids) and every file that needs one: what may still be referred to."""
    bad = {number for number, ref in enumerate(manifest.packs) if ref.id in packs}
    numbers = {old: new for new, old in enumerate(n for n, b in enumerate(manifest.blobs) if b.pack not in bad)}
    return msgspec.structs.replace(
        manifest,
        blobs=tuple(manifest.blobs[old] for old in numbers),
        entries=tuple(
            msgspec.structs.replace(
                entry,
                extents=tuple(msgspec.structs.replace(x, blob=numbers[x.blob]) for x in entry.extents),
            )
            for entry in manifest.entries
            if all(x.blob in numbers for x in entry.extents)
        ),
    )
