"""How long is waited, and when it is enough."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwarp.errors import AlreadyExists, StoreConflict, StoreDenied, StoreError, StoreUnavailable
from spotwarp.persistence.store.retrying import Pace, RetryingStore, RetryPolicy
from spotwarp.retry import Backoff, call
from spotwarp.testing.stores import Fault, FaultyStore, MemoryStore


class Time:
    """A clock that moves only when somebody waits; it remembers every wait."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        self.on_wait: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def thread_s(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        assert seconds is not None
        self.on_wait()
        if event.is_set():
            return True
        self.sleep(seconds)
        return False


class Middle:
    """Randomness without any."""

    def token(self, nbytes: int) -> str:
        return "0" * 2 * nbytes

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True), st.floats(0.001, 10), st.floats(1, 4))
def test_a_wait_is_never_above_the_cap_and_never_under_half(
    failures: int, jitter: float, first: float, factor: float
) -> None:
    backoff = Backoff(first_s=first, factor=factor, cap_s=10.0)
    wait = backoff.wait_s(failures, jitter)
    assert 0 < wait <= 10.0
    assert wait >= backoff.wait_s(failures, 0.0)
    assert backoff.wait_s(failures + 1, 0.0) >= backoff.wait_s(failures, 0.0)


def failing(times: int, error: StoreError) -> Callable[[], str]:
    left = [times]

    def fn() -> str:
        if left[0]:
            left[0] -= 1
            raise error
        return "done"

    return fn


def test_the_schedule_doubles_up_to_the_cap() -> None:
    time = Time()
    assert call(failing(9, StoreUnavailable("x")), clock=time, rng=Middle(), budget_s=100) == "done"
    assert time.waits == pytest.approx([0.075, 0.15, 0.3, 0.6, 1.2, 2.4, 4.8, 7.5, 7.5])


def test_it_stops_before_the_budget_would_be_overrun_and_raises_the_last_error() -> None:
    time = Time()
    error = StoreUnavailable("still down")
    with pytest.raises(StoreUnavailable) as caught:
        call(failing(1000, error), clock=time, rng=Middle(), budget_s=5)
    assert caught.value is error
    assert 2 < time.now <= 5


def test_no_budget_means_one_try() -> None:
    time = Time()
    with pytest.raises(StoreUnavailable):
        call(failing(1, StoreUnavailable("x")), clock=time, rng=Middle(), budget_s=0)
    assert time.waits == []


@pytest.mark.parametrize("error", [StoreDenied("x"), AlreadyExists("x"), StoreError("x")])
def test_what_cannot_get_better_is_not_tried_again(error: StoreError) -> None:
    time = Time()
    with pytest.raises(type(error)):
        call(failing(1, error), clock=time, rng=Middle(), budget_s=60)
    assert time.waits == []


def test_cancelling_ends_a_wait_and_the_tries() -> None:
    time, cancel = Time(), threading.Event()
    time.on_wait = lambda: cancel.set() if len(time.waits) == 2 else None
    with pytest.raises(StoreUnavailable):
        call(failing(1000, StoreUnavailable("x")), clock=time, rng=Middle(), budget_s=60, cancel=cancel)
    assert len(time.waits) == 2


def retrying(inner: FaultyStore, time: Time, budget_s: float = 60.0) -> RetryingStore:
    return RetryingStore(inner, clock=time, rng=Middle(), policy=RetryPolicy(budget_s))


VERBS: dict[str, Callable[[RetryingStore], object]] = {
    "put": lambda store: store.put("a", b"2"),
    "get": lambda store: store.get("a"),
    "get_range": lambda store: store.get_range("a", 0, 1),
    "head": lambda store: store.head("a"),
    "list": lambda store: list(store.list("")),
    "delete": lambda store: store.delete("a"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("error", [StoreUnavailable("503"), StoreConflict("409")])
def test_a_hiccup_is_not_a_failure(verb: str, error: StoreError) -> None:
    inner = FaultyStore(MemoryStore())
    inner.put("a", b"1")
    inner.add(Fault(verb, times=3, error=error))
    before = inner.count(verb)
    VERBS[verb](retrying(inner, Time()))
    assert inner.count(verb) == before + 4


def test_put_new_is_never_repeated() -> None:
    inner = FaultyStore(MemoryStore(), Fault("put_new", lost_reply=True))
    with pytest.raises(StoreUnavailable):
        retrying(inner, Time()).put_new("a", b"1")
    assert inner.count("put_new") == 1


def test_a_small_budget_is_a_view_of_the_same_store() -> None:
    time = Time()
    inner = FaultyStore(MemoryStore(), Fault("get", times=None, error=StoreUnavailable("x")))
    store = retrying(inner, time)
    with pytest.raises(StoreUnavailable):
        store.with_budget(2.0).get("a")
    assert time.now <= 2.0
    assert store.with_budget(2.0).cancel is store.cancel


def test_after_cancel_calls_are_made_once_each_without_waiting() -> None:
    time = Time()
    inner = FaultyStore(MemoryStore(), Fault("put", times=None, error=StoreUnavailable("x")))
    store = retrying(inner, time)
    store.cancel.set()
    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            store.put("a", b"")
    assert time.now == 0
    assert inner.count("put") == 5
    store.put_new("b", b"1")
    assert store.get("b") == b"1"


def test_bulk_slows_down_after_refusals_and_urgent_calls_do_not_queue() -> None:
    time = Time()
    inner = FaultyStore(MemoryStore(), Fault("put", times=6, error=StoreUnavailable("SlowDown")))
    store = retrying(inner, time)
    store.put("a", b"1")
    time.waits.clear()
    store.put("b", b"1")
    store.put("c", b"1")
    assert sum(time.waits) > 0, "the pace was forgotten at once"
    time.waits.clear()
    store.with_budget(2.0).put("beat", b"1")
    assert time.waits == []


def test_the_pace_counts_refusals_of_one_moment_once_and_recovers() -> None:
    time = Time()
    pace = Pace(time)
    assert pace.turn_s() == 0.0
    started = time.now
    time.now += 0.1
    for _ in range(8):
        pace.slower(started)
    assert pace.gap_s == Pace.FIRST_S
    for _ in range(20):
        time.now += 0.1
        pace.slower(time.now)
    assert pace.gap_s == Pace.MOST_S
    assert [pace.turn_s() for _ in range(3)] == pytest.approx([0, Pace.MOST_S, 2 * Pace.MOST_S])
    for _ in range(20):
        pace.faster()
    assert pace.gap_s == 0.0


def asking(seconds: float) -> StoreUnavailable:
    error = StoreUnavailable("SlowDown")
    error.retry_after_s = seconds
    return error


def test_a_pause_that_is_asked_for_is_kept_and_jitter_comes_on_top() -> None:
    time = Time()
    inner = FaultyStore(MemoryStore(), Fault("put", times=1, error=asking(7.0)))
    store = retrying(inner, time)
    store.put("a", b"1")
    assert 7.0 < time.now < 8.0
    store.put_new("b", b"1")
    assert time.now < 8.1


def test_a_pause_holds_the_others_back_but_not_what_is_urgent() -> None:
    time = Time()
    inner = FaultyStore(MemoryStore(), Fault("put_new", error=asking(30.0)))
    store = retrying(inner, time)
    with pytest.raises(StoreUnavailable):
        store.put_new("log/1", b"1")
    store.with_budget(2.0).put("beat", b"1")
    assert time.now == 0
    store.put("pack", b"1")
    assert time.now == pytest.approx(30.0)


def test_a_pause_has_a_limit_and_pressing_on_ends_it() -> None:
    time = Time()
    pace = Pace(time)
    pace.pause(10**9)
    assert pace.pause_s() == Pace.PAUSE_S
    pace.press_on()
    assert (pace.pause_s(), pace.turn_s()) == (0.0, 0.0)
    pace.pause(10.0)
    assert pace.pause_s() == 0.0
