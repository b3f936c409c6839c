"""The store seam: seven verbs over keys. What every store promises, and the only thing the rest may assume.

Keys are ASCII, `/`-separated, never start or end with `/`, never hold an empty, `.` or `..` part; they never
contain anything of the user's, so a path's length or letter case cannot matter to a store.
Implementations translate their library's errors at this edge into `spotwarp.errors.StoreError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

Buffer = bytes | bytearray | memoryview
"""Contiguous bytes; a memoryview must be of unsigned bytes. Stores read it in place and never keep it."""


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """What a store says of an object: its key, its size in bytes, and when the store wrote it (store's clock)."""

    key: str
    size: int
    modified: datetime


def checked_key(key: str) -> str:
    """`key`, if it is one; else `ValueError`, for a bad key is a mistake in the program and not of the user's."""
    if not key.isascii() or not key.isprintable() or "\\" in key or any(p in ("", ".", "..") for p in key.split("/")):
        raise ValueError(f"not a key: {key!r}")
    return key


class Store(Protocol):
    """Seven verbs. All block, all may be called from any thread, all end in bounded time.

    Errors of every verb: `StoreUnavailable` (no usable answer, the request may have taken effect),
    `StoreDenied`, `StoreFull`, `BucketMissing`, `StoreUnsupported`, `StoreConflict`.
    """

    @property
    def url(self) -> str:
        """Where this store is, without secrets; for messages."""
        ...

    def put(self, key: str, data: Buffer) -> None:
        """Write or overwrite. On return the object is durable and any later `get` sees it whole."""
        ...

    def put_new(self, key: str, data: Buffer) -> None:
        """Create if absent: exactly one of any number of concurrent calls succeeds.

        Never retried inside: after `StoreUnavailable` the caller must read the key back to learn what happened.
        Raises `AlreadyExists` when the key is taken (also when an earlier, lost try of one's own took it).
        """
        ...

    def get(self, key: str) -> bytes:
        """The whole object, its length checked against what the store announced. Raises `ObjectMissing`."""
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Exactly `length` bytes from `start`. Raises `CorruptObject` when the object is shorter, `ObjectMissing`."""
        ...

    def head(self, key: str) -> ObjectMeta:
        """Size and store time without the body. Raises `ObjectMissing`."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """All objects whose key starts with `prefix` + "/", in key order (as bytes); all objects for an empty `prefix`.

        The whole listing is fetched by the call, so that its errors arise here and not while it is consumed.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove; an absent key is success. Raises `StoreDenied` without the right."""
        ...
