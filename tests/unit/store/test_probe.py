"""What the probe makes of stores that keep some promises only."""

from __future__ import annotations

import threading

import pytest

from spotwarp.clock import SystemClock, SystemRng
from spotwarp.errors import BucketMissing, StoreDenied, StoreError, StoreUnavailable, StoreUnsupported
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.store.probe import ProbeResult, probe
from spotwarp.testing.stores import (
    Fault,
    FaultyStore,
    MemoryStore,
    deny_delete,
    ignore_conditions,
    refuse_conditions,
)


def tried(store: Store, deadline_s: float = 20.0) -> ProbeResult:
    return probe(store, clock=SystemClock(), rng=SystemRng(), deadline_s=deadline_s)


def test_a_good_store() -> None:
    inner = MemoryStore()
    result = tried(FaultyStore(inner))
    result.require()
    assert result == ProbeResult(True, True, True, "atomic", True, result.put_rate_bytes_s)
    assert inner.contents() == {}


def test_no_right_to_delete_is_fine_and_said() -> None:
    result = tried(FaultyStore(MemoryStore(), deny_delete()))
    result.require()
    assert not result.deletable
    assert "probe/" in result.details[0]


def test_a_store_that_ignores_the_condition() -> None:
    result = tried(FaultyStore(MemoryStore(), ignore_conditions()))
    assert result.create_if_absent == "ignored"
    with pytest.raises(StoreUnsupported, match="ignores"):
        result.require()


def test_a_store_that_refuses_the_condition() -> None:
    result = tried(FaultyStore(MemoryStore(), refuse_conditions()))
    assert result.create_if_absent == "unsupported"
    assert "501" in result.details[0]
    with pytest.raises(StoreUnsupported, match="refuses"):
        result.require()


def test_a_store_whose_condition_holds_one_at_a_time_only() -> None:
    result = tried(FaultyStore(MemoryStore(), Fault("put_new", "race$", times=2, ignore_condition=True)))
    # Two of the racers overwrite what is there: with the one honest winner more than one was told it had won,
    # unless both came first; then two were told so all the same.
    assert result.create_if_absent == "ignored"
    with pytest.raises(StoreUnsupported):
        result.require()


def test_a_lost_reply_in_the_race_is_not_held_against_the_store() -> None:
    result = tried(FaultyStore(MemoryStore(), Fault("put_new", "race$", lost_reply=True)))
    assert result.create_if_absent == "atomic"


@pytest.mark.parametrize(
    "fault",
    [
        Fault("put", drop=True, skip=2),  # the overwrite is acknowledged and forgotten
        Fault("get", corrupt=3),
        Fault("get", truncate=3),
        Fault("get_range", corrupt=0),
    ],
)
def test_a_store_that_does_not_give_back_what_it_took(fault: Fault) -> None:
    result = tried(FaultyStore(MemoryStore(), fault))
    assert not result.read_back
    with pytest.raises(StoreUnsupported, match="give back"):
        result.require()


def test_a_listing_that_lags() -> None:
    result = tried(FaultyStore(MemoryStore(), Fault("list", truncate=1)))
    assert not result.listable
    with pytest.raises(StoreUnsupported):
        result.require()


@pytest.mark.parametrize(
    ("verb", "error", "step"),
    [
        ("put", BucketMissing("no bucket", hint="Create it."), "cannot write"),
        ("put", StoreDenied("denied", hint="Check AWS_ACCESS_KEY_ID."), "cannot write"),
        ("get", StoreDenied("denied", hint="Check the rights."), "cannot read"),
        ("list", StoreDenied("denied", hint="Check the rights."), "cannot list"),
        ("put_new", StoreDenied("denied", hint="Check the rights."), "cannot create"),
    ],
)
def test_an_error_keeps_its_type_and_hint_and_says_the_step(verb: str, error: StoreError, step: str) -> None:
    inner = MemoryStore()
    with pytest.raises(type(error), match=step) as caught:
        tried(FaultyStore(inner, Fault(verb, times=None, error=error)))
    assert caught.value.hint == error.hint
    assert inner.contents() == {}, "a failed trial leaves nothing either"


@pytest.mark.parametrize("verb", ["put", "get", "list", "put_new", "delete"])
def test_a_store_that_hangs_is_left_at_the_deadline(verb: str) -> None:
    release = threading.Event()
    store = FaultyStore(MemoryStore(), Fault(verb, times=None, hook=lambda: release.wait(30)))
    try:
        with pytest.raises(StoreUnavailable, match="did not answer within"):
            tried(store, deadline_s=0.3)
    finally:
        release.set()
