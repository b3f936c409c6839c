"""`spotwarp --version` answers before anything heavy is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from spotwarp import __version__

PROBE = """
import sys
before = set(sys.modules)
sys.argv = ["spotwarp", "--version"]
from spotwarp.__main__ import main
code = main()
print(*sorted(set(sys.modules) - before))
sys.exit(code)
"""


def test_version_imports_nothing_but_itself() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    answer, imported = done.stdout.splitlines()
    assert answer == f"spotwarp {__version__}"
    assert set(imported.split()) <= {"__future__", "spotwarp", "spotwarp.__main__"}


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
