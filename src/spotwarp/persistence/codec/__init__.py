"""How a blob's bytes are coded.

A codec's number is written beside every blob and never changes its meaning; decoders are looked up in one table, so a
new codec is a new row. Never hashes (the caller verifies what `decode` returns) and never trusts an announced length
beyond the bound it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from spotwarp.errors import CorruptObject, UnsupportedFormat
from spotwarp.persistence.codec import zstd
from spotwarp.persistence.store.api import Buffer

RAW: Final = 0
ZSTD: Final = 1


def encode(data: Buffer, *, level: int, width: int = 0, base: Buffer | None = None) -> tuple[int, Sequence[Buffer]]:
    """Code `data`; gives the codec's number and the pieces to store back to back.

    `level` is zstd's, for what is neither numbers nor noise. `width` is the length in bytes of one element (1, 2, 4, 8;
    0: unknown). `base` holds the bytes of the same part of the same tensor in an earlier save, of the same length.
    What does not shrink comes back as `RAW` and the very object given, uncopied. The pieces are good until this
    thread's next call.
    """
    coded = zstd.encode(data, level)
    return (RAW, (data,)) if coded is None else (ZSTD, (coded,))


def decode(codec: int, data: Buffer, raw_length: int, base: Buffer | None = None) -> Buffer:
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


def _decode_raw(data: Buffer, raw_length: int) -> Buffer:
    if memoryview(data).nbytes != raw_length:
        raise CorruptObject(f"a raw blob has {memoryview(data).nbytes} bytes where {raw_length} were recorded")
    return data


_DECODERS: Final[Mapping[int, Callable[[Buffer, int], Buffer]]] = MappingProxyType(
    {RAW: _decode_raw, ZSTD: zstd.decode}
)

PATCH: Final = 4


def needs_base(codec: int) -> bool:
    """Whether blobs of this codec decode only with the bytes of another one."""
    return codec > ZSTD


def fingerprints(data: Buffer) -> bytes:
    """16 bytes for each page of `data`."""
    return b""


def encode_patch(data: Buffer, new: bytes, old: bytes, old_length: int, *, level: int) -> Sequence[Buffer] | None:
    """`data` as a patch of a base that had `old_length` bytes, or None where it would be no gain."""
    return None
