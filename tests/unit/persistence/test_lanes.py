"""How many packs are put at a time, in how much memory, and with how much of the processors."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwarp.errors import StoreUnavailable
from spotwarp.persistence.backup import BackupOptions, pack_size
from spotwarp.persistence.backup.concurrency import LEAST, MOST, START, Concurrency, Window, step
from spotwarp.persistence.backup.lanes import Buffers, Lanes
from spotwarp.persistence.backup.share import CpuShare
from spotwarp.persistence.pack import TARGET
from spotwarp.persistence.store.metered import MeteredStore
from spotwarp.persistence.store.retrying import RetryingStore
from spotwarp.testing.backups import Backups, noise
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.stores import Fault, FaultyStore, MemoryStore

MIB = 1 << 20


def settle(rate_of: dict[int, float], windows: int = 60) -> list[int]:
    """The lanes in force, window by window, over a link that gives so many bytes a second for so many lanes."""
    now, seen = Concurrency(), []
    for _ in range(windows):
        seen.append(now.lanes)
        now = step(now, Window(int(rate_of[now.lanes]), 1.0, waited=True))
    return seen


def test_each_lane_that_pays_leads_to_the_next_one() -> None:
    assert settle({n: 50e6 * n for n in range(1, MOST + 1)})[:8] == [2, 3, 4, 5, 6, 7, 8, 8]


def test_a_full_link_is_left_with_the_lanes_that_fill_it() -> None:
    lanes = settle({n: min(n, 4) * 50e6 for n in range(1, MOST + 1)})
    assert lanes[:5] == [2, 3, 4, 5, 4]
    assert set(lanes[4:]) == {4, 5}
    assert lanes[4:].count(5) <= 4, "what did not pay is tried again seldom"


def test_a_refusal_halves_and_is_remembered_for_a_while() -> None:
    now = step(Concurrency(8), Window(10 * MIB, 1.0, waited=True, refused=3))
    assert now.lanes == 4
    again = step(now, Window(10 * MIB, 1.0, waited=True))
    assert again.lanes == 4
    assert step(Concurrency(LEAST), Window(0, 1.0, waited=True, refused=1)).lanes == LEAST


def test_where_nobody_waits_nothing_is_tried() -> None:
    assert step(Concurrency(3), Window(10 * MIB, 1.0, waited=False)) == Concurrency(3)


windows = st.builds(Window, st.integers(0, 1 << 32), st.floats(0, 1e4), st.booleans(), st.integers(0, 3))


@given(st.lists(windows, max_size=60))
def test_the_lanes_stay_in_their_bounds_and_move_by_one_upwards(seen: list[Window]) -> None:
    now = Concurrency()
    for window in seen:
        after = step(now, window)
        assert LEAST <= after.lanes <= min(MOST, now.lanes + 1)
        if window.refused:
            assert after.lanes <= max(LEAST, now.lanes // 2)
        now = after


@given(st.lists(st.one_of(st.integers(1 << 16, 4 * MIB), st.none()), max_size=40))
@settings(max_examples=50)
def test_all_buffers_together_stay_within_the_memory(asked: list[int | None]) -> None:
    buffers, taken = Buffers(4 * MIB), []
    for capacity in asked:
        if capacity is None:
            if taken:
                buffers.give(taken.pop(0))
        elif (builder := buffers.take(capacity)) is not None:
            taken.append(builder)
        assert buffers.bytes <= 4 * MIB
    while taken:
        buffers.give(taken.pop())
    assert buffers.take(4 * MIB) is not None, "what came back makes room for what is asked"


def test_more_lanes_are_paid_for_with_smaller_packs() -> None:
    options = BackupOptions(workers=2)
    sizes = {
        n: Lanes(VirtualClock(), buffers=options.buffers, capacity=options.pack_size, least=5 * MIB, lanes=n).capacity
        for n in (1, START, MOST)
    }
    assert sizes[1] == sizes[START] == TARGET
    assert sizes[MOST] * (options.buffers + MOST - START) <= TARGET * options.buffers
    assert sizes[MOST] >= 5 * MIB


def test_no_more_packs_are_under_way_than_lanes() -> None:
    lanes, most, now, lock = (
        Lanes(VirtualClock(), buffers=4, capacity=MIB, least=MIB, lanes=1),
        [0],
        [0],
        threading.Lock(),
    )
    begun, go_on = threading.Semaphore(0), threading.Event()

    def put() -> None:
        with lanes.turn(MIB, lambda: False, 0.01):
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            begun.release()
            assert go_on.wait(10)
            with lock:
                now[0] -= 1

    threads = [threading.Thread(target=put) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert begun.acquire(timeout=10)
    assert not begun.acquire(timeout=0.05)
    go_on.set()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_a_slow_link_gets_small_packs() -> None:
    assert pack_size(None) == pack_size(100e6) == TARGET
    assert pack_size(1e6) == 8_000_000
    assert 4 * MIB < pack_size(10e3) < 5 * MIB, "a chunk must fit"


def test_threads_rest_when_they_have_had_their_share() -> None:
    class Busy(VirtualClock):
        """Works a second each time it is asked, and rests as it is told."""

        rested_s = worked_s = 0.0

        def thread_s(self) -> float:
            self.worked_s += 1.0
            self.advance(1.0)
            return self.worked_s

        def sleep(self, seconds: float) -> None:
            self.rested_s += seconds
            super().sleep(seconds)

    clock = Busy()
    share = CpuShare(clock, 0.25)
    share.begin()
    for _ in range(20):
        share.pay()
    assert share.used_s == 20.0
    assert share.used_s / (share.used_s + clock.rested_s) == pytest.approx(0.25, rel=0.15)
    rested_s = clock.rested_s
    share.pay(hurried=True)
    assert clock.rested_s == rested_s, "before a cut there is no time to rest"


def test_a_backup_with_a_share_stores_all_and_tells_what_it_took(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    for number in range(3):
        (tmp_path / "w" / f"big-{number}").write_bytes(noise(MIB, number))
    backups = Backups(tmp_path / "w", options=BackupOptions(workers=2, cores=0.5, pack_size=8 * MIB))
    done = backups.take()
    assert done.cpu_s > 0
    assert done.uploads == START
    assert {path.decode() for path in backups.restored(tmp_path / "r")} == {f"big-{n}" for n in range(3)}


@pytest.mark.parametrize(("refused", "lanes"), [(0, {4, 5, 6, 7, 8}), (3, {1, 2, 3})])
def test_a_store_that_refuses_gets_fewer_packs_at_a_time_and_all_of_them(
    tmp_path: Path, refused: int, lanes: set[int]
) -> None:
    (tmp_path / "w").mkdir()
    for number in range(10):
        (tmp_path / "w" / f"big-{number}").write_bytes(noise(4 * MIB, number))
    clock = VirtualClock()
    refusals = Fault(verbs="put", key="/packs/", times=refused or None, error=StoreUnavailable("503"))
    faulty = FaultyStore(MemoryStore(), *([refusals] if refused else []))
    backups = Backups(tmp_path / "w", options=BackupOptions(workers=2, uploads=4, pack_size=5 * MIB))
    backups.calls = RetryingStore(MeteredStore(faulty, clock), clock=clock, rng=SeededRng())  # type: ignore[assignment]
    done = backups.take()
    assert done.uploads in lanes
    assert len(done.new_packs) >= 10
    assert len(backups.restored(tmp_path / "r")) == 10
