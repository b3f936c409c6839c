"""Codec 1: one zstd frame.

Never trusts the length that a frame announces beyond the bound it is given.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from spotwarp.errors import CorruptObject
from spotwarp.persistence.store.api import Buffer

if TYPE_CHECKING:
    import zstandard

WORTH: Final = 0.95
"""Coding must save more than 5 %: a decoder's time at the worst moment, the resume, is the price."""


class _PerThread(threading.local):
    """Coders are costly to make and not safe to share."""

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor: zstandard.ZstdDecompressor | None = None


_mine = _PerThread()


def encode(data: Buffer, level: int) -> bytes | None:
    """`data` in a frame of zstd `level`; None when that does not pay."""
    coded = compressor(level).compress(data)
    return coded if len(coded) <= memoryview(data).nbytes * WORTH else None


def decode(data: Buffer, raw_length: int) -> bytes:
    """The `raw_length` bytes in the frame `data`. Raises `CorruptObject`; never allocates more than `raw_length`."""
    import zstandard

    if _mine.decompressor is None:
        _mine.decompressor = zstandard.ZstdDecompressor()
    try:
        # A frame that names its size is believed by the library over `max_output_size`: so it is asked first.
        if zstandard.frame_content_size(data) not in (raw_length, -1):
            raise CorruptObject(f"a coded blob announces another length than the {raw_length} bytes recorded")
        decoded = _mine.decompressor.decompress(data, max_output_size=raw_length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptObject(f"a coded blob cannot be decoded: {error}") from error
    if len(decoded) != raw_length:
        raise CorruptObject(f"a coded blob has {len(decoded)} bytes where {raw_length} were recorded")
    return decoded


def compressor(level: int) -> zstandard.ZstdCompressor:
    """This thread's coder for `level`."""
    found = _mine.compressors.get(level)
    if found is None:
        import zstandard

        found = _mine.compressors[level] = zstandard.ZstdCompressor(level=level)
    return found
