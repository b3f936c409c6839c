"""Codecs: what was coded comes back, and what was not coded by us is an error within bounds."""

from __future__ import annotations

import os
import struct
import threading
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from spotwarp.errors import CorruptObject, UnsupportedFormat
from spotwarp.persistence.codec import (
    DELTA,
    PAGE,
    PATCH,
    PLANES,
    RAW,
    ZSTD,
    decode,
    encode,
    encode_patch,
    fingerprints,
    needs_base,
)
from spotwarp.persistence.codec.sample import SIZE, sample

MIB = 1 << 20


def coded_as(data: bytes | bytearray, **how: Any) -> tuple[int, bytes]:
    """What `encode` gives, in one piece."""
    codec, pieces = encode(data, **how)
    return codec, b"".join(pieces)


@given(st.binary(max_size=2000).flatmap(lambda part: st.integers(1, 300).map(lambda times: part * times)))
def test_what_is_coded_comes_back(data: bytes) -> None:
    codec, coded = coded_as(data, level=1)
    assert bytes(decode(codec, coded, len(data))) == data


def test_what_does_not_shrink_is_given_back_uncopied() -> None:
    for size in (0, 1, 1000, MIB):
        data = memoryview(bytearray(os.urandom(size)))
        codec, (same,) = encode(data, level=3)
        assert codec == RAW
        assert same is data


@pytest.mark.parametrize("at", [0, MIB])
def test_what_shrinks_at_the_start_or_in_the_middle_is_coded(at: int) -> None:
    data = bytearray(os.urandom(2 * MIB))
    data[at : at + MIB] = bytes(MIB)
    codec, coded = coded_as(data, level=1)
    assert codec != RAW
    assert len(coded) < 1.1 * MIB
    assert bytes(decode(codec, coded, len(data))) == data


def test_a_promising_start_does_not_buy_a_poor_whole() -> None:
    data = bytes(64 << 10) + os.urandom(4 * MIB)
    assert encode(data, level=1)[0] == RAW


@pytest.mark.parametrize(
    ("kind", "said", "most"), [("<f4", 4, 0.87), ("<f4", 0, 0.87), ("<f2", 2, 0.87), ("<f8", 0, 0.9)]
)
def test_weights_are_coded_in_planes(kind: str, said: int, most: float) -> None:
    data = (np.random.default_rng(1).standard_normal(MIB // 4) * 0.02).astype(kind).tobytes()
    for length in (len(data), len(data) - 13):
        codec, coded = coded_as(data[:length], level=1, width=said)
        assert codec == PLANES
        assert len(coded) < most * length


def test_a_float_of_sixteen_bits_is_told_from_one_of_thirty_two() -> None:
    wide = (np.random.default_rng(1).standard_normal(MIB // 4) * 0.02).astype("<f4")
    half = (wide.view("<u4") >> 16).astype("<u2")
    assert [coded_as(data.tobytes(), level=1)[1][0] for data in (wide, half)] == [4, 2]


@pytest.mark.parametrize("size", [10, SIZE, SIZE + 1, MIB + 3, 4 * MIB])
def test_a_sample_keeps_every_byte_of_a_number_in_its_place(size: int) -> None:
    found = sample((np.arange(size) % 8).astype(np.uint8), "a test's")
    assert found.nbytes == min(size, SIZE)
    assert np.array_equal(found, np.arange(len(found)) % 8)


def test_text_goes_to_zstd_also_as_a_tensor_of_bytes() -> None:
    words = [struct.pack("<Q", k * 0x9E3779B97F4A7C15 % 2**64).hex()[: 3 + k % 9].encode() for k in range(500)]
    data = b" ".join(words[k] for k in np.random.default_rng(1).zipf(1.3, 50_000) % 500)
    for width in (0, 1):
        codec, coded = coded_as(data, level=1, width=width)
        assert codec == ZSTD
        assert len(coded) < 0.5 * len(data)


@pytest.mark.parametrize("width", [0, 1, 2, 4, 8])
def test_what_is_constant_takes_next_to_nothing(width: int) -> None:
    for data in (bytes(4 * MIB), struct.pack("<d", 1.5) * (MIB // 2)):
        codec, coded = coded_as(data, level=1, width=width)
        assert len(coded) < 2000
        assert decode(codec, coded, len(data)) == data


@pytest.mark.parametrize(("kind", "width"), [("<f2", 2), ("<f4", 4), ("<f8", 8), ("i1", 1)])
def test_a_save_that_moved_little_is_coded_as_differences(kind: str, width: int) -> None:
    rng = np.random.default_rng(1)
    before = (rng.standard_normal(MIB // width) * 40).astype(kind)
    after = (before + rng.integers(-1, 2, len(before)) * (0 if kind == "i1" else 1e-4)).astype(kind)
    after[::50] += np.ones((), kind)
    base, data = before.tobytes(), after.tobytes()
    plain = coded_as(data, level=1, width=width)[1]
    for said in (width, 0):
        codec, coded = coded_as(data, level=1, width=said, base=base)
        assert codec == DELTA
        assert needs_base(codec)
        assert len(coded) < 0.95 * len(plain)
        assert decode(codec, coded, len(data), base) == data


def test_a_base_that_has_nothing_to_do_with_it_is_not_used() -> None:
    one, other = ((np.random.default_rng(n).standard_normal(MIB // 4)).astype("<f4").tobytes() for n in (1, 2))
    assert coded_as(one, level=1, width=4, base=other)[0] == PLANES
    with pytest.raises(ValueError, match="length"):
        encode(one, level=1, base=other[:-1])
    codec, coded = coded_as(one, level=1, width=4, base=one[:-4] + bytes(4))
    assert codec == DELTA
    for base in (None, one[:-1], one + b"x"):
        with pytest.raises(CorruptObject):
            decode(codec, coded, len(one), base)


def test_pieces_lie_elsewhere_than_the_data() -> None:
    """A pack's next place holds the data when the pieces are put there."""
    rng = np.random.default_rng(1)
    data = bytearray((rng.standard_normal(MIB // 4) * 0.02).astype("<f4").tobytes() + b"odd")
    base = bytes(data[:100]) + bytes(len(data) - 100)
    for kwargs in ({"width": 4}, {"width": 4, "base": bytes(data[:-4]) + bytes(4)}, {"width": 8, "base": base}):
        kept = bytes(data)
        codec, pieces = encode(data, level=1, **kwargs)
        assert codec != RAW
        data[:] = bytes(len(data))
        assert decode(codec, b"".join(pieces), len(data), kwargs.get("base")) == kept
        data[:] = kept


def test_what_is_decoded_lies_where_it_shall() -> None:
    data = (np.random.default_rng(1).standard_normal(MIB // 4) * 0.02).astype("<f4").tobytes()
    codec, coded = coded_as(data, level=1)
    out = bytearray(len(data))
    decode(codec, coded, len(data), out=memoryview(out))
    assert out == data
    with pytest.raises(ValueError, match="no place"):
        decode(codec, coded, len(data), out=memoryview(out)[1:])


def test_a_patch_holds_the_pages_that_changed() -> None:
    old = os.urandom(100 * PAGE)
    new = old[: 3 * PAGE] + os.urandom(PAGE) + old[4 * PAGE :] + b"appended"
    pieces = encode_patch(new, fingerprints(new), fingerprints(old), len(old), level=1)
    assert pieces is not None
    coded = b"".join(pieces)
    assert len(coded) == 1 + 13 + PAGE + 8
    assert decode(PATCH, coded, len(new), old) == new
    with pytest.raises(CorruptObject):
        decode(PATCH, coded, len(new), old[: 50 * PAGE])


def test_a_patch_that_speaks_of_pages_beyond_its_end_is_damaged() -> None:
    good = bytes((RAW, 0b010)) + bytes(PAGE)
    assert decode(PATCH, good, 3 * PAGE, os.urandom(PAGE) * 3)
    for bits in (0b1010, 0b10000010):
        with pytest.raises(CorruptObject):
            decode(PATCH, bytes((RAW, bits)) + bytes(PAGE), 3 * PAGE, bytes(3 * PAGE))


def test_a_patch_holds_what_lies_beyond_its_base_whatever_the_fingerprints_say() -> None:
    data = os.urandom(100 * PAGE)
    known = fingerprints(data)
    pieces = encode_patch(data, known, known, 100 * PAGE - 1, level=1)
    assert pieces is not None
    assert decode(PATCH, b"".join(pieces), len(data), data[:-1]) == data


def test_a_patch_of_more_than_a_quarter_is_none() -> None:
    old = os.urandom(100 * PAGE)
    for pages, gain in ((25, True), (26, False)):
        new = bytes(pages * PAGE) + old[pages * PAGE :]
        assert (encode_patch(new, fingerprints(new), fingerprints(old), len(old), level=1) is not None) == gain


def test_an_unknown_codec_asks_for_an_upgrade() -> None:
    with pytest.raises(UnsupportedFormat):
        decode(77, b"x", 1)


@pytest.mark.parametrize("raw", [0, 1, 99, 101, 1 << 40])
def test_a_wrong_length_is_corrupt(raw: int) -> None:
    coded = zstandard.ZstdCompressor().compress(bytes(100))
    with pytest.raises(CorruptObject):
        decode(ZSTD, coded, raw)
    with pytest.raises(CorruptObject):
        decode(RAW, bytes(100), raw)


@pytest.mark.parametrize("raw", [10, 1 << 20])
def test_a_frame_that_hides_its_size_is_bounded_by_the_recorded_one(raw: int) -> None:
    bomb = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 * MIB))
    with pytest.raises(CorruptObject):
        decode(ZSTD, bomb, raw)


def test_damage_is_corrupt() -> None:
    good = zstandard.ZstdCompressor(write_checksum=True).compress(os.urandom(1000) * 10)
    for bad in (b"", b"junk", good[:-1], good[:20], good + b"x"):
        with pytest.raises(CorruptObject):
            decode(ZSTD, bad, 10_000)


def test_threads_do_not_share_coders() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        data = bytes([seed]) * (300_000 + seed) + os.urandom(1000)
        for _ in range(20):
            codec, coded = coded_as(data, level=1)
            if bytes(decode(codec, coded, len(data))) != data:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
