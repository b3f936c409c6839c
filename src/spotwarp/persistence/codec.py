"""How a blob's bytes are coded: raw, or zstd where a probe says it pays.

A codec's number is written beside every blob and never changes its meaning; decoders are looked up in one table, so a
new codec is a new row. Never hashes (the caller verifies what `decode` returns) and never trusts an announced length
beyond the bound it is given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from spotwarp.errors import CorruptObject, UnsupportedFormat
from spotwarp.persistence.store.api import Buffer

if TYPE_CHECKING:
    import zstandard

RAW: Final = 0
ZSTD: Final = 1

_PROBE: Final = 64 << 10
_WORTH: Final = 0.95
"""Coding must save more than 5 %: a decoder's time at the worst moment, the resume, is the price."""


class _PerThread(threading.local):
    """Coders are costly to make and not safe to share."""

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor: zstandard.ZstdDecompressor | None = None


_mine = _PerThread()


def encode(data: Buffer, *, level: int) -> tuple[int, Buffer]:
    """Code `data` at zstd `level`; gives the codec's number and the bytes to store.

    What does not shrink comes back as `RAW` and the very object given, uncopied.
    """
    view = memoryview(data)
    if not _probably_pays(view):
        return RAW, data
    coded = _compressor(level).compress(view)
    if len(coded) > view.nbytes * _WORTH:
        return RAW, data
    return ZSTD, coded


def decode(codec: int, data: Buffer, raw_length: int) -> Buffer:
    """The `raw_length` bytes that `data` codes.

    Raises `UnsupportedFormat` for a codec of the future, `CorruptObject` when the length is a lie or the bytes are
    damaged. No more than `raw_length` bytes are ever allocated.
    """
    decoder = _DECODERS.get(codec)
    if decoder is None:
        raise UnsupportedFormat(
            f"a blob is coded with codec {codec}, which this SpotWarp does not know",
            hint="Upgrade SpotWarp on this machine; nothing was changed.",
        )
    return decoder(data, raw_length)


def _probably_pays(view: memoryview) -> bool:
    """Whether 64 KiB of the middle, or of the start (headers and text may hide the rest), shrink enough."""
    size = view.nbytes
    if size <= 2 * _PROBE:
        return size > 0
    middle = size // 2
    probes = (view[middle : middle + _PROBE], view[:_PROBE])
    return any(len(_compressor(1).compress(probe)) <= _PROBE * _WORTH for probe in probes)


def _compressor(level: int) -> zstandard.ZstdCompressor:
    found = _mine.compressors.get(level)
    if found is None:
        import zstandard

        found = _mine.compressors[level] = zstandard.ZstdCompressor(level=level)
    return found


def _decode_raw(data: Buffer, raw_length: int) -> Buffer:
    if memoryview(data).nbytes != raw_length:
        raise CorruptObject(f"a raw blob has {memoryview(data).nbytes} bytes where {raw_length} were recorded")
    return data


def _decode_zstd(data: Buffer, raw_length: int) -> Buffer:
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


_DECODERS: Final[Mapping[int, Callable[[Buffer, int], Buffer]]] = MappingProxyType(
    {RAW: _decode_raw, ZSTD: _decode_zstd}
)
