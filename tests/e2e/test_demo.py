"""The demo, whole: green with SpotWarp, red without what it does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from spotwarp.demo.machine import MARK
from spotwarp.demo.scenario import demo_main, run_demo
from spotwarp.errors import UsageError

SPOTWARP = [sys.executable, "-m", "spotwarp"]
COPY_LOOP = [sys.executable, str(Path(__file__).with_name("copy_loop.py"))]


def living(root: Path) -> list[str]:
    """Processes that the demo in `root` left behind."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK, "").startswith(str(root)):
                found.append(str(process))
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_four_preemptions_change_no_bit(tmp_path: Path) -> None:
    told: list[str] = []
    report = run_demo(program=SPOTWARP, root=tmp_path / "demo", on_event=told.append)
    assert report.failures == (), told
    assert report.identical
    assert report.zombie_commits == 0
    assert report.ok
    assert [entry.kind for entry in report.preemptions] == ["notice", "kill in save", "zombie", "death in restore"]
    assert report.preemptions[0].lost_steps == 0
    assert all(entry.lost_steps >= 0 for entry in report.preemptions)
    assert all(entry.resume_s > 0 for entry in report.preemptions)
    assert report.bytes_stored > 1_000_000
    assert report.bytes_read > 1_000_000
    assert living(tmp_path) == []


@pytest.mark.slow
def test_a_copy_loop_does_not_survive(tmp_path: Path) -> None:
    report = run_demo(program=COPY_LOOP, root=tmp_path / "demo")
    assert not report.ok
    assert not report.identical
    # Half a checkpoint is copied like any other: by a successor that does not wait, or after a kill inside a save.
    died = re.compile("machine-[23] exited with 1 before the start of the trainer")
    assert any(died.match(failure) for failure in report.failures), report.failures
    assert living(tmp_path) == []


def test_the_command_says_in_json_and_exit_code_that_it_failed(tmp_path: Path) -> None:
    code = "import sys; from spotwarp.demo.scenario import demo_main; sys.exit(demo_main(True, None, ['false']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert result["ok"] is False
    assert result["failures"][0].startswith("`spotwarp init` exited with 1")


def test_a_directory_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError):
        demo_main(False, tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]
