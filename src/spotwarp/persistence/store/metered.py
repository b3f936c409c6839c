"""A store that counts: requests by what they cost, bytes each way, and how fast the link takes large objects.

It stands next to the store itself, so that every try counts and no wait of ours does. Changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Final, TypeVar

from spotwarp.clock import Clock
from spotwarp.errors import StoreUnavailable
from spotwarp.persistence.store.api import Buffer, ObjectMeta, Store

T = TypeVar("T")

TELLING: Final = 1 << 20
"""A put of so many bytes says how fast the link is; what fewer take is the time of a request, not of its bytes."""
CHARGED: Final = ("puts", "gets", "lists", "deletes", "sent", "got")
"""What of `Used` heartbeats and telemetry tell."""
PAGE: Final = 1000
"""Objects that one request of a listing brings, at most."""


@dataclass(frozen=True, slots=True)
class Used:
    """What a store was asked for. Requests, by how stores charge them, and bytes."""

    puts: int = 0
    gets: int = 0
    """`head` included."""
    lists: int = 0
    deletes: int = 0
    refused: int = 0
    """Tries without a usable answer (503, 429, silence): of those above, they are not charged."""
    sent: int = 0
    got: int = 0
    """Bytes of objects, sent and fetched."""
    bulk: int = 0
    bulk_s: float = 0.0
    """Bytes of large objects sent, and the seconds in which at least one of them was under way."""

    def __sub__(self, earlier: Used) -> Used:
        """What came after `earlier`."""
        return Used(**{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(Used)})

    def __add__(self, more: Used) -> Used:
        """Both together."""
        return Used(**{f.name: getattr(self, f.name) + getattr(more, f.name) for f in fields(Used)})

    @property
    def up_bytes_s(self) -> float | None:
        """Bytes a second that the link took; None when too little was sent to tell."""
        return self.bulk / self.bulk_s if self.bulk >= 4 * TELLING and self.bulk_s > 0 else None


class Usage:
    """Counts from all threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._used = Used()
        self._under_way = 0
        self._since = 0.0

    def now(self) -> Used:
        """What was used so far."""
        with self._lock:
            return self._used

    def count(self, **more: int) -> None:
        """Add to the counts."""
        with self._lock:
            self._used += Used(**more)

    @contextmanager
    def sending(self, size: int) -> Iterator[None]:
        """A large object is under way; its bytes count when it was acknowledged."""
        self._turn(1)
        try:
            yield
        except BaseException:
            self._turn(-1)
            raise
        self._turn(-1, size)

    def _turn(self, change: int, size: int = 0) -> None:
        with self._lock:
            now = self._clock.monotonic()
            if self._under_way:
                self._used += Used(bulk=size, bulk_s=now - self._since)
            self._under_way, self._since = self._under_way + change, now


def charged(store: Store) -> dict[str, int]:
    """What this process asked of `store` so far, as heartbeats and telemetry tell it; empty where nothing counts it."""
    usage = usage_of(store)
    used = usage.now() if usage is not None else None
    return {name: getattr(used, name) for name in CHARGED} if used is not None else {}


def usage_of(store: Store) -> Usage | None:
    """What counts the requests of `store`, where something does."""
    found = getattr(store, "usage", None)
    return found if isinstance(found, Usage) else None


class MeteredStore:
    """`inner`, counted."""

    def __init__(self, inner: Store, clock: Clock) -> None:
        self._inner = inner
        self.usage = Usage(clock)

    @property
    def url(self) -> str:
        """See `Store`."""
        return self._inner.url

    def put(self, key: str, data: Buffer) -> None:
        """See `Store`."""
        size = memoryview(data).nbytes
        if size < TELLING:
            self._counted(lambda: self._inner.put(key, data), puts=1, sent=size)
            return
        with self.usage.sending(size):
            self._counted(lambda: self._inner.put(key, data), puts=1, sent=size)

    def put_new(self, key: str, data: Buffer) -> None:
        """See `Store`."""
        self._counted(lambda: self._inner.put_new(key, data), puts=1, sent=memoryview(data).nbytes)

    def get(self, key: str) -> bytes:
        """See `Store`."""
        data = self._counted(lambda: self._inner.get(key), gets=1)
        self.usage.count(got=len(data))
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `Store`."""
        data = self._counted(lambda: self._inner.get_range(key, start, length), gets=1)
        self.usage.count(got=len(data))
        return data

    def head(self, key: str) -> ObjectMeta:
        """See `Store`."""
        return self._counted(lambda: self._inner.head(key), gets=1)

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """See `Store`."""
        found = tuple(self._counted(lambda: self._inner.list(prefix), lists=1))
        self.usage.count(lists=max(0, (len(found) - 1) // PAGE))
        return iter(found)

    def delete(self, key: str) -> None:
        """See `Store`."""
        self._counted(lambda: self._inner.delete(key), deletes=1)

    def _counted(self, verb: Callable[[], T], **what: int) -> T:
        try:
            return verb()
        except StoreUnavailable:
            what["refused"] = 1
            raise
        finally:
            self.usage.count(**what)
