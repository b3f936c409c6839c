"""A store whose objects are closed before they are put, and opened after they were got: what is above sees none of it.

Owns where runs are called otherwise and what is closed as a whole. Packs pass: their blobs and tables are closed one by
one where packs are made (`box_for`), so that parts of them can be read; one that was not is refused here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

from spotwarp.errors import CorruptObject
from spotwarp.persistence import layout
from spotwarp.persistence.encryption.cipher import Box, Cipher
from spotwarp.persistence.envelope import HEADER_SIZE, SEALED, check_header, encryption_of, sealed_header
from spotwarp.persistence.store.api import Buffer, ObjectMeta, Store
from spotwarp.persistence.store.metered import Usage, usage_of
from spotwarp.persistence.store.retrying import Patient


class SealedStore:
    """`inner`, with everything in it encrypted by `cipher`."""

    def __init__(self, inner: Store, cipher: Cipher) -> None:
        self._inner, self.cipher = inner, cipher

    def with_budget(self, seconds: float) -> SealedStore:
        """See `RetryingStore`."""
        if not isinstance(self._inner, Patient):
            return self
        return SealedStore(self._inner.with_budget(seconds), self.cipher)

    def press_on(self) -> None:
        """See `RetryingStore`."""
        if isinstance(self._inner, Patient):
            self._inner.press_on()

    @property
    def cancel(self) -> threading.Event:
        """See `RetryingStore`."""
        return self._inner.cancel if isinstance(self._inner, Patient) else threading.Event()

    @property
    def limited(self) -> bool:
        """See `RetryingStore`."""
        return isinstance(self._inner, Patient) and self._inner.limited

    @property
    def usage(self) -> Usage | None:
        """See `RetryingStore`."""
        return usage_of(self._inner)

    @property
    def url(self) -> str:
        """See `Store`."""
        return self._inner.url

    def put(self, key: str, data: Buffer) -> None:
        """See `Store`. Sealed once: what is tried again is the very same object."""
        self._inner.put(self._hidden(key), self._closed(key, data))

    def put_new(self, key: str, data: Buffer) -> None:
        """See `Store`."""
        self._inner.put_new(self._hidden(key), self._closed(key, data))

    def get(self, key: str) -> bytes:
        """See `Store`. Raises `CorruptObject` for what was not sealed here, by this key, under this name."""
        data = self._inner.get(self._hidden(key))
        if layout.is_pack(key):
            return data
        check_header(data, None, key, encryption=SEALED)
        view = memoryview(data)
        return self.cipher.box(key).open(view[HEADER_SIZE:], data[:HEADER_SIZE], key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `Store`; what is closed as a whole is got as a whole."""
        if layout.is_pack(key):
            return self._inner.get_range(self._hidden(key), start, length)
        data = self.get(key)
        if start + length > len(data):
            raise CorruptObject(f"{key} has {len(data)} bytes, not {start + length}")
        return data[start : start + length]

    def head(self, key: str) -> ObjectMeta:
        """See `Store`; the size is what is stored."""
        return replace(self._inner.head(self._hidden(key)), key=key)

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """See `Store`; the sizes are what is stored. Objects whose names cannot be told are not this repository's."""
        found = []
        for meta in self._inner.list(self._hidden(prefix)):
            if (key := self._shown(meta.key)) is not None:
                found.append(replace(meta, key=key))
        return iter(sorted(found, key=lambda meta: meta.key))

    def delete(self, key: str) -> None:
        """See `Store`."""
        self._inner.delete(self._hidden(key))

    def _closed(self, key: str, data: Buffer) -> Buffer:
        if layout.is_pack(key):
            if encryption_of(data) != SEALED:
                raise ValueError(f"{key} is not encrypted")  # a mistake in the program
            return data
        header = sealed_header(data)
        return header + self.cipher.box(key).close(data, header)

    def _hidden(self, key: str) -> str:
        return layout.renamed(key, self.cipher.hide) or key

    def _shown(self, key: str) -> str | None:
        return layout.renamed(key, self.cipher.show)


def box_for(store: Store, key: str) -> Box | None:
    """What closes and opens the parts of the pack at `key`; None where nothing is encrypted."""
    return store.cipher.box(key) if isinstance(store, SealedStore) else None
