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
SEALED: Final = 1
"""The encryption id of AES-256-GCM, as `encryption` does it."""
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
    KEYS = b"K"
    STATCACHE = b"S"
    PAGES = b"F"


def digest(*parts: bytes | bytearray | memoryview) -> bytes:
    """blake3-128 of the concatenation of `parts`."""
    from blake3 import blake3

    hasher = blake3()
    for part in parts:
        hasher.update(part)
    return hasher.digest(length=DIGEST_SIZE)


def header(kind: Kind, *, encryption: int = PLAIN) -> bytes:
    """The 8 bytes that open an object of `kind`."""
    return MAGIC + kind.value + bytes((FORMAT_VERSION, encryption)) + b"\n"


def sealed_header(plain: bytes | bytearray | memoryview) -> bytes:
    """The header of the object that holds the whole object `plain`, encrypted. Raises `ValueError` if that is none."""
    if bytes(plain[:4]) != MAGIC:
        raise ValueError("not an object of ours")
    return header(Kind(bytes(plain[4:5])), encryption=SEALED)


def encryption_of(data: bytes | bytearray | memoryview) -> int:
    """What the header says of encryption; nothing of it is proven."""
    return data[6] if len(data) >= HEADER_SIZE else PLAIN


def seal(kind: Kind, *body: bytes | bytearray | memoryview, encryption: int = PLAIN) -> bytes:
    """The whole object for a body given in parts. `encryption` is only what the header says; nothing is encrypted."""
    parts = (header(kind, encryption=encryption), *body)
    return b"".join((*parts, digest(*parts)))


def check_header(
    data: bytes | bytearray | memoryview, kind: Kind | None, name: str, *, encryption: int = PLAIN
) -> None:
    """Raise `CorruptObject` unless `data` opens as an object of `kind` (None: of any) with that `encryption`,
    `UnsupportedFormat` when it is newer than us."""
    head = bytes(data[:HEADER_SIZE])
    if len(head) < HEADER_SIZE or head[:4] != MAGIC or head[7:8] != b"\n":
        raise CorruptObject(
            f"{name} is not a SpotWarp object", hint="Is the remote path right? `spotwarp check` lists damage."
        )
    if kind is not None and head[4:5] != kind.value:
        raise CorruptObject(f"{name} holds an object of kind {head[4:5]!r} where {kind.value!r} belongs")
    if head[5] > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"{name} has format version {head[5]}; this SpotWarp reads up to {FORMAT_VERSION}",
            hint="Upgrade SpotWarp on this machine; nothing was changed.",
        )
    if head[6] not in (PLAIN, SEALED):
        raise UnsupportedFormat(
            f"{name} uses encryption {head[6]}, which this SpotWarp does not know",
            hint="Upgrade SpotWarp on this machine.",
        )
    if head[6] != encryption:
        raise CorruptObject(
            f"{name} is {'encrypted' if head[6] else 'not encrypted'}, which nothing in this repository should be",
            hint="Somebody else has put it there. `spotwarp check` says which snapshots are whole.",
        )


def unseal(data: bytes, kind: Kind, name: str, *, encryption: int = PLAIN) -> bytes:
    """The body of the object `data`, verified. `name` is only for messages.

    Raises `CorruptObject` or `UnsupportedFormat`.
    """
    return bytes(unsealed(data, kind, name, encryption=encryption))


def unsealed(data: bytes, kind: Kind, name: str, *, encryption: int = PLAIN) -> memoryview:
    """As `unseal`, but a view of `data`: for what is too large to be copied."""
    check_header(data, kind, name, encryption=encryption)
    if len(data) < HEADER_SIZE + DIGEST_SIZE:
        raise CorruptObject(f"{name} is truncated")
    view = memoryview(data)
    if digest(view[:-DIGEST_SIZE]) != data[-DIGEST_SIZE:]:
        raise CorruptObject(f"{name} fails its hash: it was damaged in the store or on the way")
    return view[HEADER_SIZE:-DIGEST_SIZE]
