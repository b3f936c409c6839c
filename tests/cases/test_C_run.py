"""Group C of the case book through `spotwarp run`: what the tree did is in the last snapshot and the exit code."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.product import Machine, until
from spotwarp.testing.pytest_product import bucket, rent, ws

__all__ = ["bucket", "rent", "ws"]

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow  # a whole program, several times

PYTHON = sys.executable


def stored(ws: Machine) -> Path:
    """The last snapshot as another directory gets it."""
    place = ws.path.with_name("stored")
    ws("restore", "--to", str(place))
    return place


def test_C02_the_last_bytes_of_a_child_that_its_launcher_left_are_stored(ws: Machine) -> None:
    ws.file("slow.py", "import time\nfor i in range(20):\n    print(i, file=open('out', 'a'))\n    time.sleep(0.05)\n")
    ws.file("launch.py", "import subprocess, sys\nsubprocess.Popen([sys.executable, 'slow.py'])\n")
    ws("run", "--", PYTHON, "launch.py")
    assert (stored(ws) / "out").read_text().split() == [str(i) for i in range(20)]


STRAY = """
import os, signal, sys, time
if os.fork():
    until = time.monotonic() + 60
    while not os.path.exists('late.bin') and time.monotonic() < until:
        time.sleep(0.01)
    sys.exit(7)
os.setsid()
if os.fork():
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
late = open('late.bin', 'ab', buffering=0)
while True:
    late.write(b'x' * 100)
    time.sleep(0.001)
"""


def test_C03_a_stray_is_gone_before_the_last_snapshot(ws: Machine) -> None:
    ws.file("stray.py", STRAY)
    done = ws("run", "--", PYTHON, "stray.py", code=7, env={"SPOTWARP_LINGER": "300ms"})
    assert "left processes running" in done.err
    assert ws.processes() == []
    assert (stored(ws) / "late.bin").read_bytes() == (ws.path / "late.bin").read_bytes()


@pytest.mark.parametrize(
    ("command", "code"),
    [("false; true", 0), ("false | tee log", 0), ("set -o pipefail; (exit 3) | tee log", 3), ("false && true", 1)],
)
def test_C04_the_code_is_bashs_own(ws: Machine, command: str, code: int) -> None:
    ws("run", "--command", command, code=code)
    assert ws.facts("status")["exit"] == code


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM", "SIGBUS"])
def test_C05_a_death_by_signal_has_its_name_and_is_no_preemption(ws: Machine, name: str) -> None:
    number = signal.Signals[name]
    done = ws("run", "--", "sh", "-c", f"kill -{int(number)} $$", code=128 + number)
    assert f"{name} ({int(number)})" in done.err
    assert ws.facts("status")["state"] == "stopped"


HEARS = "trap 'date +%s.%N > heard; exit 0' TERM; touch ready; while :; do sleep 0.02; done"


@pytest.mark.parametrize("pid1", [False, True])
def test_C06_the_trainer_behind_a_shell_hears_sigterm_within_a_second(ws: Machine, pid1: bool) -> None:
    ws.file("train.sh", HEARS)
    command = ("run", "--command", "bash train.sh; echo post > post; exit 0")
    under = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if pid1 else []
    program = ws.start(*command, under=under)
    program.until((ws.path / "ready").exists)
    agent = program.process.pid
    if pid1:  # the signal is for SpotWarp, not for unshare
        children = Path(f"/proc/{agent}/task/{agent}/children")
        agent = int(children.read_text().split()[0])
    at = time.time()
    os.kill(agent, signal.SIGTERM)
    until((ws.path / "heard").exists, "the trainer to hear it")
    assert float((ws.path / "heard").read_text() or at) - at < 1.0 + 1.0  # the second one is the machine's load
    assert "everything is stored" in program.end(75).err
    assert (stored(ws) / "heard").exists()
