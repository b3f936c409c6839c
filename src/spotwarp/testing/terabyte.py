"""What a workspace of a terabyte takes at the level of manifests: run as a program, so that it is measured alone.

    python -m spotwarp.testing.terabyte DIRECTORY [FILES [CHECKPOINTS]]

FILES (a million) small files, CHECKPOINTS (five) checkpoints of 140 GB in thirty files each, and a dataset of 300 GB.
No byte of them exists: their digests are made up. Snapshots a first time and again after a checkpoint was added and one
rotated away, lists what would be pruned, and plans a restore; tells what each step took, one JSON object a line.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

from msgspec.structs import replace

from spotwarp.clock import SystemClock
from spotwarp.persistence import manifest as manifests
from spotwarp.persistence.backup.sharing import Packs, shared_out
from spotwarp.persistence.content import joined
from spotwarp.persistence.cuts import CHUNK
from spotwarp.persistence.entries import urgency
from spotwarp.persistence.index import Index
from spotwarp.persistence.manifest import FILE, CheckpointFact, Manifest, tabled
from spotwarp.persistence.pack import TARGET, PackedBlob
from spotwarp.persistence.reads import merged, whole
from spotwarp.persistence.scan import Scanned
from spotwarp.persistence.store.local import LocalStore
from spotwarp.persistence.uses import Uses
from spotwarp.testing.clocks import SeededRng
from spotwarp.testing.scale import EPOCH_NS, told

GB = 10**9
SMALL_BYTES = 20_000
BUNDLED = 50
"""Small files in a bundle."""
SHARDS = 30

_packs = count(1)

Kept = tuple[Scanned, bytes | None, bytes]


class Made:
    """A workspace that is made up: what a backup would have read of it."""

    def __init__(self, files: int, steps: Iterable[int]) -> None:
        self._files, self.steps = files, sorted(steps)

    @property
    def facts(self) -> tuple[CheckpointFact, ...]:
        """Its checkpoints."""
        return tuple(CheckpointFact(b"checkpoint-%06d" % step, "resumable", step=step) for step in self.steps)

    def large(self) -> Iterator[tuple[bytes, int]]:
        """The path and size of each large file, in order."""
        for step in self.steps:
            for shard in range(SHARDS):
                yield b"checkpoint-%06d/model-%05d.safetensors" % (step, shard), 140 * GB // SHARDS
        yield b"data/tokens.bin", 300 * GB

    def stored(self, index: Index, known: Made | None) -> None:
        """Note all of it that `known` has not as stored in new packs."""
        before = dict(known.large()) if known else {}
        filled, pack = TARGET, -1
        for path, size in self.large():
            for number in range(-(-size // CHUNK)) if path not in before else ():
                if filled + CHUNK > TARGET:
                    pack, filled = _pack(index), 0
                name = _digest(path, number)
                index.claim(name)
                index.add(
                    pack, PackedBlob(name, filled, CHUNK * 4 // 5, 2, min(CHUNK, size - number * CHUNK)), ((name, 0),)
                )
                filled += CHUNK * 4 // 5
        for first in range(0, self._files, BUNDLED) if known is None else ():
            inside = [
                (_digest(b"small", n), SMALL_BYTES * (n - first))
                for n in range(first, min(first + BUNDLED, self._files))
            ]
            if filled + CHUNK > TARGET:
                pack, filled = _pack(index), 0
            row = PackedBlob(_digest(b"bundle", first), filled, 200_000, 1, SMALL_BYTES * BUNDLED)
            index.add(pack, row, inside)
            filled += 200_000

    def kept(self) -> Iterator[Kept]:
        """All of it, in the order of the paths."""
        for path, size in self.large():
            pieces = range(-(-size // CHUNK))
            parts = ((min(CHUNK, size - number * CHUNK), _digest(path, number)) for number in pieces)
            yield _file(path, size), joined(parts), b""
        for number in range(self._files):
            yield _file(b"files/%08d.py" % number, SMALL_BYTES), _digest(b"small", number), b""


def _pack(index: Index) -> int:
    number = index.new_pack("main", f"1-{next(_packs):032x}")
    index.sealed(number, TARGET)
    return number


def _digest(of: bytes, number: int) -> bytes:
    from blake3 import blake3

    return blake3(of + struct.pack("<Q", number)).digest(length=16)


def _file(path: bytes, size: int) -> Scanned:
    return Scanned(path, FILE, 0o644, EPOCH_NS, EPOCH_NS, size, 1, 1, size // 512)


def snapshot(store: LocalStore, made: Made, base: Manifest | None, known: Made | None, n: int) -> Manifest:
    """The manifest of `made`, put and read again."""
    index = Index(base)
    made.stored(index, known)
    manifest = index.manifest(made.kept(), version=0, run="main", generation=1)
    manifest = replace(manifest, checkpoints=made.facts)
    manifest = shared_out(manifest, base, Packs(store, "main", 1, SeededRng(n)))
    data = manifests.encode(manifest)
    store.put(f"manifest-{n}", data)
    return manifests.decode(store.get(f"manifest-{n}"), "it", fetch=whole(store))


def main() -> None:
    """See the module."""
    place = Path(sys.argv[1])
    files = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    saves = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    store = LocalStore(place, clock=SystemClock(), rng=SeededRng())
    before = Made(files, range(100, 100 * saves + 1, 100))
    after = Made(files, range(200, 100 * saves + 101, 100))
    manifest: Manifest | None = None

    def first() -> dict[str, int]:
        nonlocal manifest
        manifest = snapshot(store, before, None, None, 1)
        return {"files": len(manifest.entries), "blobs": len(manifest.blobs), "stored": _stored(store)}

    def second() -> dict[str, int]:
        nonlocal manifest
        was = _stored(store)
        manifest = snapshot(store, after, manifest, before, 2)
        return {"files": len(manifest.entries), "blobs": len(manifest.blobs), "stored": _stored(store) - was}

    def listed() -> dict[str, int]:
        objects = [store.get(f"manifest-{n}") for n in (1, 2)]
        named = [manifests.packs(data, "it", expected=manifests.address(data)) for data in objects]
        return {"packs": len({*named[0], *named[1]}), "dead": len(set(named[0]) - set(named[1]))}

    def planned() -> dict[str, int]:
        assert manifest is not None
        uses = Uses(
            tabled(manifest.entries), len(manifest.blobs), urgency(manifest.checkpoints), have=lambda _n, _p: False
        )
        return {"reads": len(merged(manifest.blobs, uses.blobs(), rank=uses.rank))}

    told("first", first)
    told("second", second)
    told("prune", listed)
    told("restore", planned)


def _stored(store: LocalStore) -> int:
    return sum(meta.size for meta in store.list(""))


if __name__ == "__main__":
    main()
