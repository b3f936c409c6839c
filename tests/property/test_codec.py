"""Codecs are exact: every bit comes back, whatever the numbers, lengths and bases; hostile input stays in bounds."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from spotwarp.errors import CorruptObject, UnsupportedFormat
from spotwarp.persistence import codec
from spotwarp.persistence.codec import planes
from spotwarp.persistence.codec.planes import Plan
from spotwarp.testing.hostile import bounded, mangled

Bytes = NDArray[np.uint8]
WIDTHS = (1, 2, 4, 8)
SIGN_AND_EXPONENT = {1: 0x78, 2: 0x7F80, 4: 0x7F800000, 8: 0x7FF0000000000000}
"""All ones in the exponent (fp8, bf16, fp32, fp64): infinities, and with any mantissa NaNs of every payload."""


def numbers(kind: str, width: int, size: int, seed: int) -> Bytes:
    """`size` bytes of one kind of numbers, `width` bytes each."""
    rng = np.random.default_rng(seed)
    count = size // width + 1
    noise = rng.integers(0, 256, count * width, np.uint8)
    bits = noise.view(f"<u{width}")
    exponent = bits.dtype.type(SIGN_AND_EXPONENT[width])
    match kind:
        case "noise":
            made = bits
        case "zeros":
            made = bits & 0
        case "constant":
            made = bits * 0 + bits[0]
        case "NaNs and infinities":
            made = bits | exponent
            made[::3] &= ~(exponent >> 4) & (exponent | bits.dtype.type(1 << (8 * width - 1)))
        case "denormals and both zeros":
            made = bits & ~exponent
            made[::2] &= bits.dtype.type(1 << (8 * width - 1))
        case "weights" if width in (4, 8):
            made = (rng.standard_normal(count) * 0.02).astype(f"<f{width}")
        case "weights":
            wide = (rng.standard_normal(count) * 0.02).astype("<f4").view("<u4")
            made = (wide >> (32 - 8 * width)).astype(bits.dtype)
        case _:
            made = np.cumsum(rng.integers(-2, 3, count)).astype(bits.dtype)
    return np.ascontiguousarray(made).view(np.uint8)[:size]


KINDS = ("noise", "zeros", "constant", "NaNs and infinities", "denormals and both zeros", "weights", "counts")
sizes = st.one_of(st.integers(0, 100), st.integers(1000, 300_000))
seeds = st.integers(0, 2**32)


@given(
    st.sampled_from(KINDS), st.sampled_from(WIDTHS), st.sampled_from((0, *WIDTHS, 16)), sizes, seeds, st.integers(0, 3)
)
def test_what_is_coded_comes_back(kind: str, width: int, said: int, size: int, seed: int, at: int) -> None:
    """Also where the width that was said is wrong, and wherever in memory the bytes lie."""
    data = memoryview(np.concatenate([np.zeros(at, np.uint8), numbers(kind, width, size, seed)]))[at:]
    number, pieces = codec.encode(data, level=1, width=said)
    coded = b"".join(pieces)
    assert len(coded) <= size
    assert bytes(codec.decode(number, coded, size)) == data


@given(st.sampled_from(KINDS), st.sampled_from(KINDS), st.sampled_from(WIDTHS), sizes, seeds, st.booleans())
def test_what_is_coded_against_any_base_comes_back(
    kind: str, of_base: str, width: int, size: int, seed: int, near: bool
) -> None:
    base = numbers(of_base, width, size, seed)
    data = numbers(kind, width, size, seed + 1)
    if near:
        data = (base + numbers("counts", 1, size, seed + 2) % 3).astype(np.uint8)
    number, pieces = codec.encode(memoryview(data), level=1, width=width, base=memoryview(base))
    coded, out = b"".join(pieces), bytearray(base)
    assert len(coded) <= size
    assert bytes(codec.decode(number, coded, size, base.tobytes())) == data.tobytes()
    assert bytes(codec.decode(number, coded, size, out, out=memoryview(out))) == data.tobytes()


def plans(width: int) -> Iterator[Plan]:
    for mask in range(1 << min(width, 3)):
        coded = tuple(bool(mask >> n & 1) for n in range(min(width, 3))) + (False,) * (width - 3)
        for low in (0, 2, 4):
            if low <= width // 2 and not any(coded[width - low :]):
                yield Plan(width, coded, low, 0.0)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("with_base", [False, True])
def test_every_plan_is_exact(width: int, with_base: bool) -> None:
    """Not only those that samples would choose. What is coded has zeros enough to be kept."""
    data = numbers("weights", width, 300_005, 1)
    data[1000:-1000] = 0
    base = np.zeros_like(data) + 7 * (np.arange(len(data)) < 500).astype(np.uint8) if with_base else None
    tried = 0
    for how in plans(width):
        pieces = planes.encode(data, how, base)
        if pieces is not None:
            tried += 1
            coded = b"".join(pieces)
            assert bytes(planes.decode(coded, len(data), base if base is None else base.data)) == data.tobytes()
    assert tried > 0


@given(st.data())
def test_any_patch_gives_the_new_bytes(draw: st.DataObject) -> None:
    rng = np.random.default_rng(draw.draw(seeds))
    old = rng.integers(0, 256, draw.draw(st.integers(0, 90_000)), np.uint8)
    new = np.resize(old, draw.draw(st.integers(0, 110_000))) if len(old) else rng.integers(0, 256, 5000, np.uint8)
    new = new.copy()
    for at in draw.draw(st.lists(st.integers(0, max(0, len(new) - 1)), max_size=4)):
        new[at : at + 50] ^= 1
    before, after = codec.fingerprints(old.data), codec.fingerprints(new.data)
    pieces = codec.encode_patch(new.data, after, before, len(old), level=1)
    pages = [new[n : n + codec.PAGE].tobytes() != old[n : n + codec.PAGE].tobytes() for n in range(0, len(new), 4096)]
    assert (pieces is None) == (4 * sum(pages) > len(pages))
    if pieces is not None:
        coded = b"".join(pieces)
        assert len(coded) <= sum(pages) * codec.PAGE + 1 + (len(pages) + 7) // 8
        assert bytes(codec.decode(codec.PATCH, coded, len(new), old.data)) == new.tobytes()


# ---- hostile input -------------------------------------------------------------------------------------------------


def good_ones() -> Iterator[tuple[int, bytes, int, bytes | None]]:
    """Blobs of every codec: number, bytes, raw length, base."""
    for width in WIDTHS:
        data, base = numbers("weights", width, 40_003, 1), numbers("weights", width, 40_003, 1)
        base[::9] ^= 1
        number, pieces = codec.encode(data.data, level=1, width=width)
        yield number, b"".join(pieces), len(data), None
        number, pieces = codec.encode(data.data, level=1, width=width, base=base.data)
        yield number, b"".join(pieces), len(data), base.tobytes()
        new = data.copy()
        new[5000:5100] = 0
        prints = codec.fingerprints(new.data), codec.fingerprints(data.data)
        patch = codec.encode_patch(new.data, *prints, len(data), level=1)
        assert patch is not None
        yield codec.PATCH, b"".join(patch), len(data), data.tobytes()


def survives(number: int, data: bytes, raw: int, base: bytes | None) -> None:
    with contextlib.suppress(CorruptObject, UnsupportedFormat):
        assert memoryview(codec.decode(number, data, raw, base)).nbytes == raw


def test_the_good_ones_are_of_every_codec() -> None:
    assert {number for number, *_ in good_ones()} == {codec.PLANES, codec.DELTA, codec.PATCH}


def test_damaged_blobs_end_in_words_or_in_bytes_that_fail_their_hash() -> None:
    with bounded(seconds=20, memory=16 << 20):
        for seed, (number, good, raw, base) in enumerate(good_ones()):
            for data in mangled(good, seed, 60):
                survives(number, data, raw, base)
            for at in range(48):  # every bit of every header
                for bit in range(8):
                    survives(number, good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :], raw, base)
            for length in (0, 1, 2, 5, len(good) - 1):
                survives(number, good[:length], raw, base)
            for lie in (0, 1, raw - 1, raw + 1, 1 << 20):
                survives(number, good, lie, base)
            survives(number, good, raw, None)
            survives(number, good, raw, (base or b"")[:-1])
            for other in (codec.PLANES, codec.DELTA, codec.PATCH):
                survives(other, good, raw, base)


def test_planes_that_announce_more_than_they_may_are_refused_unread() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    hidden = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 28))
    for plane in (bomb, hidden):
        lie = struct.pack("<BBII", 2, 0, len(plane), len(plane)) + plane * 2
        with bounded(memory=1 << 20), pytest.raises(CorruptObject):
            codec.decode(codec.PLANES, lie, 10_000)
        with bounded(memory=1 << 20), pytest.raises(CorruptObject):
            codec.decode(codec.PATCH, bytes((codec.ZSTD, 0b111)) + plane, 10_000, bytes(10_000))


def test_a_patch_within_a_patch_is_refused() -> None:
    for inner in (codec.DELTA, codec.PATCH):
        with pytest.raises(CorruptObject):
            codec.decode(codec.PATCH, bytes((inner, 1)) + bytes(100), 100, bytes(100))
    with pytest.raises(UnsupportedFormat):
        codec.decode(codec.PATCH, bytes((77, 1)) + bytes(100), 100, bytes(100))
