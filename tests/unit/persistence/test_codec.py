"""Codecs: what was coded comes back, and what was not coded by us is an error within bounds."""

from __future__ import annotations

import os
import struct
import threading
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from spotwarp.errors import CorruptObject, UnsupportedFormat
from spotwarp.persistence.codec import RAW, ZSTD, decode, encode

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
    assert codec == ZSTD
    assert len(coded) < 1.1 * MIB
    assert bytes(decode(codec, coded, len(data))) == data


def test_a_promising_start_does_not_buy_a_poor_whole() -> None:
    data = bytes(64 << 10) + os.urandom(4 * MIB)
    assert encode(data, level=1)[0] == RAW


def test_weights_shrink() -> None:
    data = b"".join(struct.pack("<f", 0.01 * (k * 2654435761 % 1000 - 500)) for k in range(MIB // 4))
    codec, coded = coded_as(data, level=1)
    assert codec == ZSTD
    assert len(coded) < 0.95 * len(data)


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
