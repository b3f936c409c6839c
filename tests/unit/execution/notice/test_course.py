"""What follows from one look at a source: the pace, the words, and that an end is acted on once and never put off."""

from __future__ import annotations

import pytest

from spotwarp.errors import NoticeFault
from spotwarp.execution.notice.course import ABSENT_S, ACT_S, FAILING_MOST_S, PATIENT, Course, Next, follow
from spotwarp.execution.notice.source import Announced, Seen
from spotwarp.execution.supervisor import Hint, Notice

FAULT = NoticeFault("no answer")


class Play:
    """Looks at a source whose period is 2 s, ten seconds apart."""

    def __init__(self) -> None:
        self.course, self.now = Course("aws", 2.0), 1000.0

    def __call__(self, look: Seen | NoticeFault, after_s: float = 10.0) -> Next:
        self.now += after_s
        self.course, then = follow(self.course, look, self.now)
        return then


def ends(seconds: float) -> Seen:
    return Seen(Announced(seconds, "terminate", "12:00:00Z"))


def test_a_quiet_source_is_named_once_and_asked_at_its_pace() -> None:
    play = Play()
    assert play.course.standing == "looking"
    assert play(Seen()) == Next((), ("notices: aws is watched",), 2.0)
    assert play(Seen()) == Next((), (), 2.0)
    assert play.course.standing == "watched"


def test_a_source_that_never_answers_is_disabled_with_a_word_and_asked_once_a_minute() -> None:
    play = Play()
    waits = [play(FAULT) for _ in range(5)]
    assert [one.wait_s for one in waits] == [2.0, 2.0, ABSENT_S, ABSENT_S, ABSENT_S]
    assert [len(one.words) for one in waits] == [0, 0, 1, 0, 0]
    assert "aws is disabled: no answer" in waits[2].words[0]
    assert play.course.standing == "disabled: no answer; asked again every 60 s"
    assert play(Seen()).words == ("notices: aws is heard again",)
    assert play.course.standing == "watched"


def test_a_source_that_breaks_later_is_asked_more_seldom_and_heard_again() -> None:
    play = Play()
    play(Seen())
    waits = [play(FAULT) for _ in range(12)]
    assert [one.wait_s for one in waits[:6]] == [2.0, 2.0, 2.0, 4.0, 8.0, 16.0]
    assert max(one.wait_s for one in waits) == FAILING_MOST_S
    assert sum(len(one.words) for one in waits) == 1
    assert play.course.standing.startswith("failing: no answer")
    assert play(ends(60)).events == (Notice(60, "aws", play.now, "terminate, 12:00:00Z"),)


def test_one_missed_answer_is_nothing_to_speak_of() -> None:
    play = Play()
    play(Seen())
    for _ in range(PATIENT - 1):
        assert play(FAULT) == Next((), (), 2.0)
    assert play(Seen()) == Next((), (), 2.0)


def test_an_end_is_acted_on_once() -> None:
    play = Play()
    assert play(ends(119)).events == (Notice(119, "aws", play.now, "terminate, 12:00:00Z"),)
    assert play.course.standing == "notice given"
    assert play(ends(109)).events == ()
    assert play(ends(98.5), 10).events == ()  # the same moment, read a little sooner


def test_a_sooner_end_shortens_and_a_later_one_does_nothing() -> None:
    play = Play()
    play(ends(100))
    assert play(ends(500)).events == ()
    assert play(ends(200), 0).events == ()
    (sooner,) = play(ends(20)).events
    assert isinstance(sooner, Notice)
    assert sooner.seconds_left == 20
    assert play(ends(100), 0).events == ()


def test_a_far_end_is_a_hint_first_and_a_notice_when_its_time_has_come() -> None:
    play = Play()
    first = play(ends(900))
    assert first.events == (Hint(play.now),)
    assert "terminate in 900 s" in first.words[-1]
    assert play(ends(890)) == Next((), (), 2.0)
    assert play(ends(ACT_S + 0.5), 890 - ACT_S - 0.5).wait_s == 0.5
    (notice,) = play(ends(ACT_S), 0.5).events
    assert isinstance(notice, Notice)
    assert notice.seconds_left == ACT_S


def test_a_far_end_that_is_withdrawn_is_forgotten() -> None:
    play = Play()
    play(ends(900))
    assert "taken back" in play(Seen()).words[0]
    assert play(Seen()) == Next((), (), 2.0)
    assert play(ends(900)).events == (Hint(play.now),)


def test_a_notice_that_was_acted_on_is_not_taken_back() -> None:
    play = Play()
    play(ends(60))
    gone = play(Seen())
    assert gone.events == ()
    assert "taken its notice back" in gone.words[0]
    assert play(Seen()).words == ()


@pytest.mark.parametrize("seconds", [1e9, 1e300])
def test_an_end_in_the_far_future_is_not_acted_on(seconds: float) -> None:
    play = Play()
    assert play(ends(seconds)).events == (Hint(play.now),)
    for _ in range(5):
        assert play(ends(seconds)).events == ()


def test_who_always_says_in_an_hour_is_heard_in_an_hour() -> None:
    play = Play()
    events = [event for _ in range(400) for event in play(ends(3600)).events]
    assert [type(event) for event in events] == [Hint, Notice]


def test_a_hint_is_given_once() -> None:
    play = Play()
    hint = Seen(hint="rebalance")
    assert play(hint).events == (Hint(play.now),)
    assert play(hint).events == ()
    assert play(Seen()).events == ()
    assert play(hint).events == ()
    assert play(Seen(hint="another")).events == (Hint(play.now),)
