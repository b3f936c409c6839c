"""C03: what outlives a killed SpotWarp is found at the next start, named, and never started beside or signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

TRAINER = "import time\nopen('started','w').close()\nwhile True: time.sleep(0.05)\n"


def _until(true: Callable[[], object]) -> None:
    limit = time.monotonic() + 20
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.02)


def _spotwarp(workspace: Path, *words: str) -> subprocess.Popen[str]:
    env = {**os.environ, "SPOTWARP_LEASE": "1s", "SPOTWARP_INTERVAL": "1s"}
    return subprocess.Popen(
        [sys.executable, "-m", "spotwarp", *words],
        cwd=workspace,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _finished(program: subprocess.Popen[str], code: int = 0) -> str:
    """Wait for the end; gives stderr."""
    _, err = program.communicate(timeout=60)
    assert program.returncode == code, err
    return err


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_C03_a_trainer_that_outlived_its_spotwarp_is_named_and_left_alone(tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    (workspace / "train.py").write_text(TRAINER)
    _finished(_spotwarp(workspace, "init", "--remote-path", str(tmp_path / "bucket")))
    first = _spotwarp(workspace, "run", "--", sys.executable, "train.py")
    _until((workspace / "started").exists)
    [trainer] = _children(first.pid)
    first.kill()
    err = _finished(_spotwarp(workspace, "run"), code=125)
    assert str(trainer) in err
    assert "still run in this workspace" in err
    os.kill(trainer, 0)  # left alone
    stopped = _finished(_spotwarp(workspace, "stop"), code=11)
    assert f"kill {trainer}" in stopped  # nothing is left here that could stop it

    os.kill(trainer, signal.SIGKILL)
    _until(lambda: not Path(f"/proc/{trainer}/cmdline").exists() or not Path(f"/proc/{trainer}/cmdline").read_bytes())
    first.communicate(timeout=30)
    _finished(_spotwarp(workspace, "stop"), code=0)  # nothing runs here any more
    _finished(_spotwarp(workspace, "run", "--", "true"))
