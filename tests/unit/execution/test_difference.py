"""How two commands differ, in words."""

from __future__ import annotations

import pytest

from spotwarp.execution.command import Command, difference


def shell(text: str) -> Command:
    return Command((text,), True, "")


@pytest.mark.parametrize(
    ("was", "now", "before", "after"),
    [
        ("train --lr 1e-4", "train --lr 2e-4", "train --lr 1e-4", "train --lr 2e-4"),
        ("train --save-time 2 --on-term save:2", "train --on-term ignore", "train --save-time 2 --on-term save:2",
         "train --on-term ignore"),
        ("a b", "a", "a b", "a"),
        ("1 2 3 4 5 6 7 8 x", "1 2 3 4 5 6 7 8 y", "1 2 3 ... 6 7 8 x", "1 2 3 ... 6 7 8 y"),
    ],
)  # fmt: skip
def test_a_line_each(was: str, now: str, before: str, after: str) -> None:
    assert difference(shell(was), shell(now)) == (f"command was: {before}", f"command is:  {after}")


def test_what_does_not_differ() -> None:
    assert difference(shell("same"), shell("same")) == ()


def test_a_vector_is_not_a_line() -> None:
    told = difference(Command(("a", "b c"), False, ""), Command(("a", "b d"), False, ""))
    assert told == ("command was: a b c", "command is:  a b d")
