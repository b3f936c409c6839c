"""How two commands differ, in words."""

from __future__ import annotations

import pytest

from spotwarp.execution.command import Command, difference


def shell(text: str) -> Command:
    return Command((text,), True, "")


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        ("python train.py --lr 1e-4", "python train.py --lr 2e-4", "python train.py --lr [-1e-4-] {+2e-4+}"),
        ("python train.py", "python train.py --bf16", "python train.py {+--bf16+}"),
        ("a b", "a", "a [-b-]"),
        ("same", "same", ""),
        ("1 2 3 4 5 6 7 8 x", "1 2 3 4 5 6 7 8 y", "1 2 3 ... 6 7 8 [-x-] {+y+}"),
    ],
)
def test_words(was: str, now: str, words: str) -> None:
    assert difference(shell(was), shell(now)) == words


def test_a_vector_is_not_a_line() -> None:
    assert difference(Command(("a", "b c"), False, ""), Command(("a", "b d"), False, "")) == "a [-b c-] {+b d+}"
