"""Reads: few requests, bounded in size, in the order asked for."""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwarp.errors import CorruptObject, UnsupportedFormat
from spotwarp.persistence.envelope import digest
from spotwarp.persistence.layout import pack_key
from spotwarp.persistence.manifest import NO_BASE, Blob, PackRef
from spotwarp.persistence.reads import (
    BASE_RAW,
    GAP,
    MAX_RAW,
    READ_SIZE,
    Bases,
    Read,
    based,
    decoded,
    fetched,
    merged,
)
from spotwarp.testing.stores import MemoryStore


def blob(pack: int, offset: int, stored: int) -> Blob:
    return Blob(pack, offset, stored, 0, stored, b"")


def test_neighbours_are_merged_up_to_the_size_of_a_read() -> None:
    blobs = [blob(0, 8 + at * (4 << 20), 4 << 20) for at in range(5)]
    assert [read.blobs for read in merged(blobs, range(5))] == [(0, 1), (2, 3), (4,)]
    assert merged([blob(0, 8, READ_SIZE + 1)], [0]) == [Read(0, 8, READ_SIZE + 1, (0,))]


def test_small_gaps_are_read_through_large_ones_are_not() -> None:
    near, far = [blob(0, 8, 10), blob(0, 18 + GAP, 10)], [blob(0, 8, 10), blob(0, 19 + GAP, 10)]
    assert merged(near, [1, 0]) == [Read(0, 8, 20 + GAP, (0, 1))]
    assert merged(far, [1, 0]) == [Read(0, 8, 10, (0,)), Read(0, 19 + GAP, 10, (1,))]


def test_rank_goes_before_place() -> None:
    blobs = [blob(0, 8, 10), blob(0, 18, 10), blob(1, 8, 10)]
    assert [read.blobs for read in merged(blobs, range(3), rank=[1, 0, 0].__getitem__)] == [(1,), (2,), (0,)]


places = st.builds(blob, st.integers(0, 2), st.integers(8, 40 << 20), st.integers(0, 9 << 20))


@given(st.lists(places, max_size=30), st.data())
def test_every_blob_is_in_one_read_and_no_read_is_too_large(blobs: list[Blob], data: st.DataObject) -> None:
    wanted = data.draw(st.sets(st.sampled_from(range(len(blobs))))) if blobs else set()
    reads = merged(blobs, wanted)
    assert sorted(index for read in reads for index in read.blobs) == sorted(wanted)
    for read in reads:
        inside = [blobs[index] for index in read.blobs]
        assert {one.pack for one in inside} == {read.pack}
        assert read.start == min(one.offset for one in inside)
        assert read.start + read.length == max(one.offset + one.stored for one in inside)
        assert read.length <= READ_SIZE or len(inside) == 1


@st.composite
def coded_against_others(draw: st.DrawFn) -> list[Blob]:
    roots = draw(st.lists(places, min_size=1, max_size=15))
    bases = draw(st.lists(st.sampled_from(range(len(roots))), max_size=15))
    return [*roots, *(msgspec.structs.replace(draw(places), base=base) for base in bases)]


@given(coded_against_others(), st.data())
def test_a_base_is_read_once_right_before_those_that_need_it(blobs: list[Blob], data: st.DataObject) -> None:
    wanted = data.draw(st.sets(st.sampled_from(range(len(blobs)))))
    ranks = data.draw(st.lists(st.integers(0, 2), min_size=len(blobs), max_size=len(blobs)))
    reads = based(blobs, wanted, rank=ranks.__getitem__)
    first = [index for read in reads for index in read.blobs]
    after = [index for read in reads for part in read.after for index in part.blobs]
    assert sorted(after) == sorted(index for index in wanted if blobs[index].base != NO_BASE)
    assert len(first) == len(set(first))
    assert set(first) == {index for index in wanted if blobs[index].base == NO_BASE} | {blobs[i].base for i in after}
    urgency = []
    for read in reads:
        inside = {index for part in read.after for index in part.blobs}
        assert {blobs[index].base for index in inside} <= set(read.blobs)
        held = [blobs[index].raw for index in read.blobs if index in {blobs[i].base for i in inside}]
        assert sum(held) <= BASE_RAW or len(held) == 1
        urgency.append(min(ranks[index] for index in wanted & {*read.blobs, *inside}))
    assert urgency == sorted(urgency)


def test_what_is_coded_against_another_is_decoded_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    base, other = os.urandom(100), os.urandom(100)
    store = MemoryStore()
    store.put(pack_key("main", "1-a"), b"headhead" + base)
    store.put(pack_key("main", "1-b"), b"headhead" + bytes(a ^ b for a, b in zip(base, other, strict=True)))

    def xor(codec: int, data: bytes, raw_length: int, base: bytes | None = None) -> bytes:
        return bytes(data) if base is None else bytes(a ^ b for a, b in zip(data, base, strict=True))

    monkeypatch.setattr("spotwarp.persistence.codec.decode", xor)
    packs = [PackRef("main", "1-a", 108), PackRef("main", "1-b", 108), PackRef("main", "1-gone", 108)]
    blobs = [Blob(0, 8, 100, 0, 100, digest(base)), Blob(1, 8, 100, 3, 100, digest(other), 0)]
    (read,) = based(blobs, [1])
    assert dict(fetched(store, packs, read, blobs)) == {0: base, 1: other}
    (read,) = based([blobs[0], msgspec.structs.replace(blobs[1], pack=2)], [0, 1])
    found = dict(fetched(store, packs, read, [blobs[0], msgspec.structs.replace(blobs[1], pack=2)]))
    assert found[0] == base
    assert isinstance(found[1], CorruptObject)
    assert "1-gone is missing" in found[1].message
    damaged = [msgspec.structs.replace(blobs[0], digest=bytes(16)), blobs[1]]
    for _, problem in fetched(store, packs, read, damaged):
        assert isinstance(problem, CorruptObject), "nothing is decoded with a base that fails its hash"


def test_one_bad_blob_costs_no_other() -> None:
    good = os.urandom(100)
    store = MemoryStore()
    store.put("p", b"headhead" + good * 5)

    def at(number: int, **changed: object) -> Blob:
        fields = {"codec": 0, "raw": 100, "digest": digest(good)} | changed
        return Blob(0, 8 + 100 * number, 100, fields["codec"], fields["raw"], fields["digest"])  # type: ignore[arg-type]

    blobs = [at(0), at(1, digest=bytes(16)), at(2, codec=250), at(3, raw=MAX_RAW + 1), at(4), at(5)]
    (read,) = merged(blobs, range(6))
    found = dict(decoded(store, "p", read, blobs, Bases(store, (), blobs).of))  # the last reaches beyond the object
    assert found[0] == found[4] == good
    assert isinstance(found[2], UnsupportedFormat)
    for bad, why in ((1, "fails its hash"), (3, "announces"), (5, "too few")):
        error = found[bad]
        assert isinstance(error, CorruptObject)
        assert why in error.message
