"""Codec 2: numbers taken apart into byte planes, each entropy-coded where that pays.

The upper byte of a float is sign and exponent: few values, and they shrink; the lower bytes are noise, and are left
alone. A plane is coded by zstd set up to do nothing but Huffman coding, which is two to three times as fast here as its
first level, and smaller. Layout: docs/format.md, section 6.1. Never hashes, never trusts a length that it reads.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from spotwarp.errors import CorruptObject
from spotwarp.persistence.codec import zigzag, zstd
from spotwarp.persistence.codec.scratch import Bytes, scratch
from spotwarp.persistence.store.api import Buffer

if TYPE_CHECKING:
    import zstandard

WIDTHS: Final = (1, 2, 4, 8)
_BLOCK: Final = 256 << 10
"""Bytes taken apart at a time: they stay in a core's own cache."""
_PLANE_WORTH: Final = 0.97
"""A plane is coded if that saves more than 3 % of it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How numbers of `width` bytes are coded: which of their bytes (highest first), how many low ones stay together."""

    width: int
    coded: tuple[bool, ...]
    low: int
    ratio: float
    """What the sample came to, as a part of what it was."""


class _PerThread(threading.local):
    compressor: zstandard.ZstdCompressor | None = None


_mine = _PerThread()


def plan(sample: Bytes, width: int) -> Plan:
    """How numbers like these are best coded: every plane of the sample is tried."""
    count = sample.nbytes // width
    lanes = sample[: count * width].reshape(count, width)
    size = 0
    coded = []
    for lane in reversed(range(width)):
        plane = np.ascontiguousarray(lanes[:, lane])
        shrunk = len(_squeeze(plane)) if count else 0
        coded.append(shrunk < count * _PLANE_WORTH)
        size += shrunk if coded[-1] else count
    return Plan(width, tuple(coded), _left_together(coded), size / max(1, count * width))


def encode(data: Bytes, how: Plan, base: Bytes | None = None) -> Sequence[Buffer] | None:
    """The pieces of the coded `data`, or None when it does not shrink enough.

    With a `base`, of the same length, it is the differences to its numbers that are coded. No piece lies in `data`.
    """
    width, low = how.width, how.low
    count = data.nbytes // width
    end = count * width
    if width == 1 and base is None:
        planes, together = [data], None
    else:
        planes, together = _taken_apart(data[:end], width, low, None if base is None else base[:end])
    lengths: list[int] = []
    pieces: list[Buffer] = [b""]
    for plane, wanted in zip(planes, how.coded, strict=False):
        squeezed = _squeeze(plane) if wanted else b""
        paid = 0 < len(squeezed) < count * _PLANE_WORTH
        lengths.append(len(squeezed) if paid else 0)
        pieces.append(squeezed if paid else plane.data)
    pieces[0] = struct.pack(f"<BB{len(lengths)}I", width, low, *lengths)
    if together is not None:
        pieces.append(together.data)
    pieces.append(data[end:].tobytes())
    stored = sum(memoryview(piece).nbytes for piece in pieces)
    return pieces if stored <= data.nbytes * zstd.WORTH else None


def decode(data: Buffer, raw_length: int, base: Buffer | None = None, out: Buffer | None = None) -> memoryview:
    """The `raw_length` bytes that were coded, in `out` (of that length; it may be `base`) or in memory of their own.

    Raises `CorruptObject`. Nothing larger than `raw_length` is allocated.
    """
    coded = np.frombuffer(data, np.uint8)
    width, low, lengths = _header(coded)
    count = raw_length // width
    end, at = count * width, 2 + 4 * len(lengths)
    stored = sum(length or count for length in lengths) + count * low + raw_length - end
    if coded.nbytes != at + stored:
        raise CorruptObject(f"coded planes have {coded.nbytes} bytes where their header announces {at + stored}")
    planes = []
    for length in lengths:
        plane = coded[at : at + (length or count)]
        at += plane.nbytes
        planes.append(np.frombuffer(zstd.decode(plane.data, count), np.uint8) if length else plane)
    together = coded[at : at + count * low]
    result = np.empty(raw_length, np.uint8) if out is None else np.frombuffer(out, np.uint8)
    against = None if base is None else np.frombuffer(base, np.uint8)
    _put_together(result[:end], width, planes, together, against)
    np.copyto(result[end:], coded[at + count * low :])
    return result.data


def _header(coded: Bytes) -> tuple[int, int, tuple[int, ...]]:
    """Width, low bytes kept together, and the stored length of each plane (0: as it is)."""
    width, low = (int(coded[0]), int(coded[1])) if coded.nbytes >= 2 else (0, 0)
    if width not in WIDTHS or low not in (0, 2, 4) or low > width // 2 or coded.nbytes < 2 + 4 * (width - low):
        raise CorruptObject("coded planes have a header that makes no sense")
    return width, low, struct.unpack_from(f"<{width - low}I", coded.data, 2)


def _left_together(coded: Sequence[bool]) -> int:
    """How many of the lowest bytes, none of them coded, are kept together: copying them as one is faster."""
    width = len(coded)
    return next((low for low in (4, 2) if low <= width // 2 and not any(coded[width - low :])), 0)


def _squeeze(plane: Bytes) -> bytes:
    """`plane` in a zstd frame that was made by Huffman coding."""
    if _mine.compressor is None:
        import zstandard

        # The smallest tables and the longest least match: hardly anything is searched for, and the literals are coded.
        fast = zstandard.ZstdCompressionParameters(
            window_log=19, chain_log=6, hash_log=6, search_log=1, min_match=7, target_length=0,
            strategy=zstandard.STRATEGY_FAST,
        )  # fmt: skip
        _mine.compressor = zstandard.ZstdCompressor(compression_params=fast)
    return _mine.compressor.compress(plane.data)


def _taken_apart(data: Bytes, width: int, low: int, base: Bytes | None) -> tuple[list[Bytes], Bytes | None]:
    """The planes of whole numbers, highest first, and the low bytes kept together; all in this thread's scratch."""
    count, bits = data.nbytes // width, f"<u{width}"
    room = scratch("planes", data.nbytes)
    planes = [room[n * count : (n + 1) * count] for n in range(width - low)]
    together = room[count * (width - low) :]
    numbers, others = data.view(bits), None if base is None else base.view(bits)
    space = scratch("block", _BLOCK).view(bits)
    for start in range(0, count, _BLOCK // width):
        block = numbers[start : start + _BLOCK // width]
        here = slice(start, start + len(block))
        if others is not None:
            block = zigzag.differences(block, others[here], space[: len(block)])
        if width == 2:
            _halves(block, planes[0][here], planes[1][here])
            continue
        lanes = block.view(np.uint8).reshape(len(block), width)
        for number, plane in enumerate(planes):
            np.copyto(plane[here], lanes[:, width - 1 - number])
        if low:
            np.copyto(together.view(f"<u{low}")[here], block.view(f"<u{low}").reshape(len(block), -1)[:, 0])
    return planes, together if low else None


def _put_together(result: Bytes, width: int, planes: Sequence[Bytes], together: Bytes, base: Bytes | None) -> None:
    """`_taken_apart` undone, into `result`."""
    count, bits = result.nbytes // width, f"<u{width}"
    numbers = result.view(bits)
    others = None if base is None else base[: result.nbytes].view(bits)
    low = together.nbytes // count if count else 0
    space = scratch("block", _BLOCK).view(bits)
    for start in range(0, count, _BLOCK // width):
        into = numbers[start : start + _BLOCK // width]
        here = slice(start, start + len(into))
        block = into if others is None else space[: len(into)]
        if width == 2:
            np.left_shift(planes[0][here], 8, out=block, dtype=bits)
            np.bitwise_or(block, planes[1][here], out=block)
        else:
            lanes = block.view(np.uint8).reshape(len(block), width)
            for number, plane in enumerate(planes):
                np.copyto(lanes[:, width - 1 - number], plane[here])
            if low:
                np.copyto(block.view(f"<u{low}").reshape(len(block), -1)[:, 0], together.view(f"<u{low}")[here])
        if others is not None:
            zigzag.sums(block, others[here], into)


def _halves(block: NDArray[np.unsignedinteger], high: Bytes, low: Bytes) -> None:
    """Two planes of 16-bit numbers: by casts, which run at twice the speed of copies with a stride."""
    np.copyto(low, block, casting="unsafe")
    shifted = scratch("half", _BLOCK).view("<u2")[: len(block)]
    np.right_shift(block, 8, out=shifted)
    np.copyto(high, shifted, casting="unsafe")
