"""Segments: at most one a minute, nothing twice, nothing lost to a hiccup, and never an error."""

from __future__ import annotations

import pytest

from spotwarp.errors import StoreDenied, StoreUnavailable
from spotwarp.persistence import layout, telemetry
from spotwarp.persistence.telemetry import Sample, TelemetryWriter, read_all
from spotwarp.testing.clocks import VirtualClock
from spotwarp.testing.stores import Fault, FaultyStore, MemoryStore


class Bench:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = FaultyStore(MemoryStore(clock=self.clock))
        self.writer = TelemetryWriter(self.store, "main", 3, self.clock)

    def add(self, *steps: int, every_s: float = 0.0) -> None:
        for step in steps:
            self.clock.advance(every_s)
            self.writer.add(Sample(self.clock.wall().isoformat(), step=step, loss=1.0 / step))

    def steps(self) -> list[list[int | None]]:
        return [[s.step for s in segment.samples] for segment in read_all(self.store, "main")]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_segment_is_written_once_a_minute(bench: Bench) -> None:
    bench.add(*range(1, 15), every_s=10)

    assert bench.steps() == [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]
    bench.writer.flush()
    assert bench.steps()[-1] == [13, 14]
    assert next(m.key for m in bench.store.list(layout.telemetry_prefix("main"))).endswith("/telemetry/000003-00000000")


def test_nothing_is_written_for_nothing(bench: Bench) -> None:
    bench.writer.flush()

    assert not bench.store.count("put_new")


def test_what_is_read_is_what_was_written(bench: Bench) -> None:
    sample = Sample("2030", at_risk_s=1.5, at_risk_bytes=7, step=1, loss=0.5, read_bytes=3, stored_bytes=2, error="e")
    bench.writer.add(sample)
    bench.writer.flush()

    (segment,) = read_all(bench.store, "main")
    assert (segment.generation, segment.samples) == (3, (sample,))


@pytest.mark.parametrize("error", [StoreUnavailable("503"), StoreDenied("403")])
def test_what_could_not_be_written_goes_with_the_next(bench: Bench, error: StoreUnavailable) -> None:
    bench.store.add(Fault("put_new", error=error))
    bench.add(1, 2)
    bench.writer.flush()
    bench.add(3)
    bench.writer.flush()
    bench.writer.flush()

    assert bench.steps() == [[1, 2], [3]]


def test_a_lost_reply_loses_and_repeats_nothing(bench: Bench) -> None:
    bench.store.add(Fault("put_new", lost_reply=True))
    bench.add(1, 2)
    bench.writer.flush()
    bench.add(3)
    bench.writer.flush()
    bench.writer.flush()

    assert bench.steps() == [[1, 2], [3]]


def test_a_store_that_is_away_is_tried_once_a_minute(bench: Bench) -> None:
    bench.store.add(Fault("put_new", times=None, error=StoreUnavailable("503")))
    bench.add(*range(1, 61), every_s=5)

    assert bench.store.count("put_new") == 5


def test_a_store_that_stays_away_costs_the_oldest_samples_not_the_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "MOST_SAMPLES", 5)
    bench.store.add(Fault("put_new", late=True))
    bench.add(1, 2)
    bench.writer.flush()
    bench.add(*range(3, 12))
    bench.store.land()
    bench.writer.flush()
    bench.writer.flush()

    assert bench.steps() == [[1, 2], [9, 10, 11]]


def test_damaged_segments_are_passed_over(bench: Bench) -> None:
    bench.add(1)
    bench.writer.flush()
    bench.store.put(layout.telemetry_key("main", 2, 0), b"rubbish")

    assert bench.steps() == [[1]]


def test_segments_come_in_the_order_of_generation_and_time(bench: Bench) -> None:
    bench.add(5)
    bench.writer.flush()
    older = TelemetryWriter(bench.store, "main", 2, bench.clock)
    for step in (1, 2):
        older.add(Sample("", step=step))
        older.flush()

    assert bench.steps() == [[1], [2], [5]]
