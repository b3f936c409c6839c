"""Seconds left, with clocks that are right, wrong and unknown; and what a file or a hook may say."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from spotwarp.errors import NoticeFault
from spotwarp.execution.notice.deadline import given, http_date, left_until, moment, read_json, short

NOW = datetime(2030, 1, 31, 12, 0, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("end", "here", "there", "left"),
    [
        (100, 0, None, 100),
        (100, 0, 1, 100),  # the header has whole seconds
        (100, 3600, 0, 99),  # our clock is an hour ahead
        (100, -3600, 0, 99),
        (-5, 0, 0, 0),  # over already
        (-5, 0, None, 0),
        (900, 0, 0, 900),  # far, by a clock that is known to be right
        (100, 3600, None, 120),  # cannot be right
        (100, -3600, None, 120),
        (900, 0, None, 120),
    ],
)
def test_the_platforms_clock_counts_and_what_cannot_be_right_is_the_usual_lead(
    end: float, here: float, there: float | None, left: float
) -> None:
    said = left_until(at(end), at(here), None if there is None else at(there), lead_s=120)
    assert said.seconds == left
    wrong = abs(here) > 10 and there is not None
    assert ("this machine's" in said.by) == (wrong or left == 120)


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ({"seconds_left": 30}, 30),
        ({"seconds_left": -3}, 0),
        ({"seconds_left": 1e300}, 1e9),
        ({"seconds_left": None}, 7),
        ({"deadline": "2030-01-31T12:00:10Z"}, 10),
        ({"deadline": "2030-01-31T13:00:10+01:00"}, 10),
        ({"deadline": "2030-01-31T11:00:00Z"}, 0),
        ({"deadline": NOW.timestamp() + 5}, 5),
    ],
)
def test_what_a_file_or_a_hook_may_say(said: object, left: float) -> None:
    read = given(read_json(json.dumps(said).encode()), NOW, otherwise_s=7)
    assert read is not None
    assert read.seconds == left


def test_an_object_that_says_nothing_of_it_is_none() -> None:
    assert given({"state": "fine"}, NOW, otherwise_s=7) is None


HOSTILE = [
    b"", b"{", b"null", b"[]", b"7", b'"soon"', b"\xff\xfe", b"[" * 100_000,
    b'{"seconds_left": "soon"}', b'{"seconds_left": true}', b'{"seconds_left": NaN}', b'{"seconds_left": Infinity}',
    b'{"seconds_left": [1]}', b'{"deadline": null}', b'{"deadline": "tomorrow"}',
    b'{"deadline": "2030-01-31T12:00:00"}', b'{"deadline": 1e300}', b'{"deadline": NaN}', b'{"deadline": true}',
    b'{"deadline": {}}', b'{"deadline": "' + b"9" * 9999 + b'"}',
]  # fmt: skip


@pytest.mark.parametrize("said", HOSTILE, ids=range(len(HOSTILE)))
def test_everything_else_is_a_fault_in_few_words(said: bytes) -> None:
    with pytest.raises(NoticeFault) as caught:
        given(read_json(said), NOW, otherwise_s=7)
    assert len(caught.value.message) < 200
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("text", [None, "", "soon", "Sun, 99 Nov 2026 18:29:47 GMT", "x" * 100_000, 7])
def test_no_date_is_none(text: object) -> None:
    assert http_date(text) is None


def test_dates() -> None:
    assert http_date("Thu, 31 Jan 2030 12:00:00 GMT") == NOW
    assert moment("2030-01-31T12:00:00Z") == NOW
    assert short(b"a\nb" * 100).count("\n") == 0
