"""What is charged is counted, every try of it; the link's rate is that of large objects while they are under way."""

from __future__ import annotations

import pytest

from spotwarp.errors import ObjectMissing, StoreUnavailable
from spotwarp.persistence.store.api import Buffer
from spotwarp.persistence.store.metered import PAGE, MeteredStore, Usage, Used, usage_of
from spotwarp.persistence.store.retrying import RetryingStore
from spotwarp.persistence.store.single_writer import SingleWriterStore
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.stores import Fault, FaultyStore, MemoryStore

MIB = 1 << 20


class SlowStore(MemoryStore):
    """Takes a second for every MiB."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self._slow = clock

    def put(self, key: str, data: Buffer) -> None:
        self._slow.sleep(len(data) / MIB)
        super().put(key, data)


def test_requests_are_counted_as_stores_charge_them() -> None:
    store = MeteredStore(MemoryStore(), VirtualClock())
    store.put("a/1", b"12345")
    store.put_new("a/2", b"123")
    assert store.get("a/1") == b"12345"
    store.get_range("a/1", 0, 2)
    store.head("a/1")
    with pytest.raises(ObjectMissing):
        store.get("a/3")  # what is not there is charged as well
    assert len(list(store.list("a"))) == 2
    store.delete("a/1")
    assert store.usage.now() == Used(puts=2, gets=4, lists=1, deletes=1, sent=8, got=7)


def test_a_long_listing_is_several_requests() -> None:
    store = MeteredStore(MemoryStore(), VirtualClock())
    for number in range(PAGE + 1):
        store.put(f"many/{number}", b"")
    list(store.list("many"))
    list(store.list("none"))
    assert store.usage.now().lists == 2 + 1


def test_every_try_counts_and_those_that_were_refused_are_known() -> None:
    clock = VirtualClock()
    inner = FaultyStore(MemoryStore())
    inner.add(Fault(verbs="put list", times=2, error=StoreUnavailable("503")))
    store = SingleWriterStore(RetryingStore(MeteredStore(inner, clock), clock=clock, rng=SeededRng()))
    store.put("k", b".")
    usage = usage_of(store)
    assert usage is not None
    assert (usage.now().puts, usage.now().refused) == (3, 2)


def test_the_rate_is_that_of_the_link_whatever_was_waited_for_between() -> None:
    clock = VirtualClock()
    store = MeteredStore(SlowStore(clock), clock)
    assert store.usage.now().up_bytes_s is None
    for number in range(4):
        store.put(f"pack/{number}", bytes(2 * MIB))
        clock.sleep(100.0)  # nothing to send
        store.put("small", b".")
    assert store.usage.now().up_bytes_s == pytest.approx(MIB, rel=0.01)


def test_packs_that_are_under_way_together_share_the_time() -> None:
    clock = VirtualClock()
    usage = Usage(clock)
    with usage.sending(4 * MIB), usage.sending(4 * MIB):
        clock.sleep(2.0)
    assert usage.now().up_bytes_s == 4 * MIB
    with pytest.raises(StoreUnavailable), usage.sending(8 * MIB):
        raise StoreUnavailable("what was not acknowledged does not count")
    assert usage.now().bulk == 8 * MIB
