"""Packs: a table at the end that says exactly what lies before it, or an error."""

from __future__ import annotations

import os

import pytest

from spotwarp.errors import CorruptObject, ObjectMissing, UnsupportedFormat
from spotwarp.persistence.pack import FOOTER_SIZE, TARGET, PackBuilder, parse_pack, read_trailer
from spotwarp.testing.stores import FaultyStore, MemoryStore

KEY = "runs/main/packs/1-aa"


def name(k: int) -> bytes:
    return k.to_bytes(16, "big")


def built(count: int = 3) -> bytes:
    pack = PackBuilder(1 << 20)
    for k in range(count):
        pack.add(name(k), k % 2, 10 * k, bytes([k % 256]) * (k % 50))
    return bytes(pack.seal())


def stored(data: bytes) -> MemoryStore:
    store = MemoryStore()
    store.put(KEY, data)
    return store


def test_the_table_names_every_blob_where_it_lies() -> None:
    data = built()
    rows = read_trailer(stored(data), KEY, len(data))
    assert [(row.digest, row.codec, row.raw) for row in rows] == [(name(0), 0, 0), (name(1), 1, 10), (name(2), 0, 20)]
    assert [data[row.offset : row.offset + row.stored] for row in rows] == [b"", b"\1", b"\2\2"]
    assert parse_pack(data, "x") == rows


def test_a_common_pack_takes_one_request_and_a_long_table_two() -> None:
    for count, requests in ((3, 1), (5000, 2)):
        data = built(count)
        store = FaultyStore(stored(data))
        assert len(read_trailer(store, KEY, len(data))) == count
        assert store.count("get get_range head list") == requests


def test_bytes_written_in_place_are_the_blob() -> None:
    pack = PackBuilder(1 << 20)
    with pack.space(5) as space:
        space[:] = b"hello"
    row = pack.keep(name(1), 0, 5, 5)
    data = pack.seal()
    assert bytes(data[row.offset : row.offset + row.stored]) == b"hello"
    assert parse_pack(data, "x") == [row]


def test_a_reset_pack_keeps_nothing_of_the_last() -> None:
    pack = PackBuilder(1 << 20)
    pack.add(name(1), 0, 100, os.urandom(100))
    first = bytes(pack.seal())
    pack.reset()
    pack.add(name(2), 0, 3, b"abc")
    second = bytes(pack.seal())
    assert [row.digest for row in parse_pack(second, "x")] == [name(2)]
    assert len(second) < len(first)


def test_a_full_pack_is_never_larger_than_its_capacity() -> None:
    pack = PackBuilder(1 << 20)
    k = 0
    while pack.fits(1000):
        pack.add(name(k), 1, 1000, bytes(1000))
        k += 1
    assert (1 << 20) - 1000 - 200 * k < len(pack.seal()) <= 1 << 20
    with pytest.raises(ValueError, match="seal"):
        pack.add(name(k), 0, 1000, bytes(1000))


def test_a_blob_larger_than_the_capacity_gets_a_pack_of_its_own() -> None:
    pack = PackBuilder(1000)
    assert pack.fits(5000)
    pack.add(name(1), 0, 5000, b"x" * 5000)
    assert not pack.fits(1)
    assert parse_pack(pack.seal(), "x")[0].stored == 5000


def test_the_target_leaves_room_for_the_table() -> None:
    assert PackBuilder().fits(TARGET - 1024)


@pytest.mark.parametrize("cut", [1, 8, FOOTER_SIZE, FOOTER_SIZE + 1, 80])
def test_a_truncated_pack_is_corrupt(cut: int) -> None:
    data = built()[:-cut]
    with pytest.raises(CorruptObject):
        read_trailer(stored(data), KEY, len(data))
    with pytest.raises(CorruptObject):
        parse_pack(data, "x")


def test_any_flipped_bit_of_table_or_footer_is_seen() -> None:
    good = built()
    table = len(good) - FOOTER_SIZE - 60
    for at in range(table, len(good)):
        data = bytearray(good)
        data[at] ^= 4
        with pytest.raises(CorruptObject):
            read_trailer(stored(bytes(data)), KEY, len(data))
        with pytest.raises(CorruptObject):
            parse_pack(data, "x")


def test_a_size_that_is_not_the_objects_is_corrupt() -> None:
    data = built()
    for size in (0, 10, len(data) - 1, len(data) + 1):
        with pytest.raises(CorruptObject):
            read_trailer(stored(data), KEY, size)


def test_a_newer_pack_asks_for_an_upgrade() -> None:
    data = bytearray(built())
    data[5] = 9
    data[-20] ^= 1
    with pytest.raises(UnsupportedFormat):
        read_trailer(stored(bytes(data)), KEY, len(data))
    with pytest.raises(UnsupportedFormat):
        parse_pack(data, "x")


def test_a_missing_pack_is_missing() -> None:
    with pytest.raises(ObjectMissing):
        read_trailer(MemoryStore(), KEY, 1000)
