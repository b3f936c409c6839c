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
from spotwarp.persistence.codec.numbers import DELTA, PAGE, PATCH, PLANES, RAW, ZSTD
from spotwarp.persistence.store.api import Buffer

__all__ = [
    "DELTA",
    "PAGE",
    "PATCH",
    "PLANES",
    "RAW",
    "ZSTD",
    "decode",
    "encode",
    "encode_patch",
    "fingerprints",
    "needs_base",
]

_TYPED: Final = 64 << 10
"""Fewer bytes, of which nothing is known, are text: a sync of a few small files shall not pay for numpy's start."""


def encode(data: Buffer, *, level: int, width: int = 0, base: Buffer | None = None) -> tuple[int, Sequence[Buffer]]:
    """Code `data`; gives the codec's number and the pieces to store back to back.

    `level` is zstd's, for what is neither numbers nor noise. `width` is the length in bytes of one element (1, 2, 4, 8;
    else: unknown). `base` holds the bytes of the same part of the same tensor in an earlier save, of the same length.
    What does not shrink by 5 % comes back as `RAW` and the very object given, uncopied. The pieces of any other codec
    lie elsewhere than `data`, and are good until this thread's next call.
    """
    if base is not None and memoryview(base).nbytes != memoryview(data).nbytes:
        raise ValueError("a base has the length of what is coded")
    size = memoryview(data).nbytes
    if size >= _TYPED or width or base is not None:
        return _encode_typed(data, level, width, base)
    coded = zstd.encode(data, level) if size else None
    return (RAW, (data,)) if coded is None else (ZSTD, (coded,))


def _encode_typed(data: Buffer, level: int, width: int, base: Buffer | None) -> tuple[int, Sequence[Buffer]]:
    import numpy as np

    from spotwarp.persistence.codec import planes
    from spotwarp.persistence.codec.choose import choose

    if not memoryview(data).nbytes:
        return RAW, (data,)
    mine = np.frombuffer(data, np.uint8)
    theirs = None if base is None else np.frombuffer(base, np.uint8)
    codec, plan = choose(mine, level=level, width=width, base=theirs)
    pieces: Sequence[Buffer] | None = None
    if plan is not None:
        pieces = planes.encode(mine, plan, theirs if codec == DELTA else None)
    elif codec == ZSTD:
        coded = zstd.encode(data, level)
        pieces = None if coded is None else (coded,)
    return (RAW, (data,)) if pieces is None else (codec, pieces)


def fingerprints(data: Buffer, seed: bytes = bytes(16)) -> bytes:
    """16 bytes for each page of `data`; the last page may be short.

    Under a `seed` (16 bytes) that nobody knows they tell pages apart that somebody makes to be taken for each other.
    """
    from spotwarp.persistence.codec import patch

    return patch.fingerprints(data, seed)


def encode_patch(data: Buffer, new: bytes, old: bytes, old_length: int, *, level: int) -> Sequence[Buffer] | None:
    """`data` as a patch of a base that had `old_length` bytes: the pieces to store, or None where it would be no gain.

    `new` and `old` are the fingerprints of both. More than a quarter of the pages changed is no gain. The pieces lie
    elsewhere than `data`, and are good until this thread's next call.
    """
    from spotwarp.persistence.codec import patch

    pages = patch.changed(data, new, old, old_length)
    if pages is None:
        return None
    codec, coded = _encode_typed(pages.content, level, 0, None)
    return (pages.header(codec), *coded)


def needs_base(codec: int) -> bool:
    """Whether blobs of this codec decode only with the bytes of another one."""
    return codec in (DELTA, PATCH)


def decode(
    codec: int, data: Buffer, raw_length: int, base: Buffer | None = None, *, out: memoryview | None = None
) -> Buffer:
    """The `raw_length` bytes that `data` codes; `base` are the decoded bytes of the blob that `DELTA` and `PATCH` need.

    Where it saves a copy the result lies in `out`, which has `raw_length` bytes and may be the base's own memory; else
    it is `data` itself (`RAW`) or new. Raises `UnsupportedFormat` for a codec of the future, `CorruptObject` when a
    length is a lie, the base is missing or does not fit, or the bytes are damaged. Never allocates more than a few
    times `raw_length`.
    """
    decoder = _DECODERS.get(codec)
    if decoder is None:
        raise UnsupportedFormat(
            f"a blob is coded with codec {codec}, which this SpotWarp does not know",
            hint="Upgrade SpotWarp on this machine; nothing was changed.",
        )
    if out is not None and out.nbytes != raw_length:
        raise ValueError(f"{out.nbytes} bytes are no place for {raw_length}")
    if needs_base(codec) and base is None:
        raise CorruptObject("a blob of differences names no base")
    return decoder(data, raw_length, base, out)


def _decode_raw(data: Buffer, raw_length: int, base: Buffer | None, out: memoryview | None) -> Buffer:
    if memoryview(data).nbytes != raw_length:
        raise CorruptObject(f"a raw blob has {memoryview(data).nbytes} bytes where {raw_length} were recorded")
    return data


def _decode_zstd(data: Buffer, raw_length: int, base: Buffer | None, out: memoryview | None) -> Buffer:
    return zstd.decode(data, raw_length)


def _decode_planes(data: Buffer, raw_length: int, base: Buffer | None, out: memoryview | None) -> Buffer:
    from spotwarp.persistence.codec import planes

    return planes.decode(data, raw_length, None, out)


def _decode_delta(data: Buffer, raw_length: int, base: Buffer | None, out: memoryview | None) -> Buffer:
    from spotwarp.persistence.codec import planes

    if base is None or memoryview(base).nbytes != raw_length:
        raise CorruptObject(f"the base of a blob of {raw_length} bytes has another length")
    return planes.decode(data, raw_length, base, out)


def _decode_patch(data: Buffer, raw_length: int, base: Buffer | None, out: memoryview | None) -> Buffer:
    from spotwarp.persistence.codec import patch

    assert base is not None  # noqa: S101
    pages = patch.read(data, raw_length, memoryview(base).nbytes)
    content = decode(pages.codec, pages.coded, pages.length)  # without a base: no patch is made of another
    return pages.applied(base, content, raw_length, out)


_Decoder = Callable[[Buffer, int, Buffer | None, memoryview | None], Buffer]
_DECODERS: Final[Mapping[int, _Decoder]] = MappingProxyType(
    {RAW: _decode_raw, ZSTD: _decode_zstd, PLANES: _decode_planes, DELTA: _decode_delta, PATCH: _decode_patch}
)
