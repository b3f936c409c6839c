"""Whatever a file holds, its pieces cover it: any bytes, any truncation, any damage, in bounded time and memory."""

from __future__ import annotations

import io
import os
import struct
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwarp.persistence.cuts import CHUNK, Cuts, cuts, lined_up
from spotwarp.persistence.cuts.covering import Tensor, cover
from spotwarp.testing.checkpoints import safetensors_file, torch_file
from spotwarp.testing.hostile import JSON_SPECIALS, bounded, mangled

ROUNDS = 300


def of(content: bytes, size: int | None = None) -> Cuts:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        return cuts(file.fileno(), len(content) if size is None else size)


def covers(found: Cuts, size: int) -> None:
    assert found.size == size
    at = 0
    for number, start in enumerate(found.starts):
        assert start == at
        assert 1 <= found.length(number) <= CHUNK
        assert found.width(number) in (0, 1, 2, 4, 8)
        at += found.length(number)
    assert at == size
    assert lined_up(found, found).keys() >= {n for n in range(len(found)) if found.key(n)}


def numpy_file(*, archive: bool) -> bytes:
    out = io.BytesIO()
    array = np.arange(1500, dtype=np.float32)
    if archive:
        np.savez(out, a=array, b=array)
    else:
        np.save(out, array)
    return out.getvalue()


STORAGE = b"(X\x07\0\0\0storagectorch\nFloatStorage\nq\1X\1\0\0\0" + b"0X\x03\0\0\0cpuM\xdc\x05tQ"
SMALL_TORCH = torch_file(b"w" * 6000, dumped=b"\x80\x02" + STORAGE + b".")
FILES = {
    "safetensors": safetensors_file({"a": b"1" * 6000, "b": b"2" * 50, "c": b""}),
    "torch": SMALL_TORCH,
    "several": SMALL_TORCH * 3,
    "npy": numpy_file(archive=False),
    "npz": numpy_file(archive=True),
}


@given(st.binary(max_size=200), st.integers(-50, 3 * CHUNK))
def test_any_bytes_and_any_size(content: bytes, more: int) -> None:
    for begin in (b"", b"PK\3\4", b"\x93NUMPY\1\0", struct.pack("<Q", len(content)) + b"{"):
        size = max(0, len(begin + content) + more)
        covers(of(begin + content, size), size)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10_000), st.integers(1, 40_000) | st.integers(1, 3 * CHUNK), st.sampled_from((0, 1, 2, 4, 8))
        ),
        max_size=40,
    ),
    st.integers(0, 2 * CHUNK),
)
def test_any_tensors(laid: list[tuple[int, int, int]], tail: int) -> None:
    at, tensors = 0, []
    for number, (gap, length, width) in enumerate(laid):
        tensors.append(Tensor(at + gap, length, width, f"t{number}"))
        at += gap + length
    found = cover(at + tail, tensors)
    covers(found, at + tail)
    # Every element of a large tensor lies whole in one piece, in step with its beginning.
    for tensor in tensors:
        if tensor.length >= CHUNK:
            first = found.starts.index(tensor.start)
            assert (found.key(first), found.width(first)) == (f"{tensor.name}+0", tensor.width)


@pytest.mark.parametrize("kind", sorted(FILES))
def test_any_truncation(kind: str) -> None:
    good = FILES[kind]
    assert any(of(good).keys)
    for size in {*range(0, len(good), 61), *range(0, 600, 3), *range(len(good) - 200, len(good), 2)}:
        covers(of(good[:size]), size)


@pytest.mark.parametrize("kind", sorted(FILES))
def test_any_damage(kind: str) -> None:
    for data in mangled(FILES[kind], 5, ROUNDS):
        covers(of(data), len(data))


@pytest.mark.parametrize("kind", sorted(FILES))
def test_any_flipped_bit_of_a_header(kind: str) -> None:
    good = FILES[kind]
    places = [n for n in range(len(good)) if good[n : n + 8] != good[n + 1 : n + 9]][:1500:5]  # not amid the elements
    for at in places:
        data = bytearray(good)
        data[at] ^= 1 << at % 8
        covers(of(bytes(data)), len(data))


@pytest.mark.parametrize("text", JSON_SPECIALS, ids=[str(n) for n in range(len(JSON_SPECIALS))])
def test_headers_that_broke_others(text: bytes) -> None:
    data = struct.pack("<Q", len(text)) + text + bytes(100)
    with bounded(seconds=2, memory=64 << 20):
        covers(of(data), len(data))


def test_a_large_header_costs_little() -> None:
    """A quarter of the largest that is read."""
    entry = b'"%09d":{"dtype":"F32","shape":[],"data_offsets":[0,0]},'
    text = b"{" + b"".join(entry % n for n in range((1 << 20) // len(entry)))[:-1] + b"}"
    with bounded(seconds=5, memory=40 << 20):
        covers(of(struct.pack("<Q", len(text)) + text), 8 + len(text))


def test_a_header_that_is_too_large_is_not_read() -> None:
    data = struct.pack("<Q", 5 << 20) + b"{" + b" " * (6 << 20)
    with bounded(seconds=1, memory=1 << 20):
        covers(of(data), len(data))


def test_a_pickle_of_many_steps_is_not_read_to_its_end() -> None:
    data = torch_file(b"", dumped=b"\x80\x02" + b"(" * (3 << 20) + b".")
    with bounded(seconds=5, memory=16 << 20):
        covers(of(data), len(data))


def test_a_zip_that_announces_more_than_there_is() -> None:
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, 2**32 - 2, 0, 0)
    for data in (b"PK\3\4" + end, b"PK\3\4" + b"PK\5\6" * 5000, SMALL_TORCH[: -len(end)] + end):
        with bounded(seconds=2, memory=16 << 20):
            covers(of(data), len(data))


def test_a_sparse_file_of_three_hundred_gigabytes_costs_nothing() -> None:
    with tempfile.TemporaryFile() as file:
        os.truncate(file.fileno(), 300 << 30)
        with bounded(seconds=1, memory=1 << 20):
            assert len(cuts(file.fileno(), 300 << 30)) == 300 << 8
