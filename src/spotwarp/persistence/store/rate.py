"""How fast a store takes and gives, and how far its clock is from ours: measured with random bytes, removed after.

Owns what it puts, all below `probe/<random>/`, and takes a few seconds, whatever the store does. What it measures is
the network and the store together, with as many uploads at once as a backup has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from spotwarp.clock import Clock, Rng
from spotwarp.errors import StoreError
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.store.probe import PREFIX

SAMPLE_BYTES = 8 << 20
MOST_BYTES = 128 << 20
AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a second up and down, over `bytes`; seconds that one small object takes; and the store's clock minus ours,
    in seconds, give or take `clock_within_s`."""

    up_bytes_s: float
    down_bytes_s: float
    bytes: int
    latency_s: float
    clock_offset_s: float
    clock_within_s: float


def measure(store: Store, *, clock: Clock, rng: Rng, seconds: float = 3.0) -> Rates:
    """Put for about `seconds`, read for about as long, remove everything. Raises the first `StoreError`."""
    prefix = f"{PREFIX}/{rng.token(8)}"
    keys: list[str] = []
    try:
        latency_s, offset_s, within_s = _small(store, clock, f"{prefix}/clock", keys)
        body = bytes.fromhex(rng.token(SAMPLE_BYTES))

        def up(number: int) -> None:
            keys.append(f"{prefix}/{number}")
            store.put(keys[-1], body)

        sent, up_s = _for_a_while(up, clock, seconds)
        got, down_s = _for_a_while(lambda number: store.get(f"{prefix}/{number}"), clock, seconds, rounds=sent)
    finally:
        for key in keys:
            with suppress(StoreError):
                store.delete(key)
    size = SAMPLE_BYTES * AT_ONCE
    return Rates(size * sent / up_s, size * got / down_s, size * sent, latency_s, offset_s, within_s)


def _small(store: Store, clock: Clock, key: str, keys: list[str]) -> tuple[float, float, float]:
    """How long a small object takes; by how much the time that the store gave it differs from ours."""
    keys.append(key)
    before, started = clock.wall(), clock.monotonic()
    store.put(key, b".")
    took_s = clock.monotonic() - started
    stamp = store.head(key).modified
    early = (stamp - before).total_seconds()
    # The stamp is of some moment during the put; most stores cut it to whole seconds.
    within_s = took_s / 2 + (0.5 if not stamp.microsecond else 0.0)
    return took_s, early - took_s / 2 + (0.5 if not stamp.microsecond else 0.0), within_s


def _for_a_while(
    call: Callable[[int], object], clock: Clock, seconds: float, *, rounds: int | None = None
) -> tuple[int, float]:
    """Rounds of calls at once, until `seconds` or `rounds` are over: how many rounds, in how many seconds."""
    started, done = clock.monotonic(), 0
    most = MOST_BYTES // (SAMPLE_BYTES * AT_ONCE) if rounds is None else rounds
    while done < most and (done == 0 or clock.monotonic() - started < seconds):
        _at_once(call, range(done * AT_ONCE, (done + 1) * AT_ONCE))
        done += 1
    return done, max(clock.monotonic() - started, 1e-6)


def _at_once(call: Callable[[int], object], numbers: range) -> None:
    errors: list[StoreError] = []

    def one(number: int) -> None:
        try:
            call(number)
        except StoreError as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
