"""The test kit's own promises: a fault that does not bite makes every test above it a lie."""

from __future__ import annotations

import pytest

from spotwarp.errors import AlreadyExists, ObjectMissing, StoreDenied, StoreUnavailable
from spotwarp.testing.stores import Crash, Fault, FaultyStore, MemoryStore, deny_delete


def test_before_and_after_the_effect() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, Fault("put", error=StoreUnavailable("x")), Fault("put_new", lost_reply=True))
    with pytest.raises(StoreUnavailable):
        store.put("a", b"1")
    assert inner.contents() == {}
    with pytest.raises(StoreUnavailable):
        store.put_new("b", b"2")
    assert inner.contents() == {"b": b"2"}
    store.put("a", b"1")
    assert store.get("a") == b"1"


def test_a_late_effect_lands_when_told_even_over_newer_things() -> None:
    store = FaultyStore(MemoryStore(), Fault("put put_new", times=2, late=True))
    with pytest.raises(StoreUnavailable):
        store.put("hint", b"old")
    with pytest.raises(StoreUnavailable):
        store.put_new("log/1", b"late")
    store.put("hint", b"new")
    store.put_new("log/1", b"mine")
    assert store.land() == 2
    assert store.get("hint") == b"old"
    assert store.get("log/1") == b"mine", "a late create loses against a name that is taken"
    assert store.land() == 0


def test_acknowledged_and_dropped() -> None:
    store = FaultyStore(MemoryStore(), Fault("put", key="^packs/", drop=True))
    store.put("packs/1", b"x")
    with pytest.raises(ObjectMissing):
        store.get("packs/1")


def test_reads_are_cut_and_bent() -> None:
    store = FaultyStore(MemoryStore(), Fault("get", truncate=2), Fault("get_range", corrupt=-1))
    store.put("a", b"abcd")
    assert store.get("a") == b"ab"
    assert store.get("a") == b"abcd"
    assert store.get_range("a", 1, 3) == b"bc1"


def test_skip_times_number_and_predicate() -> None:
    store = FaultyStore(MemoryStore(), Fault("put", skip=1, times=2, error=StoreDenied("x")))
    outcomes = []
    for n in range(5):
        try:
            store.put("a", b"%d" % n)
            outcomes.append("ok")
        except StoreDenied:
            outcomes.append("no")
    assert outcomes == ["ok", "no", "no", "ok", "ok"]
    store.heal()
    store.add(Fault(at=7, error=StoreDenied("x")), Fault(when=lambda call: call.size == 3, error=StoreDenied("y")))
    store.put("a", b"")
    with pytest.raises(StoreDenied, match="x"):
        store.get("a")
    with pytest.raises(StoreDenied, match="y"):
        store.put("a", b"123")
    assert store.count("put", "a") == 7
    assert [call.number for call in store.calls] == list(range(1, 9))


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_is_for_good_and_nothing_catches_it_by_mistake(after: bool) -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, Fault(at=2, crash=not after, crash_after=after))
    store.put("a", b"1")
    with pytest.raises(Crash):
        store.put("b", b"2")
    assert ("b" in inner.contents()) is after
    with pytest.raises(Crash):
        store.get("a")
    assert not issubclass(Crash, Exception)
    store.heal()
    assert store.get("a") == b"1"


def test_hooks_run_around_the_effect() -> None:
    inner = MemoryStore()
    seen: list[tuple[str, bool]] = []
    store = FaultyStore(
        inner,
        Fault(
            "put",
            hook=lambda: seen.append(("before", "a" in inner.contents())),
            hook_after=lambda: seen.append(("after", "a" in inner.contents())),
        ),
    )
    store.put("a", b"1")
    assert seen == [("before", False), ("after", True)]


def test_ready_made_stores() -> None:
    store = FaultyStore(MemoryStore(), deny_delete())
    store.put_new("a", b"1")
    with pytest.raises(StoreDenied):
        store.delete("a")
    with pytest.raises(AlreadyExists):
        store.put_new("a", b"2")


def test_a_copy_is_another_store() -> None:
    inner = MemoryStore()
    inner.put("a", b"1")
    twin = inner.copy()
    twin.put("a", b"2")
    assert inner.get("a") == b"1"
    assert twin.head("a").size == 1
