"""A store without create-if-absent, used by one writer at the user's word.

`put_new` looks first and writes then. Between the two anything may happen, so this protects from a writer's own
mistakes and from nothing else: that there is only one writer is the user's promise, not ours.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from spotwarp.errors import AlreadyExists, ObjectMissing
from spotwarp.persistence.store.api import Buffer, ObjectMeta, Store
from spotwarp.persistence.store.metered import Usage, usage_of
from spotwarp.persistence.store.retrying import RetryingStore


class SingleWriterStore:
    """`inner` with a `put_new` that works without the store's help, for a single writer only."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def with_budget(self, seconds: float) -> SingleWriterStore:
        """The same store, giving up sooner (or later); see `RetryingStore`."""
        return SingleWriterStore(self._inner.with_budget(seconds)) if isinstance(self._inner, RetryingStore) else self

    @property
    def limited(self) -> bool:
        """See `RetryingStore`."""
        return isinstance(self._inner, RetryingStore) and self._inner.limited

    def press_on(self) -> None:
        """See `RetryingStore`."""
        if isinstance(self._inner, RetryingStore):
            self._inner.press_on()

    @property
    def usage(self) -> Usage | None:
        """See `RetryingStore`."""
        return usage_of(self._inner)

    @property
    def cancel(self) -> threading.Event:
        """See `RetryingStore`."""
        return self._inner.cancel if isinstance(self._inner, RetryingStore) else threading.Event()

    @property
    def url(self) -> str:
        """See `Store`."""
        return self._inner.url

    def put(self, key: str, data: Buffer) -> None:
        """See `Store`."""
        self._inner.put(key, data)

    def put_new(self, key: str, data: Buffer) -> None:
        """As `Store`, but atomic only while nobody else writes."""
        try:
            self._inner.head(key)
        except ObjectMissing:
            self._inner.put(key, data)
        else:
            raise AlreadyExists(f"{key} exists")

    def get(self, key: str) -> bytes:
        """See `Store`."""
        return self._inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `Store`."""
        return self._inner.get_range(key, start, length)

    def head(self, key: str) -> ObjectMeta:
        """See `Store`."""
        return self._inner.head(key)

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """See `Store`."""
        return self._inner.list(prefix)

    def delete(self, key: str) -> None:
        """See `Store`."""
        self._inner.delete(key)
