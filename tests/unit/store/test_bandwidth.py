"""A limit of bandwidth holds on average, counts both ways apart, never holds up what is urgent, and can be lifted."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from spotwarp.persistence.store.bandwidth import BURST_S, Bucket
from spotwarp.persistence.store.retrying import RetryingStore, RetryPolicy
from spotwarp.persistence.store.single_writer import SingleWriterStore
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.stores import MemoryStore


@given(st.floats(1.0, 1e9), st.lists(st.tuples(st.integers(0, 1 << 30), st.floats(0.0, 5.0)), min_size=1, max_size=30))
def test_no_more_than_the_limit_begins_but_for_the_burst_and_the_last(
    rate: float, turns: list[tuple[int, float]]
) -> None:
    bucket, now, before = Bucket(rate), 100.0, 0
    for size, idle in turns:
        now += idle
        now += bucket.turn_s(now, size)  # whoever gets a turn keeps it
        assert before <= rate * (now - 100.0 + BURST_S) * (1 + 1e-9) + 1e-3
        before += size


@given(st.floats(1.0, 1e9), st.lists(st.integers(1, 1 << 30), min_size=2, max_size=30))
def test_nobody_waits_longer_than_what_was_taken_before_takes(rate: float, sizes: list[int]) -> None:
    bucket = Bucket(rate)
    taken = 0
    for size in sizes:
        assert bucket.turn_s(0.0, size) <= taken / rate + 1e-6
        taken += size


def limited(clock: VirtualClock, rate: float = 1e6) -> RetryingStore:
    store = RetryingStore(
        MemoryStore(clock=clock), clock=clock, rng=SeededRng(), policy=RetryPolicy(0.5), bandwidth=rate
    )
    for number in range(4):
        MemoryStore.put(store._inner, f"there/{number}", bytes(2_000_000))  # type: ignore[arg-type]
    return store


def test_what_is_sent_and_what_is_fetched_keep_the_limit_each_and_it_costs_no_patience() -> None:
    clock = VirtualClock()
    store = limited(clock)
    for number in range(4):
        store.put(f"k/{number}", bytes(2_000_000))  # the wait is longer than the store would be tried
    sent_s = clock.monotonic()
    assert 5.0 - BURST_S <= sent_s <= 6.0
    for number in range(4):
        assert len(store.get_range(f"there/{number}", 0, 1_000_000)) == 1_000_000
    assert 3.0 - BURST_S <= clock.monotonic() - sent_s <= 3.0


def test_the_log_and_the_heartbeat_never_wait() -> None:
    clock = VirtualClock()
    store = limited(clock)
    store.put("bulk", bytes(60_000_000))
    urgent = store.with_budget(1.0)
    urgent.put("beat", b".")
    urgent.put_new("entry", b".")
    urgent.get("there/1")
    assert clock.monotonic() == 0.0


def test_a_notice_ends_the_waits_that_are_and_those_to_come() -> None:
    clock = VirtualClock()
    store = limited(clock)
    store.put("first", bytes(60_000_000))
    SingleWriterStore(store).press_on()
    store.put("second", bytes(60_000_000))
    store.put("third", bytes(60_000_000))
    assert clock.monotonic() == 0.0


def test_a_wait_that_is_under_way_ends_with_the_notice() -> None:
    class Noticed(VirtualClock):
        """The notice comes while somebody waits."""

        def wait(self, event: threading.Event, seconds: float | None) -> bool:
            if self.monotonic() >= 1.0:
                store.press_on()
            return super().wait(event, seconds)

    clock = Noticed()
    store = limited(clock)
    store.put("first", bytes(60_000_000))
    store.put("second", b"..")
    assert clock.monotonic() < 2.0


def test_cancelling_ends_the_wait() -> None:
    class Cancelled(VirtualClock):
        """Somebody gives up while another waits."""

        def wait(self, event: threading.Event, seconds: float | None) -> bool:
            store.cancel.set()
            return super().wait(event, seconds)

    clock = Cancelled()
    store = limited(clock)
    store.put("first", bytes(60_000_000))
    store.put("second", b"..")
    assert clock.monotonic() < 2.0
    assert MemoryStore.get(store._inner, "second") == b".."  # type: ignore[arg-type]
