"""Stores for tests: one in memory, and one that puts any misfortune between a caller and a store.

`MemoryStore` keeps every promise of `Store`. `FaultyStore` breaks them as told: it fails before or after the effect,
lets an effect land later, lies, forgets, refuses, or "kills" the process at a chosen call. It records every call.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeVar

from spotwarp.clock import Clock, SystemClock
from spotwarp.errors import (
    AlreadyExists,
    CorruptObject,
    ObjectMissing,
    StoreDenied,
    StoreError,
    StoreUnavailable,
    StoreUnsupported,
)
from spotwarp.persistence.store.api import Buffer, ObjectMeta, Store, checked_key

T = TypeVar("T")

WRITES: Final = "put put_new delete"
READS: Final = "get get_range head list"


class MemoryStore:
    """Objects in a dictionary; every verb is atomic. `clock` gives the store's time."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, datetime]] = {}

    @property
    def url(self) -> str:
        """See `Store`."""
        return "memory://"

    def put(self, key: str, data: Buffer) -> None:
        """See `Store`."""
        with self._lock:
            self._objects[checked_key(key)] = (bytes(data), self._clock.wall())

    def put_new(self, key: str, data: Buffer) -> None:
        """See `Store`."""
        with self._lock:
            if checked_key(key) in self._objects:
                raise AlreadyExists(f"{key} exists already")
            self._objects[key] = (bytes(data), self._clock.wall())

    def get(self, key: str) -> bytes:
        """See `Store`."""
        return self._find(key)[0]

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `Store`."""
        data = self._find(key)[0]
        if start + length > len(data):
            raise CorruptObject(f"{key} has {len(data)} bytes, too few for {start}+{length}")
        return data[start : start + length]

    def head(self, key: str) -> ObjectMeta:
        """See `Store`."""
        data, modified = self._find(key)
        return ObjectMeta(key, len(data), modified)

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """See `Store`."""
        within = f"{checked_key(prefix)}/" if prefix else ""
        with self._lock:
            found = [(key, value) for key, value in self._objects.items() if key.startswith(within)]
        return iter([ObjectMeta(key, len(data), modified) for key, (data, modified) in sorted(found)])

    def delete(self, key: str) -> None:
        """See `Store`."""
        with self._lock:
            self._objects.pop(checked_key(key), None)

    def contents(self) -> dict[str, bytes]:
        """A copy of everything in it."""
        with self._lock:
            return {key: data for key, (data, _) in self._objects.items()}

    def copy(self) -> MemoryStore:
        """A store of its own with the same objects and times."""
        twin = MemoryStore(clock=self._clock)
        with self._lock:
            twin._objects = dict(self._objects)
        return twin

    def _find(self, key: str) -> tuple[bytes, datetime]:
        with self._lock:
            found = self._objects.get(checked_key(key))
        if found is None:
            raise ObjectMissing(f"{key} is not in the store")
        return found


class Crash(BaseException):
    """The process died here. No code under test may catch it; everything it would have done next is not done."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it arrived: its number (from 1, all verbs together), verb, key, bytes sent, thread's name."""

    number: int
    verb: str
    key: str
    size: int
    thread: str


@dataclass
class Fault:
    """What goes wrong, and when. Matching calls are counted; `skip` of them pass, the next `times` are hit (None: all).

    Before the effect: `hook`, `crash`, `error`. Instead of it: `drop` (acknowledged, not done), `late` (not
    acknowledged, done by `FaultyStore.land`), `ignore_condition` (`put_new` overwrites). After it: `hook_after`,
    `crash_after`, `lost_reply`. On what is read: `truncate` to so many bytes, `corrupt` the byte at this offset.
    """

    verbs: str = f"{WRITES} {READS}"
    key: str = ""
    """Regular expression, searched for in the key."""
    at: int | None = None
    """Only the call with this number."""
    skip: int = 0
    times: int | None = 1
    when: Callable[[Call], bool] | None = None
    hook: Callable[[], object] | None = None
    crash: bool = False
    error: StoreError | None = None
    drop: bool = False
    late: bool = False
    ignore_condition: bool = False
    hook_after: Callable[[], object] | None = None
    crash_after: bool = False
    lost_reply: bool = False
    truncate: int | None = None
    corrupt: int | None = None
    hits: int = field(default=0, init=False)

    def hit_by(self, call: Call) -> bool:
        """Whether this call is one to spoil; counts it if it matches."""
        if call.verb not in self.verbs.split() or not re.search(self.key, call.key):
            return False
        if self.at is not None and call.number != self.at:
            return False
        if self.when is not None and not self.when(call):
            return False
        self.hits += 1
        return self.hits > self.skip and (self.times is None or self.hits <= self.skip + self.times)


def refuse_conditions() -> Fault:
    """A store without create-if-absent that says so (501)."""
    return Fault("put_new", times=None, error=StoreUnsupported("If-None-Match is not implemented (501)"))


def ignore_conditions() -> Fault:
    """A store without create-if-absent that does not say so."""
    return Fault("put_new", times=None, ignore_condition=True)


def deny_delete() -> Fault:
    """A key without the right to delete, as a rented machine has."""
    return Fault("delete", times=None, error=StoreDenied("delete: AccessDenied (403)"))


class FaultyStore:
    """`inner`, spoilt by the first of `faults` that a call hits. Thread safe; faults may be added at any time.

    After a crash every further call crashes too: a dead process calls nobody.
    """

    def __init__(self, inner: Store, *faults: Fault) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._faults = list(faults)
        self._calls: list[Call] = []
        self._late: list[Callable[[], object]] = []
        self._dead = False

    @property
    def url(self) -> str:
        """See `Store`."""
        return self._inner.url

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every call so far, in order of arrival."""
        with self._lock:
            return tuple(self._calls)

    def count(self, verbs: str = f"{WRITES} {READS}", key: str = "") -> int:
        """How many calls had one of `verbs` and a key that matches."""
        return sum(call.verb in verbs.split() and re.search(key, call.key) is not None for call in self.calls)

    def add(self, *faults: Fault) -> None:
        """More misfortune, considered after what is there."""
        with self._lock:
            self._faults.extend(faults)

    def heal(self) -> None:
        """No faults any more, and no memory of a crash; late effects are still to come."""
        with self._lock:
            self._faults.clear()
            self._dead = False

    def land(self) -> int:
        """Let all late effects happen now, in order; how many there were."""
        with self._lock:
            late, self._late = self._late, []
        for effect in late:
            try:
                effect()
            except AlreadyExists:  # a late create that found the name taken: the server says so to nobody
                continue
        return len(late)

    def put(self, key: str, data: Buffer) -> None:
        """See `Store`."""
        self._write("put", key, data, self._inner.put)

    def put_new(self, key: str, data: Buffer) -> None:
        """See `Store`."""
        self._write("put_new", key, data, self._inner.put_new)

    def delete(self, key: str) -> None:
        """See `Store`."""
        self._write("delete", key, b"", lambda key, _: self._inner.delete(key))

    def get(self, key: str) -> bytes:
        """See `Store`."""
        fault = self._begin("get", key, 0)
        return self._spoilt(self._end(fault, self._inner.get(key)), fault)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `Store`."""
        fault = self._begin("get_range", key, 0)
        return self._spoilt(self._end(fault, self._inner.get_range(key, start, length)), fault)

    def head(self, key: str) -> ObjectMeta:
        """See `Store`."""
        fault = self._begin("head", key, 0)
        return self._end(fault, self._inner.head(key))

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """See `Store`. `truncate` leaves so many objects."""
        fault = self._begin("list", prefix, 0)
        found = self._end(fault, tuple(self._inner.list(prefix)))
        return iter(found[: fault.truncate])

    def _write(self, verb: str, key: str, data: Buffer, effect: Callable[[str, Buffer], None]) -> None:
        fault = self._begin(verb, key, memoryview(data).nbytes)
        if fault.ignore_condition:
            effect = self._inner.put
        if fault.late:
            copy = bytes(data)  # whoever called may use its buffer again
            with self._lock:
                self._late.append(lambda: effect(key, copy))
            raise StoreUnavailable(f"injected: no answer to {verb} {key}")
        if not fault.drop:
            effect(key, data)
        self._end(fault, None)

    def _begin(self, verb: str, key: str, size: int) -> Fault:
        """Record the call, and do what `fault` does before the effect."""
        with self._lock:
            if self._dead:
                raise Crash("a dead process called")
            call = Call(len(self._calls) + 1, verb, key, size, threading.current_thread().name)
            self._calls.append(call)
            fault = next((fault for fault in self._faults if fault.hit_by(call)), _NONE)
            if fault.crash:
                self._dead = True
        if fault.hook is not None:
            fault.hook()
        if fault.crash:
            raise Crash(f"before {verb} {key}")
        if fault.error is not None:
            raise fault.error
        return fault

    def _end(self, fault: Fault, result: T) -> T:
        """Do what `fault` does after the effect."""
        if fault.hook_after is not None:
            fault.hook_after()
        if fault.crash_after:
            with self._lock:
                self._dead = True
            raise Crash("after the effect")
        if fault.lost_reply:
            raise StoreUnavailable("injected: the reply was lost")
        return result

    def _spoilt(self, data: bytes, fault: Fault) -> bytes:
        data = data[: fault.truncate]
        if fault.corrupt is not None and data:
            at = fault.corrupt % len(data)
            data = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        return data


_NONE: Final = Fault(times=0)
