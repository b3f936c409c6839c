"""What a start costs: `--version` answers before anything is imported, a verb without the parser's converter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotwarp import __version__

PROBE = """
import sys
before = set(sys.modules)
sys.argv = ["spotwarp", *sys.argv[1:]]
from spotwarp.__main__ import main
code = main()
print(*sorted(set(sys.modules) - before))
sys.exit(code)
"""


def imported(*words: str) -> tuple[str, set[str]]:
    """What `spotwarp WORDS` prints, and what it loads."""
    done = subprocess.run([sys.executable, "-c", PROBE, *words], capture_output=True, text=True, check=False)
    *answer, modules = done.stdout.splitlines()
    return "\n".join(answer), set(modules.split())


def test_version_imports_nothing_but_itself() -> None:
    answer, modules = imported("--version")
    assert answer == f"spotwarp {__version__}"
    assert modules <= {"__future__", "spotwarp", "spotwarp.__main__"}


def test_text_needs_no_converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs a third of the start of every verb."""
    monkeypatch.chdir(tmp_path)
    _, modules = imported("run", "some-run", "--run", "other", "--json", "--", "true", "1")
    assert "spotwarp.cli.run" in modules
    assert "pydantic" not in modules
    _, modules = imported("logs", "--tail", "3")
    assert "pydantic" in modules  # else this test no longer says anything


def test_a_single_sync_loads_nothing_of_the_long_run() -> None:
    probe = "import sys, spotwarp.execution.once; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert not {"spotwarp.execution.supervisor", "spotwarp.execution.notice", "ssl"} & set(done.stdout.split())


def test_the_installed_program_answers_within_a_tenth_of_a_second() -> None:
    program = Path(sys.executable).with_name("spotwarp")

    def cpu_seconds() -> float:
        before = os.times()
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        after = os.times()
        assert done.stdout == f"spotwarp {__version__}\n"
        return after.children_user + after.children_system - before.children_user - before.children_system

    # Processor seconds, best of five: what the program costs, not what else this machine does just now.
    assert min(cpu_seconds() for _ in range(5)) < 0.1


def test_numpy_starts_no_threads_and_the_command_is_not_told_to() -> None:
    probe = """
import os, sys
sys.argv = ["spotwarp", "doctor", "--help"]
from spotwarp.__main__ import main
main()
import numpy
print(len(os.listdir("/proc/self/task")), "OPENBLAS_NUM_THREADS" in os.environ)
"""
    env = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.splitlines()[-1] == "1 False"
