"""Snapshots made by hand: packs and a manifest with exactly the content, and the damage, that a test wants.

For testing what reads snapshots without the code that writes them. Stores what it makes in any `Store`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spotwarp.persistence import codec
from spotwarp.persistence import manifest as manifests
from spotwarp.persistence.envelope import digest
from spotwarp.persistence.layout import manifest_key, pack_key
from spotwarp.persistence.manifest import (
    DIRECTORY,
    FILE,
    SYMLINK,
    Blob,
    CheckpointFact,
    Entry,
    Extent,
    Manifest,
    PackRef,
)
from spotwarp.persistence.pack import PackBuilder
from spotwarp.persistence.store.api import Store

MTIME_NS = 1_700_000_000_123_456_789
"""The time of everything that is given none."""
PACK_SIZE = 1 << 20
"""A pack's capacity in bytes; `new_pack` before more."""


@dataclass(frozen=True, slots=True)
class _Content:
    digest: bytes
    codec: int
    raw: int
    coded: bytes


@dataclass(slots=True)
class Stored:
    """A snapshot in a store: its number (for `check`), its manifest's id and address, and the manifest."""

    n: int
    manifest_id: str
    address: str
    manifest: Manifest


@dataclass(slots=True)
class SnapshotBuilder:
    """Collects entries and blobs; `store_in` writes one pack per `new_pack` and the manifest.

    Building on another snapshot (`base`) shares its packs and blobs.
    """

    run: str = "main"
    generation: int = 1
    level: int = 1
    base: Manifest | None = None
    entries: list[Entry] = field(default_factory=list)
    checkpoints: list[CheckpointFact] = field(default_factory=list)
    _contents: list[list[_Content]] = field(default_factory=lambda: [[]])

    def new_pack(self) -> None:
        """What is added from here on goes into a pack of its own."""
        self._contents.append([])

    def blob(self, data: bytes) -> int:
        """Store `data` as a blob; gives its number."""
        number, coded = codec.encode(data, level=self.level)
        self._contents[-1].append(_Content(digest(data), number, len(data), b"".join(coded)))
        return (len(self.base.blobs) if self.base else 0) + sum(map(len, self._contents)) - 1

    def directory(self, path: bytes, *, mode: int = 0o755, mtime_ns: int = MTIME_NS) -> None:
        """Add a directory."""
        self.entries.append(Entry(path, DIRECTORY, mode, mtime_ns, 0))

    def link(self, path: bytes, target: bytes, *, mtime_ns: int = MTIME_NS) -> None:
        """Add a symbolic link."""
        self.entries.append(Entry(path, SYMLINK, 0o777, mtime_ns, 0, (), target))

    def file(
        self,
        path: bytes,
        data: bytes,
        *,
        mode: int = 0o644,
        mtime_ns: int = MTIME_NS,
        chunk: int = 4 << 20,
    ) -> None:
        """Add a file in chunks of `chunk` bytes; chunks of zeros are holes."""
        extents = [
            Extent(at, len(piece), self.blob(piece), 0)
            for at in range(0, len(data), chunk)
            if (piece := data[at : at + chunk]).strip(b"\0")
        ]
        self.extents(path, len(data), extents, mode=mode, mtime_ns=mtime_ns)

    def extents(
        self, path: bytes, size: int, extents: Sequence[Extent], *, mode: int = 0o644, mtime_ns: int = MTIME_NS
    ) -> None:
        """Add a file of `size` bytes made of given extents."""
        self.entries.append(Entry(path, FILE, mode, mtime_ns, size, tuple(extents)))

    def bundle(self, files: Mapping[bytes, bytes], *, mode: int = 0o644, mtime_ns: int = MTIME_NS) -> None:
        """Add small files that share one blob."""
        number, at = self.blob(b"".join(files.values())), 0
        for path, data in files.items():
            extents = (Extent(0, len(data), number, at),) if data else ()
            self.entries.append(Entry(path, FILE, mode, mtime_ns, len(data), extents, b"", digest(data)))
            at += len(data)

    def store_in(self, store: Store, n: int = 1) -> Stored:
        """Write the packs and the manifest; `n` numbers the snapshot and makes its ids."""
        blobs = list(self.base.blobs) if self.base else []
        packs = list(self.base.packs) if self.base else []
        for number, contents in enumerate(self._contents):
            if not contents:
                continue
            builder = PackBuilder(PACK_SIZE)
            for content in contents:
                row = builder.add(content.digest, content.codec, content.raw, content.coded)
                blobs.append(Blob(len(packs), row.offset, row.stored, row.codec, row.raw, row.digest))
            data = bytes(builder.seal())
            packs.append(PackRef(self.run, f"{self.generation}-{n:016x}{number:016x}", len(data)))
            store.put(pack_key(self.run, packs[-1].id), data)
        made = Manifest(
            0, self.run, self.generation, tuple(packs), tuple(blobs), tuple(self.entries), tuple(self.checkpoints)
        )
        return self.commit(store, made, n)

    def commit(self, store: Store, manifest: Manifest, n: int) -> Stored:
        """Write `manifest` as snapshot `n`."""
        data = manifests.encode(manifest)
        identifier = f"{self.generation}-{n:032x}"
        store.put(manifest_key(self.run, identifier), data)
        return Stored(n, identifier, manifests.address(data), manifest)
