"""A run in the background, as whoever started it sees it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.cli import background
from spotwarp.execution.detached import Starting


class Gone:
    """A start whose run has ended by the time that it is looked for."""

    pid = 1

    def __init__(self, *_: object) -> None:
        """Nothing is started."""

    def wait(self, show: Callable[[bytes], None]) -> None:
        """The command runs."""

    def ended(self) -> int:
        """It has ended."""
        return 3


def test_a_run_that_has_ended_already_is_not_said_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spotwarp.execution.detached.Starting", Gone)
    assert background.started(tmp_path, as_json=False) == 3
    said = capsys.readouterr()
    assert "has ended already" in said.err
    assert said.out == ""


@pytest.mark.parametrize(("end", "code"), [("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)])
def test_an_end_is_told_as_a_shell_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, code: int) -> None:
    (tmp_path / ".spotwarp").mkdir()
    (tmp_path / "program").write_text(f"#!{sys.executable}\nimport os\n{end}\n")
    (tmp_path / "program").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "program"))
    assert Starting(tmp_path, ["run"], dict(os.environ)).wait(lambda _: None) == code
