"""What is told at the end of a run, and how facts are written down."""

from __future__ import annotations

import pytest

from spotwarp.execution.news.facts import News, ending, environment


@pytest.mark.parametrize(
    ("code", "sealed", "preempted", "event"),
    [
        (0, "complete", False, "done"),
        (0, "complete", True, "done"),  # it finished in the seconds that were left
        (75, "preempted", True, "preempted"),
        (75, "stopped", False, "failed"),  # the command's own 75
        (125, "preempted", True, "preempted"),  # something is missing; the text says so
        (125, "", True, "preempted"),
        (130, "stopped", False, None),
        (0, "stopped", False, None),  # a service that was quit
        (125, "", False, "failed"),
        (130, "", False, None),  # stopped at once, by the user
        (1, "stopped", False, "failed"),
        (137, "stopped", False, "failed"),
        (125, "stopped", False, "failed"),
    ],
)
def test_endings(code: int, sealed: str, preempted: bool, event: str | None) -> None:
    assert ending(code, sealed, preempted=preempted) == event


def test_facts_in_the_environment() -> None:
    document = News("stalled", "a\0b", {"step": 3, "stored": True, "loss": None}).document({"run": "main"})
    assert document == {
        "v": 1, "event": "stalled", "text": "a\0b", "run": "main", "step": 3, "stored": True, "loss": None,
    }  # fmt: skip
    assert environment(document) == {
        "SPOTWARP_EVENT": "stalled",
        "SPOTWARP_EVENT_TEXT": "ab",
        "SPOTWARP_EVENT_RUN": "main",
        "SPOTWARP_EVENT_STEP": "3",
        "SPOTWARP_EVENT_STORED": "true",
    }
