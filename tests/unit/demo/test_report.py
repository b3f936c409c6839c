"""The demo's report: when it is green, and what a person and a program read."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from spotwarp.demo.report import DemoReport, Preemption, render

GREEN = DemoReport(
    digest_uninterrupted="a" * 64,
    digest_interrupted="a" * 64,
    preemptions=(Preemption("notice", 0, 0.0, 1.25), Preemption("zombie", 12, 0.94, 3.5)),
    zombie_commits=0,
    bytes_read=31_400_000,
    bytes_stored=27_100_000,
)


class Terminal(io.StringIO):
    """A text sink that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def written(report: DemoReport, out: io.StringIO, *, as_json: bool = False) -> str:
    render(report, as_json=as_json, file=out)
    return out.getvalue()


def test_the_same_weights_and_no_fault_is_green() -> None:
    assert GREEN.ok
    assert GREEN.identical


@pytest.mark.parametrize(
    "change",
    [
        {"digest_interrupted": "b" * 64},
        {"digest_interrupted": "", "digest_uninterrupted": ""},
        {"zombie_commits": 1},
        {"failures": ("notice: exit code 1, not 75",)},
    ],
)
def test_any_fault_is_not_green(change: dict[str, object]) -> None:
    assert not replace(GREEN, **change).ok  # type: ignore[arg-type]


@pytest.mark.parametrize("out", [io.StringIO(), Terminal()], ids=["pipe", "terminal"])
def test_every_preemption_has_a_row_and_the_verdict_is_last(out: io.StringIO) -> None:
    lines = written(GREEN, out).rstrip().splitlines()
    rows = [line for line in lines if "zombie " in line and "12" in line]
    assert len(rows) == 1
    assert "0.9 s" in rows[0]
    assert "3.5 s" in rows[0]
    assert "bit-identical: 2 preemptions" in lines[-1]
    assert any("read 31.4 MB, stored 27.1 MB" in line for line in lines)


def test_no_colours_in_a_pipe() -> None:
    assert "\x1b" not in written(GREEN, io.StringIO())


def test_a_difference_is_the_last_line_and_a_failure_is_named() -> None:
    red = replace(GREEN, digest_interrupted="", failures=("zombie: exit code 0, not 125",))
    text = written(red, io.StringIO())
    assert "failed: zombie: exit code 0, not 125" in text
    assert text.splitlines()[-1] == "NOT bit-identical: interrupted none, uninterrupted aaaaaaaaaaaaaaaa"


def test_json_holds_all_facts() -> None:
    facts = json.loads(written(GREEN, io.StringIO(), as_json=True))
    assert facts["ok"] is True
    assert facts["identical"] is True
    assert facts["preemptions"][1] == {"kind": "zombie", "lost_steps": 12, "lost_s": 0.94, "resume_s": 3.5}
    assert {"digest_uninterrupted", "digest_interrupted", "zombie_commits", "bytes_read", "bytes_stored"} <= set(facts)
