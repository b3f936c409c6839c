"""Beats, staleness, the wait for a turn, the claim and the heart, on a clock that only the test moves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from spotwarp.errors import Fenced, LeaseHeld, RunEnded, StoreUnavailable
from spotwarp.persistence import layout
from spotwarp.persistence.runlog.entry import Claim, Complete, Fence, Phase, Released, Snapshot
from spotwarp.persistence.runlog.fold import Refusal
from spotwarp.persistence.runlog.lease import Beat, BeatWatch, Heart, Holding, Turn, claim, read_beat, wait_for_turn
from spotwarp.persistence.runlog.log import Head, RunLog
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.stores import Fault, FaultyStore, MemoryStore

LEASE = 20.0
RUN = "main"


class Ticking(VirtualClock):
    """Calls `each` whenever somebody sleeps: the others' life goes on meanwhile."""

    each: Callable[[], object] = staticmethod(lambda: None)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.each()


class Bench:
    """A run and its machines."""

    def __init__(self) -> None:
        self.clock = Ticking()
        self.memory = MemoryStore(clock=self.clock)
        self.store = FaultyStore(self.memory)

    def log(self, life: str) -> RunLog:
        return RunLog(self.store, RUN, life=life, clock=self.clock, rng=SeededRng(life))

    def heart(self, log: RunLog, on_lost: Callable[[Refusal], None] = lambda _: None, clock: Any = None) -> Heart:
        return Heart(
            log,
            self.store,
            lease_s=LEASE,
            clock=clock or self.clock,
            facts=lambda: ("training", {"step": 7}),
            on_lost=on_lost,
        )

    def claimed(self, life: str, lease_s: float = LEASE) -> RunLog:
        log = self.log(life)
        log.append(
            lambda h: Claim(
                generation=h.state.generation + 1,
                machine=life.upper(),
                cause="",
                base=h.state.snapshot,
                lease_s=lease_s,
                host=f"{life}-host",
                pid=4,
            )
        )
        return log

    def wait(self, life: str, **more: Any) -> Turn:
        return wait_for_turn(self.log(life), self.store, lease_s=LEASE, clock=self.clock, **more)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def saved(log: RunLog, generation: int = 1) -> Snapshot:
    return log.append(lambda h: Snapshot(generation=generation, manifest="1-x", address="", base=h.state.snapshot))


def seal(log: RunLog, generation: int = 1) -> None:
    n = saved(log, generation).n
    log.append(lambda _: Phase(generation=generation, phase="preempted", snapshot=n))


def draft(machine: str) -> Claim:
    return Claim(generation=0, machine=machine, cause="", base=0, lease_s=LEASE)


# ---- staleness -----------------------------------------------------------------------------------------------------


def beat(count: int, life: str = "a") -> Beat:
    return Beat(v=0, life=life, count=count)


def test_the_same_beat_after_the_whole_lease_is_stale() -> None:
    watch = BeatWatch(20)

    assert not watch.observe(beat(1), asked_at=0, answered_at=3)
    assert not watch.observe(beat(1), asked_at=22.9, answered_at=30)  # asked before the lease was over
    assert watch.observe(beat(1), asked_at=23, answered_at=23)
    assert not watch.moved


def test_another_beat_starts_the_lease_anew_and_proves_life() -> None:
    watch = BeatWatch(20)
    watch.observe(beat(1), asked_at=0, answered_at=0)

    assert not watch.observe(beat(2), asked_at=50, answered_at=50)
    assert watch.moved
    assert not watch.observe(beat(2), asked_at=69, answered_at=69)
    assert watch.observe(beat(2), asked_at=70, answered_at=70)


def test_the_first_beat_that_is_seen_proves_life_only_if_there_was_none_before() -> None:
    watch = BeatWatch(20)
    watch.observe(None, asked_at=0, answered_at=0)
    assert not watch.moved

    watch.observe(beat(1), asked_at=1, answered_at=1)
    assert watch.moved


def test_a_beat_that_cannot_be_seen_is_no_life_and_no_death() -> None:
    watch = BeatWatch(20)
    watch.observe(beat(1), asked_at=0, answered_at=0)

    assert not watch.observe(None, asked_at=21, answered_at=21)  # gone or unreadable: only the lease tells
    assert not watch.observe(beat(1), asked_at=22, answered_at=22)
    assert not watch.moved
    assert watch.observe(beat(1), asked_at=42, answered_at=42)


def test_a_beat_that_was_never_there_is_stale_after_the_lease() -> None:
    watch = BeatWatch(20)

    assert not watch.observe(None, asked_at=0, answered_at=0)
    assert watch.observe(None, asked_at=20, answered_at=20)


def test_a_beat_comes_back_as_it_was_written_and_damage_reads_as_none(bench: Bench) -> None:
    heart = bench.heart(bench.log("a"))
    heart.beat()
    heart.beat()

    seen = read_beat(bench.store, RUN, "a")
    assert seen == Beat(v=0, life="a", count=2, wall="2030-01-01T00:00:00+00:00", phase="training", facts={"step": 7})
    bench.memory.put(layout.beat_key(RUN, "a"), b"rubbish")
    assert read_beat(bench.store, RUN, "a") is None
    assert read_beat(bench.store, RUN, "nobody") is None


# ---- the wait ------------------------------------------------------------------------------------------------------


def test_a_run_that_nobody_claimed_is_free_at_once(bench: Bench) -> None:
    assert bench.wait("a") == Turn(0, "first")
    assert bench.clock.monotonic() == 0


def test_a_sealed_generation_is_free_at_once(bench: Bench) -> None:
    seal(bench.claimed("a"))

    assert bench.wait("b") == Turn(1, "sealed@1")


def test_an_ended_run_is_nobodys(bench: Bench) -> None:
    log = bench.claimed("a")
    n = saved(log).n
    log.append(lambda _: Complete(generation=1, snapshot=n))

    with pytest.raises(RunEnded, match="complete"):
        bench.wait("b")


def test_a_silent_holder_is_waited_for_one_lease(bench: Bench) -> None:
    bench.heart(bench.claimed("a")).beat()
    told: list[str] = []

    assert bench.wait("b", say=told.append) == Turn(1, "stale beat")
    assert LEASE <= bench.clock.monotonic() <= LEASE + 3
    assert told == [
        "generation 1 on a-host (process 4, since 2030-01-01T00:00:00.000+00:00) holds the run; "
        "waiting for its heartbeat to stand still for 20 s"
    ]


def test_the_longer_of_both_leases_counts(bench: Bench) -> None:
    bench.claimed("a", lease_s=90)

    assert bench.wait("b") == Turn(1, "stale beat")
    assert bench.clock.monotonic() >= 90


def test_a_living_holder_is_left_alone(bench: Bench) -> None:
    heart = bench.heart(bench.claimed("a"))
    heart.beat()
    bench.clock.each = heart.beat

    with pytest.raises(LeaseHeld, match=r"a-host.*alive; left alone") as held:
        bench.wait("b")
    assert "--takeover" in (held.value.hint or "")


def test_a_takeover_asks_nobody(bench: Bench) -> None:
    bench.heart(bench.claimed("a")).beat()

    assert bench.wait("b", takeover=True) == Turn(1, "takeover")
    assert bench.clock.monotonic() == 0


def test_after_a_notice_the_holder_has_its_seconds_from_when_they_were_read(bench: Bench) -> None:
    log = bench.claimed("a")
    heart = bench.heart(log)
    log.append(lambda _: Phase(generation=1, phase="notice", seconds=30.0))
    bench.clock.each = heart.beat  # alive, and working on its final sync
    bench.clock.advance(1000)  # however long ago the notice was: it is not read before now

    assert bench.wait("b") == Turn(1, "deadline@2")
    assert 1030 <= bench.clock.monotonic() <= 1034


def test_a_second_notice_counts_anew(bench: Bench) -> None:
    log = bench.claimed("a")
    heart = bench.heart(log)
    log.append(lambda _: Phase(generation=1, phase="notice", seconds=30.0))

    def later() -> None:
        heart.beat()
        if bench.clock.monotonic() == 10:
            log.append(lambda _: Phase(generation=1, phase="notice", seconds=60.0))

    bench.clock.each = later

    assert bench.wait("b") == Turn(1, "deadline@3")
    assert bench.clock.monotonic() >= 70


def test_a_seal_ends_the_wait(bench: Bench) -> None:
    log = bench.claimed("a")
    bench.clock.each = lambda: seal(log) if not log.head().state.seal else None

    assert bench.wait("b") == Turn(1, "sealed@1")


def test_another_claim_starts_the_wait_anew(bench: Bench) -> None:
    bench.heart(bench.claimed("a")).beat()

    def overtaken() -> None:
        if bench.clock.monotonic() == 16:
            bench.heart(bench.claimed("c")).beat()

    bench.clock.each = overtaken

    assert bench.wait("b") == Turn(2, "stale beat")
    assert bench.clock.monotonic() >= 15 + LEASE


def test_a_damaged_claim_entry_does_not_end_the_run(bench: Bench) -> None:
    saved(bench.claimed("a"))
    bench.memory.put(layout.log_key(RUN, 1), b"damaged")
    told: list[str] = []

    assert bench.wait("b", say=told.append) == Turn(1, "stale beat")
    assert "on A holds the run" in told[0]


# ---- the claim -----------------------------------------------------------------------------------------------------


def test_the_claim_says_whom_it_follows_and_where_to_start(bench: Bench) -> None:
    seal(bench.claimed("a"))
    made = claim(bench.log("b"), Turn(1, "sealed@1"), draft("B"))

    assert (made.generation, made.cause, made.base, made.by) == (2, "sealed@1", 2, "b")


def test_what_was_committed_since_the_wait_is_where_to_start(bench: Bench) -> None:
    log = bench.claimed("a")
    turn = bench.wait("b")
    n = saved(log).n

    assert claim(bench.log("b"), turn, draft("B")).base == n


def test_a_turn_is_good_only_for_the_generation_that_was_waited_for(bench: Bench) -> None:
    """Two candidates wait for the same machine: the second must not claim over the first, which is alive."""
    bench.claimed("a")
    turns = {life: bench.wait(life) for life in "bc"}
    claim(bench.log("b"), turns["b"], draft("B"))

    with pytest.raises(LeaseHeld, match="was taken first"):
        claim(bench.log("c"), turns["c"], draft("C"))
    assert bench.log("r").head().state.generation == 2


def test_a_claim_races_a_bookkeeper_and_wins(bench: Bench) -> None:
    other = RunLog(bench.memory, RUN, life="x", clock=bench.clock, rng=SeededRng())
    bench.store.add(Fault("put_new", "/log/", hook=lambda: other.append(lambda _: Released(intent="i"))))

    assert claim(bench.log("a"), Turn(0, "first"), draft("A")).n == 2


def test_a_claim_that_stood_without_an_answer_is_found_by_the_next_try(bench: Bench) -> None:
    bench.store.add(Fault("put_new", "/log/", times=None, late=True))
    log = bench.log("a")
    with pytest.raises(StoreUnavailable):
        claim(log, Turn(0, "first"), draft("A"))
    bench.store.heal()
    bench.store.land()

    assert claim(log, Turn(0, "first"), draft("A")).n == 1
    assert log.head().n == 1


def test_a_life_that_sealed_claims_anew(bench: Bench) -> None:
    log = bench.claimed("a")
    seal(log)

    assert claim(log, Turn(1, "sealed@1"), draft("A")).generation == 2


def test_a_fenced_machine_never_claims_again(bench: Bench) -> None:
    log = bench.claimed("a")
    seal(log)
    log.append(lambda _: Fence(machine="A", reason="sealed"))

    with pytest.raises(Fenced, match="fenced off"):
        claim(bench.log("a2"), Turn(1, "sealed@1"), draft("A"))


def test_a_run_that_ended_meanwhile_is_not_claimed(bench: Bench) -> None:
    log = bench.claimed("a")
    turn = bench.wait("b")
    n = saved(log).n
    log.append(lambda _: Complete(generation=1, snapshot=n))

    with pytest.raises(RunEnded):
        claim(bench.log("b"), turn, draft("B"))


# ---- the heart -----------------------------------------------------------------------------------------------------


def test_it_beats_at_once_and_tells_when_it_cannot(bench: Bench) -> None:
    bench.store.add(Fault("put", "/beats/", error=StoreUnavailable("503")))

    with pytest.raises(StoreUnavailable):
        bench.heart(bench.log("a")).start()


def test_stopping_one_that_never_started_is_nothing(bench: Bench) -> None:
    bench.heart(bench.log("a")).stop()


def test_it_notices_once_that_the_run_was_lost(bench: Bench) -> None:
    lost: list[Refusal] = []
    log = bench.claimed("a")
    heart = bench.heart(log, lost.append)
    heart.tick()
    heart.holding = Holding(1, "a")
    heart.tick()
    assert lost == []

    bench.claimed("b")
    heart.tick()
    heart.tick()

    (refusal,) = lost
    assert refusal.fenced
    assert "generation 2 on B has taken the run" in refusal.reason


def test_a_candidate_loses_nothing(bench: Bench) -> None:
    bench.claimed("b")
    heart = bench.heart(bench.log("a"))

    assert heart.lost() is None


def test_failing_beats_and_looks_are_told_and_forgotten(bench: Bench) -> None:
    log = bench.claimed("a")
    heart = bench.heart(log)
    heart.holding = Holding(1, "a")
    bench.store.add(Fault("put", "/beats/", error=StoreUnavailable("no beat")))
    heart.tick()
    assert heart.error == "no beat"
    bench.store.add(Fault("get", "/log/", error=StoreUnavailable("no look")))
    heart.tick()
    assert heart.error == "no look"
    heart.tick()
    assert heart.error == ""


class Metronome(VirtualClock):
    """A clock whose waits last until the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self.waiting = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        self.waits.append(seconds)
        self.waiting.release()
        assert self.go.acquire(timeout=60)
        self.advance(seconds or 0.0)
        return event.is_set()


def test_the_thread_beats_four_times_a_lease_until_it_is_stopped(bench: Bench) -> None:
    clock = Metronome()
    heart = bench.heart(bench.log("a"), clock=clock)
    heart.start()
    for _ in range(3):
        assert clock.waiting.acquire(timeout=60)
        clock.go.release()
    assert clock.waiting.acquire(timeout=60)
    seen = read_beat(bench.store, RUN, "a")
    assert seen is not None
    assert seen.count == 4
    assert set(clock.waits) == {LEASE / 4}

    stopper = threading.Thread(target=heart.stop)
    stopper.start()
    clock.go.release()
    stopper.join(60)
    assert not stopper.is_alive()
    assert read_beat(bench.store, RUN, "a") == seen


def test_a_slow_answer_to_the_writer_does_not_delay_the_beat(bench: Bench) -> None:
    """The beating thread and the writing thread share the log; neither waits for the other's request."""
    log = bench.claimed("a")
    heart = bench.heart(log)
    heart.holding = Holding(1, "a")
    asked, answer = threading.Event(), threading.Event()

    def hang() -> None:
        asked.set()
        assert answer.wait(60)

    bench.store.add(Fault("get", "/log/", hook=hang))
    heads: list[Head] = []
    writer = threading.Thread(target=lambda: heads.append(log.head()))
    writer.start()
    assert asked.wait(60)

    heart.tick()  # would hang if it had to wait

    assert heart.error == ""
    answer.set()
    writer.join(60)
    assert heads[0].n == 1
