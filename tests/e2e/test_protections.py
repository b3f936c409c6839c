"""The demo is red without each of the protections that it is there to show, and green with all of them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from spotwarp.demo.machine import StageFailed
from spotwarp.demo.scenario import run_demo

pytestmark = pytest.mark.slow


def demo(root: Path, *switches: str, until: str = "") -> tuple[bool, str]:
    """The demo, ended as soon as it has said `until`: was it green, and what was said."""
    told: list[str] = []

    def tell(line: str) -> None:
        enough = until and re.search(until, line) and not any(re.search(until, before) for before in told)
        told.append(line)
        if enough:
            raise StageFailed("seen enough")

    program = [sys.executable, "-m", "spotwarp.testing.without", *switches, "--"]
    report = run_demo(program=program, root=root, on_event=tell)
    return report.ok, "\n".join([*told, *report.failures, report.verdict(), f"zombie commits: {report.zombie_commits}"])


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        (["fence"], r"zombie commits: [1-9]"),
        (["torn-check"], ""),
        (["read-back", "--fault", "lost-pack"], "notice: steps were lost in spite of the notice"),
        (["set-aside"], ""),
        (["claim-wait", "--fault", "slow-store"], "notice: exit code 125, not 75"),
    ],
    ids=["fence", "torn-check", "read-back", "set-aside", "claim-wait"],
)
def test_without_it_the_demo_is_red(tmp_path: Path, switches: list[str], expected: str) -> None:
    ok, words = demo(tmp_path / "demo", *switches, until=expected)
    print(words)
    assert not ok, words
    assert re.search(expected, words), words


@pytest.mark.deep
@pytest.mark.parametrize("fault", ["lost-pack", "slow-store"])
def test_with_all_of_them_the_same_misfortune_does_no_harm(tmp_path: Path, fault: str) -> None:
    ok, words = demo(tmp_path / "demo", "nothing", "--fault", fault)
    assert ok, words
