"""Try a store before trusting it: what `init` does, and what any doubt is settled by.

Owns the trial and its leftovers, all below `probe/<random>/`. It finds out by doing, never by asking what the store
calls itself, and it ends in bounded time even when the store does not. It never touches a key it did not make.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from spotwarp.clock import Clock, Rng
from spotwarp.errors import (
    AlreadyExists,
    StoreDenied,
    StoreError,
    StoreUnavailable,
    StoreUnsupported,
)
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.store.retrying import RetryingStore

PREFIX = "probe"
RACERS = 8
SAMPLE_BYTES = 1024 * 1024
STEP_S = 5.0
LONGEST = 160  # bytes of a key below the repository's own prefix; `layout.py` makes none that is longer

CreateIfAbsent = Literal["atomic", "ignored", "unsupported"]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What the store was seen to do. `put_rate_bytes_s` is that of one object of 1 MiB."""

    writable: bool
    read_back: bool
    listable: bool
    create_if_absent: CreateIfAbsent
    deletable: bool
    put_rate_bytes_s: float
    details: tuple[str, ...] = ()
    distinguishes_case: bool = True

    def require(self) -> None:
        """Return if a repository can live here. Raises `StoreUnsupported`, saying what is missing.

        The right to delete is not needed: only prune uses it.
        """
        whole = self.writable and self.read_back and self.listable
        if self.create_if_absent == "atomic" and whole and self.distinguishes_case:
            return
        if whole and not self.distinguishes_case:
            what = "it does not tell upper from lower case in names, so two runs could be one"
        elif self.create_if_absent != "atomic":
            how = "ignores" if self.create_if_absent == "ignored" else "refuses"
            what = f"it {how} create-if-absent (PUT with If-None-Match: *), so two machines could both win"
        else:
            what = "it does not give back or list what was written"
        raise StoreUnsupported(
            f"this store cannot keep a run safe: {what}",
            hint="Use a store with conditional writes: AWS S3, Google Cloud Storage, Azure, R2, Ceph, a directory …",
        )


def probe(store: Store, *, clock: Clock, rng: Rng, deadline_s: float = 30.0) -> ProbeResult:
    """Write, read, list, create twice, create at once, delete; at most `deadline_s` seconds.

    Raises what the store raises (`BucketMissing`, `StoreDenied` …), with the step that failed in the message, and
    `StoreUnavailable` at the deadline. What a store merely does wrong is in the result: see `ProbeResult.require`.
    """
    if isinstance(store, RetryingStore):
        store = store.with_budget(STEP_S)  # a mistyped endpoint should be told within seconds
    trial = _Trial(store, clock, f"{PREFIX}/{rng.token(8)}", rng.token(16).encode())
    outcome: list[ProbeResult | BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            outcome.append(trial.run())
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread, which raises it
            outcome.append(error)
        finally:
            done.set()

    # A daemon: a store that hangs for ever must keep neither the caller nor the process.
    threading.Thread(target=run, name="store-probe", daemon=True).start()
    if not clock.wait(done, deadline_s):
        raise StoreUnavailable(
            f"{store.url} did not answer within {deadline_s:.0f} s: cannot {trial.step}",
            hint="Check the network, and for a store of your own AWS_ENDPOINT_URL, STORAGE_EMULATOR_HOST or "
            "AZURE_STORAGE_ENDPOINT.",
        )
    result = outcome[0]
    if isinstance(result, BaseException):
        raise result
    return result


@dataclass
class _Trial:
    """One trial. `step` says what is being tried right now."""

    store: Store
    clock: Clock
    prefix: str
    nonce: bytes
    step: str = "start"
    details: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)

    def run(self) -> ProbeResult:
        rate = 0.0
        deletable = False
        read_back = listable = distinguishes = False
        create: CreateIfAbsent = "unsupported"
        try:
            rate = self._write()
            read_back = self._read()
            listable = self._list()
            distinguishes = self._distinguish()
            create = self._create()
        finally:
            deletable = self._clean()
        return ProbeResult(True, read_back, listable, create, deletable, rate, tuple(self.details), distinguishes)

    def _write(self) -> float:
        body = (self.nonce * (SAMPLE_BYTES // len(self.nonce) + 1))[:SAMPLE_BYTES]
        with self._doing("write"):
            start = self.clock.monotonic()
            self.store.put(self._key("sample"), body)
            took_s = self.clock.monotonic() - start
            self.store.put(self._key("again"), b"first")
            self.store.put(self._key("again"), self.nonce)
        return SAMPLE_BYTES / max(took_s, 1e-6)

    def _read(self) -> bool:
        with self._doing("read what was written"):
            whole = self.store.get(self._key("again")) == self.nonce
            size = self.store.head(self._key("sample")).size == SAMPLE_BYTES
            width = len(self.nonce)
            part = self.store.get_range(self._key("sample"), width, width) == self.nonce
        if not (whole and size and part):
            self.details.append("what was read differs from what was written")
        return whole and size and part

    def _list(self) -> bool:
        with self._doing("list"):
            found = [(meta.key, meta.size) for meta in self.store.list(self.prefix)]
        expected = [(self._key("again"), len(self.nonce)), (self._key("sample"), SAMPLE_BYTES)]
        if found != expected:
            self.details.append("the listing lacks what was just written")
        return found == expected

    def _distinguish(self) -> bool:
        """Two names that differ in the case of a letter only, as long as the longest that a repository makes."""
        names = [f"{first}{'n' * (LONGEST - len(self.prefix))}" for first in "tT"]
        with self._doing("write and read under a long name"):
            for name in names:
                self.store.put(self._key(name), name[:1].encode() + self.nonce)
            distinct = all(self.store.get(self._key(name)) == name[:1].encode() + self.nonce for name in names)
        if not distinct:
            self.details.append("two names that differ in the case of a letter are one object")
        return distinct

    def _create(self) -> CreateIfAbsent:
        key = self._key("once")
        with self._doing("create if absent"):
            try:
                self.store.put_new(key, self.nonce)
                self.store.put_new(key, b"second")
            except StoreUnsupported as refusal:
                self.details.append(refusal.message)
                return "unsupported"
            except AlreadyExists:
                if self.store.get(key) == self.nonce:
                    return self._race()
        self.details.append("a second create of the same name succeeded")
        return "ignored"

    def _race(self) -> CreateIfAbsent:
        """Creates of one name at the same time: at most one may be told that it won, and the object is that one's."""
        key = self._key("race")
        bodies = [b"%d-" % racer + self.nonce for racer in range(RACERS)]
        answers = _at_once([partial(self.store.put_new, key, body) for body in bodies])
        with self._doing("create if absent"):
            for answer in answers:
                # Some servers let losers wait for a lock until they give up: no answer, so nobody was deceived.
                if answer is not None and not isinstance(answer, AlreadyExists) and not answer.retryable:
                    raise answer
            won = [body for body, answer in zip(bodies, answers, strict=True) if answer is None]
            if not won or (len(won) == 1 and self.store.get(key) == won[0]):
                return "atomic"
        self.details.append(f"{len(won)} of {RACERS} creates of one name at the same time succeeded")
        return "ignored"

    def _clean(self) -> bool:
        """Remove what was made; False without the right to."""
        for key in self.made:
            try:
                self.store.delete(key)
            except StoreDenied:
                self.details.append(f"no right to delete: {self.prefix}/ stays, and prune needs another key")
                return False
            except StoreError as error:
                self.details.append(f"{self.prefix}/ stays: {error.message}")
                return False
        return True

    def _key(self, name: str) -> str:
        key = f"{self.prefix}/{name}"
        if key not in self.made:
            self.made.append(key)
        return key

    @contextmanager
    def _doing(self, step: str) -> Iterator[None]:
        self.step = step
        try:
            yield
        except (AlreadyExists, StoreUnsupported):
            raise
        except StoreError as error:
            raise type(error)(f"cannot {step}: {error.message}", hint=error.hint) from error


def _at_once(calls: list[Callable[[], None]]) -> list[StoreError | None]:
    """The error of each call, or None; all started from one barrier."""
    barrier = threading.Barrier(len(calls))
    answers: list[StoreError | None] = [None] * len(calls)

    def one(index: int) -> None:
        barrier.wait()
        try:
            calls[index]()
        except StoreError as error:
            answers[index] = error

    threads = [threading.Thread(target=one, args=(index,), daemon=True) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
