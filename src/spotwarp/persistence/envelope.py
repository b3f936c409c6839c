"""The frame around every object in the bucket and every cache file beside it.

    8 bytes   "SPWP", kind (one ASCII letter), format version, encryption id, newline
    body      as the kind defines it
    16 bytes  blake3-128 of everything before

The frame lets codecs and encryption arrive without a new layout, and makes truncation, foreign objects and objects
under a wrong name visible before their body is parsed. It never interprets a body. Normative: docs/format.md.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from spotwarp.errors import CorruptObject, UnsupportedFormat

MAGIC: Final = b"SPWP"
FORMAT_VERSION: Final = 0
PLAIN: Final = 0
HEADER_SIZE: Final = 8
DIGEST_SIZE: Final = 16


class Kind(Enum):
    """What a frame holds; the letter is in its header."""

    CONFIG = b"C"
    ENTRY = b"L"
    MANIFEST = b"M"
    PACK = b"P"
    BEAT = b"B"
    TELEMETRY = b"T"
    HINT = b"H"
    BALLAST = b"X"
    STATCACHE = b"S"
    PAGES = b"F"


def digest(*parts: bytes | bytearray | memoryview) -> bytes:
    """blake3-128 of the concatenation of `parts`."""
    from blake3 import blake3

    hasher = blake3()
    for part in parts:
        hasher.update(part)
    return hasher.digest(length=DIGEST_SIZE)


def header(kind: Kind) -> bytes:
    """The 8 bytes that open an object of `kind`."""
    return MAGIC + kind.value + bytes((FORMAT_VERSION, PLAIN)) + b"\n"


def seal(kind: Kind, *body: bytes | bytearray | memoryview) -> bytes:
    """The whole object for a body given in parts."""
    parts = (header(kind), *body)
    return b"".join((*parts, digest(*parts)))


def check_header(data: bytes | bytearray | memoryview, kind: Kind, name: str) -> None:
    """Raise `CorruptObject` unless `data` opens as an object of `kind`, `UnsupportedFormat` when it is newer than
    us."""
    head = bytes(data[:HEADER_SIZE])
    if len(head) < HEADER_SIZE or head[:4] != MAGIC or head[7:8] != b"\n":
        raise CorruptObject(
            f"{name} is not a SpotWarp object", hint="Is the remote path right? `spotwarp check` lists damage."
        )
    if head[4:5] != kind.value:
        raise CorruptObject(f"{name} holds an object of kind {head[4:5]!r} where {kind.value!r} belongs")
    if head[5] > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"{name} has format version {head[5]}; this SpotWarp reads up to {FORMAT_VERSION}",
            hint="Upgrade SpotWarp on this machine; nothing was changed.",
        )
    if head[6] != PLAIN:
        raise UnsupportedFormat(
            f"{name} uses encryption {head[6]}, which this SpotWarp does not know",
            hint="Upgrade SpotWarp on this machine.",
        )


def unseal(data: bytes, kind: Kind, name: str) -> bytes:
    """The body of the object `data`, verified. `name` is only for messages.

    Raises `CorruptObject` or `UnsupportedFormat`.
    """
    return bytes(unsealed(data, kind, name))


def unsealed(data: bytes, kind: Kind, name: str) -> memoryview:
    """As `unseal`, but a view of `data`: for what is too large to be copied."""
    check_header(data, kind, name)
    if len(data) < HEADER_SIZE + DIGEST_SIZE:
        raise CorruptObject(f"{name} is truncated")
    view = memoryview(data)
    if digest(view[:-DIGEST_SIZE]) != data[-DIGEST_SIZE:]:
        raise CorruptObject(f"{name} fails its hash: it was damaged in the store or on the way")
    return view[HEADER_SIZE:-DIGEST_SIZE]
