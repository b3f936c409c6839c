"""Reading to the head and appending to it over a store that misbehaves in one way at a time."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from msgspec.structs import replace

from spotwarp.errors import (
    CorruptObject,
    Fenced,
    LeaseError,
    ObjectMissing,
    RunEnded,
    RunMissing,
    StoreConflict,
    StoreDenied,
    StoreUnavailable,
    UnsupportedFormat,
)
from spotwarp.persistence import layout
from spotwarp.persistence.envelope import Kind, seal
from spotwarp.persistence.runlog import log as log_module
from spotwarp.persistence.runlog.entry import Claim, Forget, Released, Snapshot, State, encode
from spotwarp.persistence.runlog.log import HINT_EVERY, Head, RunLog, Stands
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.stores import Fault, FaultyStore, MemoryStore

ENTRY = r"/log/"


class Bench:
    """A store, its faults and its clock; `log` opens the run as a life would."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.memory = MemoryStore(clock=self.clock)
        self.store = FaultyStore(self.memory)

    def log(self, life: str = "a", store: Any = None) -> RunLog:
        return RunLog(store or self.store, "main", life=life, clock=self.clock, rng=SeededRng(life))

    def key(self, n: int) -> str:
        return layout.log_key("main", n)

    def gets(self) -> int:
        return self.store.count("get")

    def flip(self, n: int, at: int = 20) -> None:
        data = bytearray(self.memory.get(self.key(n)))
        data[at] ^= 1
        self.memory.put(self.key(n), bytes(data))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def note(log: RunLog, word: str = "i") -> Released:
    return log.append(lambda _: Released(intent=word))


def claim(log: RunLog) -> Claim:
    return log.append(
        lambda h: Claim(
            generation=h.state.generation + 1, machine=log.life, cause="first", base=h.state.snapshot, lease_s=20
        )
    )


def save(log: RunLog, generation: int = 1) -> Snapshot:
    return log.append(
        lambda h: Snapshot(
            generation=generation, manifest=f"1-{h.n}", address="", base=h.state.snapshot, cls="resumable"
        )
    )


# ---- reading -------------------------------------------------------------------------------------------------------


def test_a_run_without_entries(bench: Bench) -> None:
    assert bench.log().head() == Head(0, State())
    with pytest.raises(RunMissing, match="no run 'main'"):
        bench.log().existing_head()


@pytest.mark.parametrize("length", [1, 2, 3, 15, 16, 17, 40])
def test_every_reader_finds_the_head(bench: Bench, length: int) -> None:
    writer = bench.log()
    for _ in range(length):
        last = note(writer)

    assert last.n == length
    assert bench.log("b").head().n == bench.log("b").existing_head().n == writer.head().n == length


def test_the_head_costs_three_gets_from_cold_and_one_when_nothing_is_new(bench: Bench) -> None:
    writer = bench.log()
    for _ in range(10 * HINT_EVERY):
        note(writer)
    reader, before = bench.log("b"), bench.gets()

    reader.head()
    assert bench.gets() - before == 3  # the hint, the entry, and nothing above it
    reader.head()
    assert bench.gets() - before == 4


def test_the_head_costs_few_gets_however_long_the_log_and_wherever_it_ends(bench: Bench) -> None:
    writer, most = bench.log(), 0
    for n in range(1, 10 * HINT_EVERY):
        note(writer)
        before = bench.gets()
        assert bench.log("b").head().n == n
        if n >= HINT_EVERY:
            most = max(most, bench.gets() - before)

    assert most <= 11


@pytest.mark.parametrize(
    "hint",
    [b"5", b"1", b"0", b"-3", b"4000", b"99999999999999", b"no number", None],
    ids=["true", "backwards", "zero", "negative", "beyond", "absurd", "words", "gone"],
)
def test_a_lying_or_missing_hint_only_costs_probes(bench: Bench, hint: bytes | None) -> None:
    writer = bench.log()
    for _ in range(21):
        note(writer)
    if hint is None:
        bench.memory.delete(layout.hint_key("main"))
    else:
        bench.memory.put(layout.hint_key("main"), seal(Kind.HINT, hint))

    assert bench.log("b").head().n == 21


def test_a_damaged_or_newer_hint_only_costs_probes(bench: Bench) -> None:
    note(bench.log())
    newer = bytearray(seal(Kind.HINT, b"1"))
    newer[5] = 9
    for data in (b"rubbish", bytes(newer)):
        bench.memory.put(layout.hint_key("main"), data)
        assert bench.log("b").head().n == 1


def test_a_hint_that_cannot_be_written_does_not_matter(bench: Bench) -> None:
    bench.store.add(Fault("put", times=None, error=StoreDenied("no")))
    writer = bench.log()

    for _ in range(HINT_EVERY):
        note(writer)

    assert bench.log("b").head().n == HINT_EVERY


def test_entries_come_in_order_and_are_read_once(bench: Bench) -> None:
    writer = bench.log()
    for k in range(5):
        note(writer, str(k))
    reader = bench.log("b")

    assert [e.intent for e in reader.entries() if isinstance(e, Released)] == list("01234")
    before = bench.gets()
    assert [e.n for e in reader.entries([2, 4])] == [2, 4]
    assert bench.gets() == before


def test_a_missing_entry_is_missing(bench: Bench) -> None:
    with pytest.raises(ObjectMissing):
        bench.log().read(1)


def test_old_entries_leave_the_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "KEPT_ENTRIES", 3)
    log = bench.log()
    for _ in range(5):
        note(log)
    before = bench.gets()

    assert log.read(5).n == 5
    assert bench.gets() == before
    assert log.read(1).n == 1
    assert bench.gets() == before + 1


# ---- damage and newer versions -------------------------------------------------------------------------------------


def newer_kind(n: int) -> bytes:
    return encode(replace(Released(intent="i"), n=n, nonce="z.1")).replace(b'"released"', b'"teleport"')


def reseal(data: bytes) -> bytes:
    return seal(Kind.ENTRY, data[8:-16])


def newer_version(n: int) -> bytes:
    return encode(replace(Released(intent="i"), v=1, n=n, nonce="z.1"))


def newer_frame(n: int) -> bytes:
    data = bytearray(newer_version(n))
    data[5] = 9
    return bytes(data)


@pytest.mark.parametrize(
    "make", [lambda n: reseal(newer_kind(n)), newer_version, newer_frame], ids=["kind", "v", "frame"]
)
def test_an_entry_of_a_newer_spotwarp_makes_the_run_read_only(bench: Bench, make: Any) -> None:
    log = bench.log()
    claim(log)
    saved = save(log)
    bench.memory.put_new(bench.key(3), make(3))

    for reader in (log, bench.log("b")):
        head = reader.head()
        assert (head.n, head.state.retained) == (3, (saved.n,))  # what can be restored is still seen
        assert "newer SpotWarp" in head.readonly
        with pytest.raises(UnsupportedFormat, match=r"cannot be written.*entry 3") as refused:
            note(reader)
        assert "restored" in (refused.value.hint or "")
    assert not bench.store.count("put_new", bench.key(4))


def test_a_slot_that_a_newer_spotwarp_takes_is_not_ours(bench: Bench) -> None:
    log = bench.log()
    note(log)
    bench.store.add(Fault("put_new", ENTRY, hook=lambda: bench.memory.put_new(bench.key(2), newer_frame(2))))

    with pytest.raises(UnsupportedFormat, match="entry 2"):
        note(log)


def test_a_damaged_tail_makes_the_run_read_only_on_what_lies_below(bench: Bench) -> None:
    log = bench.log()
    claim(log)
    saved = save(log)
    note(log)
    bench.flip(3)

    head = bench.log("b").head()

    assert (head.n, head.state.retained) == (3, (saved.n,))
    assert "entry 3 is damaged" in head.readonly
    with pytest.raises(UnsupportedFormat, match="entry 3 is damaged"):
        note(bench.log("b"))


def test_a_damaged_entry_in_the_middle_costs_only_itself(bench: Bench) -> None:
    log = bench.log()
    claim(log)
    for _ in range(3):
        save(log)
    bench.flip(2)
    reader = bench.log("b")

    assert reader.head().state.retained == (2, 3, 4)
    assert note(reader).n == 5
    with pytest.raises(CorruptObject):
        reader.read(2)


def test_a_log_of_nothing_but_damage_is_read_only(bench: Bench) -> None:
    note(bench.log())
    bench.flip(1)

    head = bench.log("b").head()

    assert (head.n, head.state) == (1, State())
    assert head.readonly


# ---- appending -----------------------------------------------------------------------------------------------------


def test_an_entry_carries_the_fold_of_what_lies_below(bench: Bench) -> None:
    log = bench.log()
    first, second = claim(log), save(log)

    assert first.state == State()
    assert second.state == State(generation=1, claim=1, life="a", machine="a", claimed={"a": 1})
    assert log.head().state.snapshot == 2
    assert (second.n, second.by, second.nonce) == (2, "a", "a.2")
    assert second.wall.startswith("2030-01-01T00:00:00.000")


def test_after_a_collision_the_decision_is_made_again(bench: Bench) -> None:
    mine, other = bench.log("a"), bench.log("b", bench.memory)
    seen: list[int] = []

    def decide(head: Head) -> Released:
        seen.append(head.n)
        return Released(intent="mine")

    bench.store.add(Fault("put_new", ENTRY, times=2, hook=lambda: note(other)))

    assert mine.append(decide).n == 3
    assert seen == [0, 1, 2]


def test_of_many_threads_each_entry_has_one_winner(bench: Bench) -> None:
    logs = [bench.log(life) for life in "abcd"]
    threads = [threading.Thread(target=lambda log=log: [note(log, log.life) for _ in range(5)]) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    notes = [e.intent for e in bench.log("r").entries() if isinstance(e, Released)]
    assert sorted(notes) == sorted("abcd" * 5)


def test_a_lost_reply_is_settled_by_reading_the_slot(bench: Bench) -> None:
    bench.store.add(Fault("put_new", ENTRY, lost_reply=True))

    assert note(bench.log()).n == 1
    assert bench.log("b").head().n == 1


def test_a_put_that_never_arrived_is_made_again_as_it_was(bench: Bench) -> None:
    bench.store.add(Fault("put_new", ENTRY, error=StoreUnavailable("gone")))

    assert note(bench.log()).nonce == "a.1"


def test_a_put_that_arrives_late_is_ours_all_the_same(bench: Bench) -> None:
    bench.store.add(Fault("put_new", ENTRY, late=True))
    bench.store.add(Fault("put_new", ENTRY, hook=bench.store.land))

    assert note(bench.log()).nonce == "a.1"
    assert bench.log("b").head().n == 1


def test_a_lost_reply_on_a_slot_that_another_took_is_a_collision(bench: Bench) -> None:
    other = bench.log("b", bench.memory)
    bench.store.add(Fault("put_new", ENTRY, late=True, hook=lambda: note(other)))

    mine = note(bench.log())

    bench.store.land()
    assert (mine.n, mine.nonce) == (2, "a.2")
    assert bench.log("c").head().n == 2


def test_409_is_the_same_put_again(bench: Bench) -> None:
    bench.store.add(Fault("put_new", ENTRY, times=5, error=StoreConflict("again")))

    assert note(bench.log()).nonce == "a.1"
    assert bench.clock.monotonic() > 0.2


def test_a_slot_that_cannot_be_read_is_read_again(bench: Bench) -> None:
    bench.store.add(
        Fault("put_new", ENTRY, lost_reply=True),
        Fault("get", ENTRY, skip=1, times=2, error=StoreUnavailable("slow down")),
        Fault("get", ENTRY, corrupt=30),
    )

    assert note(bench.log()).nonce == "a.1"
    assert bench.log("b").head().n == 1


def test_a_store_that_stays_silent_is_given_up_after_the_budget(bench: Bench) -> None:
    bench.store.add(Fault("put_new", ENTRY, times=None, late=True))
    log = bench.log()

    with pytest.raises(StoreUnavailable, match="no usable answer"):
        log.append(lambda _: Released(intent="i"), budget_s=10)

    assert 10 <= bench.clock.monotonic() < 15
    bench.store.heal()
    bench.store.land()
    assert log.head().n == 1  # it came to stand after all, and the next append finds it
    assert note(log).n == 2


def test_the_budget_is_the_logs_own_unless_told(bench: Bench) -> None:
    bench.store.add(Fault("put_new", ENTRY, times=None, error=StoreConflict("again")))
    log = RunLog(bench.store, "main", life="a", clock=bench.clock, rng=SeededRng(), append_budget_s=3)

    with pytest.raises(StoreUnavailable):
        note(log)

    assert 3 <= bench.clock.monotonic() < 6


def test_an_error_that_is_an_answer_is_raised_at_once(bench: Bench) -> None:
    bench.store.add(Fault("put_new", ENTRY, error=StoreDenied("403")))

    with pytest.raises(StoreDenied):
        note(bench.log())
    assert bench.store.count("put_new") == 1


def test_an_entry_that_stands_already_is_the_result(bench: Bench) -> None:
    log = bench.log()
    first = note(log)

    def decide(head: Head) -> Released:
        raise Stands(first)

    assert log.append(decide) is first
    assert log.head().n == 1


# ---- refusals ------------------------------------------------------------------------------------------------------


def test_a_superseded_writer_is_fenced(bench: Bench) -> None:
    old = bench.log("a")
    claim(old)
    claim(bench.log("b"))

    with pytest.raises(Fenced, match="generation 2 on b has taken the run"):
        save(old)
    assert bench.log("c").head().n == 2


def test_a_collision_with_a_bookkeeper_is_no_fence(bench: Bench) -> None:
    mine, other = bench.log("a"), bench.log("b", bench.memory)
    claim(mine)
    bench.store.add(Fault("put_new", ENTRY, hook=lambda: note(other)))

    assert save(mine).n == 3


def test_a_collision_with_a_claim_is_one(bench: Bench) -> None:
    mine, other = bench.log("a"), bench.log("b", bench.memory)
    claim(mine)
    bench.store.add(Fault("put_new", ENTRY, hook=lambda: claim(other)))

    with pytest.raises(Fenced):
        save(mine)


def test_an_ended_run_takes_nothing(bench: Bench) -> None:
    from spotwarp.persistence.runlog.entry import Complete

    log = bench.log()
    claim(log)
    saved = save(log)
    log.append(lambda _: Complete(generation=1, snapshot=saved.n))

    with pytest.raises(RunEnded, match="complete"):
        save(log)
    with pytest.raises(RunEnded):
        claim(log)
    assert note(log).n == 4


def test_anything_else_illegal_is_a_lease_error(bench: Bench) -> None:
    with pytest.raises(LeaseError, match="not retained"):
        bench.log().append(lambda _: Forget(snapshots=(3,)))
