"""Segments: at most one a minute, nothing twice, nothing lost to a hiccup, and never an error."""

from __future__ import annotations

import pytest

from spotwarp.errors import CorruptObject, StoreDenied, StoreUnavailable
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

    assert bench.steps() == [[1], [2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13]]
    bench.writer.flush()
    assert bench.steps()[-1] == [14]
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

    assert bench.steps() == [[1, 2], [7, 8, 9, 10, 11]]


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


# --- what the command wrote


class Written:
    """A command's output as the writer is given it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, bytes]] = []

    def take(self) -> tuple[int, bytes] | None:
        return self.waiting.pop() if self.waiting else None


def test_output_goes_along_and_is_sent_again_as_it_was() -> None:
    store, written = FaultyStore(MemoryStore(clock=VirtualClock())), Written()
    writer = TelemetryWriter(store, "main", 1, VirtualClock(), written.take)
    written.waiting = [(0, b"first " * 1000)]
    store.add(Fault("put_new", error=StoreUnavailable("503")))
    writer.flush()
    written.waiting = [(6000, b"second")]
    writer.flush()
    writer.flush()

    outputs = [segment.output for segment in read_all(store, "main")]
    assert [(o.start, o.decoded()) for o in outputs if o] == [(0, b"first " * 1000), (6000, b"second")]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 100])
def test_segments_are_counted_without_a_list(count: int) -> None:
    store = FaultyStore(MemoryStore(clock=VirtualClock()))
    writer = TelemetryWriter(store, "main", 1, VirtualClock())
    for step in range(count):
        writer.add(Sample("", step=step))
        writer.flush()

    assert telemetry.count_segments(store, "main", 1) == count
    assert not store.count("list")
    assert telemetry.read_segment(store, "main", 1, count) is None


def test_a_segment_that_lies_about_its_output_is_an_error_not_memory() -> None:
    bomb = telemetry.Output.of(0, bytes(1 << 20))
    for size in (1 << 40, (1 << 20) - 1, -1):
        lie = telemetry.Output(0, size, bomb.codec, bomb.data)
        with pytest.raises(CorruptObject):
            lie.decoded()
