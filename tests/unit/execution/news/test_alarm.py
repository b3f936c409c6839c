"""A failing backup is said at once, again and again but ever more seldom, and is news once."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from spotwarp.execution.news.alarm import LONGEST_REPEAT_S, Alarm, Heard, stall_after, step

GOING = "training goes on"


def hear(troubles: list[tuple[float, str]], stall_s: float = 100.0) -> list[tuple[float, Heard]]:
    """What is heard when each of `troubles` stands from its time on, looked at every second."""
    alarm, heard = Alarm(), []
    for now in range(int(troubles[-1][0]) + 1):
        trouble = [words for at, words in troubles if at <= now][-1]
        alarm, said = step(alarm, trouble, float(now), stall_s=stall_s, going_on=GOING)
        if said != Heard():
            heard.append((float(now), said))
    return heard


def test_what_works_is_silent() -> None:
    assert hear([(0, ""), (5000, "")]) == []


def test_it_is_said_at_once_and_then_ever_more_seldom() -> None:
    said = hear([(0, ""), (10, "503"), (20_000, "503")], stall_s=1e9)
    times = [at for at, _ in said]
    assert times[:5] == [10, 70, 190, 430, 910]
    assert all(later - at <= LONGEST_REPEAT_S for at, later in pairwise(times))
    assert len(times) < 15
    assert all(heard.line.startswith("NOT STORED") and GOING in heard.line for _, heard in said)
    assert "for 15 min" in said[4][1].line


def test_a_stall_is_news_once_and_so_is_its_end() -> None:
    said = hear([(0, ""), (10, "503"), (1000, ""), (1001, "")])
    assert [(at, h.news) for at, h in said if h.news] == [(110, "stalled"), (1000, "recovered")]
    assert said[-1][1].line == "storing works again, after 16 min"


def test_a_short_failure_is_no_news() -> None:
    said = hear([(0, ""), (10, "503"), (50, ""), (60, "")])
    assert [h.news for _, h in said] == ["", ""]


def test_one_trouble_has_one_pace_whatever_request_failed_last() -> None:
    wordings = [(0.0, "")] + [(float(at), f"PUT object-{at} was not answered") for at in range(10, 1000, 7)]
    said = hear(wordings, stall_s=1e9)
    assert [at for at, _ in said] == [10, 70, 190, 430, 910]
    assert "object-906" in said[-1][1].line  # the words are those of now


@given(st.lists(st.tuples(st.floats(0, 5000), st.sampled_from(["", "x", "y"])), max_size=60), st.floats(1, 500))
def test_it_is_never_silent_for_longer_than_an_hour_and_news_alternate(
    looks: list[tuple[float, str]], stall_s: float
) -> None:
    alarm, now, last_said, news = Alarm(), 0.0, 0.0, []
    for pause, trouble in looks:
        now += pause
        was = alarm
        alarm, heard = step(alarm, trouble, now, stall_s=stall_s, going_on=GOING)
        if heard.line:
            last_said = now
        if heard.news:
            news.append(heard.news)
        if trouble:
            assert now - last_said < LONGEST_REPEAT_S
            assert heard.line or was.trouble
    assert all(a != b for a, b in zip(["recovered", *news], news, strict=False))


def test_the_sooner_of_the_two_limits_counts() -> None:
    assert stall_after(15, 3, 600) == 45
    assert stall_after(300, 3, 600) == 600
