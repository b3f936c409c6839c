"""SpotWarp's own short programs: bounded in time, in room, and gone when nobody wants them any more."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock
from spotwarp.execution.process import brief
from spotwarp.execution.process.brief import run_briefly
from spotwarp.execution.process.proc import look
from spotwarp.testing.product import until


def test_what_it_says_and_how_it_ends() -> None:
    ran = run_briefly("cat; echo no >&2; exit 4", env=os.environ, timeout_s=30, data=b"yes")
    assert (ran.code, ran.out, ran.err) == (4, b"yes", b"no\n")


def test_a_flood_that_nobody_hears_takes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brief, "TemporaryFile", lambda: (tmp_path / "input").open("w+b"))
    ran = run_briefly("head -c 10000000 /dev/zero; exit 3", env=os.environ, timeout_s=30, heard=False)
    assert (ran.code, ran.out) == (3, b"")
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [0]


def test_it_is_ended_with_its_children_when_its_time_is_over_or_somebody_has_had_enough(tmp_path: Path) -> None:
    command = f"sleep 60 & echo $! > {tmp_path}/pid; wait"
    assert "did not end within 0.3 s" in run_briefly(command, env=os.environ, timeout_s=0.3).reason
    until(lambda: not _lives(int((tmp_path / "pid").read_text())))
    enough = threading.Event()
    threading.Timer(0.2, enough.set).start()
    assert run_briefly(command, env=os.environ, timeout_s=60, enough=enough).reason == "had no more time"
    until(lambda: not _lives(int((tmp_path / "pid").read_text())))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Python calls it "still running", and is right
def test_what_cannot_be_killed_is_left_behind_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that hangs in a driver does not even hear SIGKILL: no killing stands for it here."""
    monkeypatch.setattr(brief.os, "killpg", lambda *_: None)
    monkeypatch.setattr(brief, "DEATH_S", 0.1)
    began = SystemClock().monotonic()
    ran = run_briefly(f"echo $$ > {tmp_path}/pid; exec sleep 60", env=os.environ, timeout_s=0.3)
    assert SystemClock().monotonic() - began < 10
    assert ran.code is None
    assert "cannot be killed" in ran.reason
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _lives(pid: int) -> bool:
    found = look(pid)
    return found is not None and found.living
