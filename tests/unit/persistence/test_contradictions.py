"""Manifests whose parts contradict each other, or name what cannot be: refused before anything is made of them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import zstandard

from spotwarp.clock import SystemClock
from spotwarp.errors import CorruptObject, SpotWarpError
from spotwarp.persistence import codec
from spotwarp.persistence.envelope import Kind, digest, seal
from spotwarp.persistence.layout import pack_key
from spotwarp.persistence.manifest import (
    FILE,
    Blob,
    Entry,
    Extent,
    Manifest,
    PackRef,
    Shared,
    builder,
    decode,
    encode,
)
from spotwarp.persistence.pack import PackBuilder
from spotwarp.persistence.reads import whole
from spotwarp.persistence.restore import FetchOptions, fetch
from spotwarp.testing.hostile import bounded
from spotwarp.testing.stores import MemoryStore

ID = "1-" + "0" * 32
Part = tuple[Sequence[PackRef], Sequence[Blob], Sequence[Entry]]
"""A segment as it is written: packs, blobs, entries."""


def coded(what: object) -> bytes:
    return zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(what))


def head(packs: Sequence[PackRef], places: Sequence[Sequence[object]], *inline: bytes) -> bytes:
    data = coded([0, "main", 1, packs, places, [], []])
    return seal(Kind.MANIFEST, struct.pack("<I", len(data)), data, *inline)


def made(ref: PackRef, *parts: Part) -> bytes:
    inline = [coded(part) for part in parts]
    places = [(part[2][0].path, len(part[2]), len(data)) for part, data in zip(parts, inline, strict=True)]
    return head((ref,), places, *inline)


def file(path: bytes, size: int, blob: int = 0, offset: int = 0) -> Entry:
    return Entry(path, FILE, 0o644, 0, size, (Extent(offset, 100, blob, 0),))


class Bucket:
    """A store with one pack of two blobs, `a` and `b`, of 100 bytes each."""

    def __init__(self) -> None:
        self.store, pack = MemoryStore(), PackBuilder()
        rows = [pack.add(digest(text), codec.RAW, len(text), text) for text in (b"A" * 100, b"B" * 100)]
        with pack.seal() as data:
            self.store.put(pack_key("main", ID), bytes(data))
            self.ref = PackRef("main", ID, len(data))
        self.a, self.b = (Blob(0, row.offset, row.stored, codec.RAW, row.raw, row.digest) for row in rows)

    def restore(self, data: bytes, into: Path) -> None:
        found = decode(data, "it", fetch=whole(self.store))
        options = FetchOptions(workers=1, sync=False)
        fetch(store=self.store, manifest=found, staging=into, clock=SystemClock(), options=options)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def test_what_agrees_is_restored(bucket: Bucket, tmp_path: Path) -> None:
    blobs = (bucket.a, bucket.b)
    parts = ((bucket.ref,), blobs, [file(b"a", 100)]), ((bucket.ref,), blobs[::-1], [file(b"b", 100)])
    bucket.restore(made(bucket.ref, *parts), tmp_path / "s")
    assert sorted(path.read_bytes() for path in (tmp_path / "s").rglob("?")) == [b"A" * 100, b"B" * 100]


@pytest.mark.parametrize(
    "change", [{"raw": 1000}, {"digest": b"x" * 16}, {"stored": 99}, {"codec": codec.ZSTD}, {"base": 1}], ids=str
)
def test_two_parts_that_say_different_things_of_a_blob(bucket: Bucket, change: dict[str, object]) -> None:
    other = msgspec.structs.replace(bucket.a, **change)
    one: Part = (bucket.ref,), (bucket.a, bucket.b), [file(b"a", 100)]
    two: Part = (bucket.ref,), (other, bucket.b), [file(b"b", 100)]
    for parts in (one, two), ((*two[:2], one[2]), (*one[:2], two[2])):
        with pytest.raises(CorruptObject):
            decode(made(bucket.ref, *parts), "it")
    with pytest.raises(CorruptObject):
        decode(made(bucket.ref, ((bucket.ref,), (bucket.a, bucket.b, other), one[2])), "it")


def test_bases_that_point_at_each_other(bucket: Bucket) -> None:
    based = msgspec.structs.replace(bucket.b, base=0), msgspec.structs.replace(bucket.a, base=0)
    one: Part = (bucket.ref,), (bucket.a, based[0]), [file(b"a", 100, 1)]
    two: Part = (bucket.ref,), (bucket.b, based[1]), [file(b"b", 100, 1)]
    with pytest.raises(CorruptObject):
        decode(made(bucket.ref, one, two), "it")


@pytest.mark.parametrize("paths", [(b"a", b"a"), (b"b", b"a"), (b"",)], ids=str)
def test_a_path_is_there_once_and_in_its_place(bucket: Bucket, paths: tuple[bytes, ...]) -> None:
    parts = [((bucket.ref,), (bucket.a,), [file(path, 100)]) for path in paths]
    with pytest.raises(CorruptObject):
        decode(made(bucket.ref, *parts), "it")
    with pytest.raises(CorruptObject):
        decode(made(bucket.ref, ((bucket.ref,), (bucket.a,), [file(path, 100) for path in paths])), "it")


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_numbers_that_no_system_has(bucket: Bucket, tmp_path: Path, number: int) -> None:
    ref, entry = bucket.ref, file(b"a", 100)
    blobs = [msgspec.structs.replace(bucket.a, **{name: number}) for name in ("offset", "stored", "raw", "codec")]
    replace = msgspec.structs.replace
    entries = [file(b"a", number, offset=number - 200), replace(entry, mtime_ns=number)]
    hostile = [
        *(made(ref, ((ref,), (blob,), [entry])) for blob in blobs),
        *(made(ref, ((ref,), (bucket.a,), [one])) for one in entries),
        made(replace(ref, size=number), ((replace(ref, size=number),), (bucket.a,), [entry])),
    ]
    for data in hostile:
        with pytest.raises(SpotWarpError):
            bucket.restore(data, tmp_path / "s")


def test_a_blob_that_reaches_beyond_its_pack(bucket: Bucket) -> None:
    far = msgspec.structs.replace(bucket.a, offset=bucket.ref.size - 99)
    with pytest.raises(CorruptObject):
        decode(made(bucket.ref, ((bucket.ref,), (far,), [file(b"a", 100)])), "it")


def test_a_pack_that_is_named_twice() -> None:
    refs = [PackRef("main", ID, size) for size in (100, 101)]
    with pytest.raises(CorruptObject):
        decode(head(refs, []), "it")


@pytest.mark.parametrize("step", [0, 1], ids=["the same", "overlapping"])
def test_parts_that_lie_in_one_place_are_not_fetched(step: int) -> None:
    """A manifest of some hundred bytes, and a pack with a few megabytes, must not take gigabytes."""
    size, ref = 1 << 20, PackRef("main", ID, 4 << 20)
    places = [(b"%03d" % n, 1, size, 0, 8 + n * step, size, bytes(16)) for n in range(200)]

    def never(*_: object) -> list[bytes]:
        raise AssertionError("it was fetched")

    with bounded(memory=1 << 20), pytest.raises(CorruptObject):
        decode(head((ref,), places), "it", fetch=never)


@pytest.mark.parametrize("place", [(9, 10), (10, 9), (1, 0), (10, 1 << 40)], ids=str)
def test_a_part_of_an_impossible_length_is_not_fetched(place: tuple[int, int]) -> None:
    length, stored = place
    places = [(b"a", 1, length, 0, 95 if stored == 10 else 8, stored, bytes(16))]
    with pytest.raises(CorruptObject):
        decode(head((PackRef("main", ID, 100),), places), "it", fetch=lambda *_: [b""])


def test_a_shared_part_that_is_another_one_is_written_anew() -> None:
    """What is said to lie in a pack is taken for it by its digest, not by where it begins."""
    entries = builder()
    entries.add(Entry(b"a", FILE, 0o644, 0, 0))
    other = Shared(b"a", PackRef("main", ID, 100), 8, 20, b"x" * 16)
    manifest = Manifest(0, "main", 1, (), (), entries.table(), shared=(other,))
    found = decode(encode(manifest), "it")
    assert found.entries == manifest.entries
    assert found.shared == ()
