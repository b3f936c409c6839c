"""How a long restore is said to go."""

from __future__ import annotations

from spotwarp.execution.restoring.pace import EVERY_S, WINDOW_S, Pace, progress_said
from spotwarp.persistence.restore import FetchProgress
from spotwarp.testing.clocks import VirtualClock

MIB, GIB = 1 << 20, 1 << 30


def test_a_small_one_is_not_talked_about() -> None:
    assert progress_said(print, VirtualClock(), 255 * MIB) is None


def test_rate_and_time_left_every_few_seconds() -> None:
    clock, said = VirtualClock(), list[str]()
    tell = progress_said(said.append, clock, GIB)
    assert tell is not None
    for second in range(10):
        tell(FetchProgress(second * 64 * MIB, GIB))
        clock.advance(1.0)
    assert said == ["320.0 MiB of 1.0 GiB (31 %), 64.0 MiB/s, 11 s left"]


def test_what_was_here_already_does_not_count_as_fast() -> None:
    clock = VirtualClock()
    pace = Pace(clock)
    assert pace.words(FetchProgress(900 * MIB, GIB)) is None
    clock.advance(10.0)
    words = pace.words(FetchProgress(910 * MIB, GIB))
    assert words is not None
    assert "1.0 MiB/s" in words


def test_the_rate_is_that_of_the_last_seconds() -> None:
    clock = VirtualClock()
    pace = Pace(clock)
    words = None
    for second in range(int(WINDOW_S) * 2 + 1):
        words = pace.words(FetchProgress(second * MIB if second < WINDOW_S else int(WINDOW_S) * MIB, GIB)) or words
        clock.advance(1.0)
    assert words is not None
    assert "1.0 MiB/s" not in words, "it has stood still for all of the window"


def test_nothing_moved_is_no_rate() -> None:
    clock = VirtualClock()
    pace = Pace(clock)
    pace.words(FetchProgress(MIB, GIB))
    clock.advance(EVERY_S)
    assert pace.words(FetchProgress(MIB, GIB)) is None
