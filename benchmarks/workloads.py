"""What is stored: two workspaces, each in the states that a tool meets one after the other.

The data is made once, by `gen`, and kept: a cycle renames it into a new source directory and back, so that every tool
finds the same files, equally cached. Nothing is deleted while cycles run: ext4 looks at each recently freed inode on
every create, which made the same copy of 20,000 files 16 times slower.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Step = Callable[[Path, int], None]
"""Brings the source directory to the next state; also gets a number that is new on every call."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`begin`, first backup, `change`, second backup, backup without a change, restore, `end`."""

    name: str
    what: str
    begin: Step
    change: Step
    end: Step


def checkpoints(data: Path, *, quick: bool) -> Workload:
    """full50: one save of a full fine-tune, then a second, 50 steps later."""
    size = ("--params-m", "4", "--hidden", "256") if quick else ()
    root = data / ("full50-quick" if quick else "full50")
    names = [f"checkpoint-{50 * save}" for save in (1, 2)]

    def write() -> None:
        state = root / "state"
        for save in (1, 2):
            _gen("full", root, "--save", save, "--steps", 50, "--state", state, *size)
        shutil.rmtree(state)

    _once(root, names, write)
    return Workload(
        name="full50",
        what="two saves of a full fine-tune, 50 steps apart: bf16 shards, fp32 Adam state",
        begin=lambda source, _: _move(root, source, names[:1]),
        change=lambda source, _: _move(root, source, names[1:]),
        end=lambda source, _: _move(source, root, names),
    )


def small_files(data: Path, *, quick: bool) -> Workload:
    """workspace: 20,000 small files, then 25 edits and eight longer logs."""
    root = data / ("workspace-quick" if quick else "workspace")
    names = ["venv", "repo", "logs"]
    _once(root, names, lambda: _gen("workspace", root, "--files", 400 if quick else 20000))
    return Workload(
        name="workspace",
        what="a virtual environment, a git clone, logs; between the backups 25 edits and 8 longer logs",
        begin=lambda source, _: _move(root, source, names),
        change=lambda source, number: _gen("workspace", source, "--touch", number),
        end=lambda source, _: _move(source, root, names),
    )


def _move(here: Path, there: Path, names: Sequence[str]) -> None:
    for name in names:
        if (here / name).exists():  # not all are there when a cycle ends early
            (here / name).rename(there / name)


def _once(root: Path, names: Sequence[str], write: Callable[[], None]) -> None:
    """Have `root` hold `names`, written anew when they were not, or not all, or a killed run took some along."""
    done = root / ".written"
    if done.exists() and all((root / name).exists() for name in names):
        return
    shutil.rmtree(root, ignore_errors=True)
    write()
    done.touch()


def _gen(kind: str, root: Path, *arguments: object) -> None:
    argv = [sys.executable, "-m", "benchmarks.gen", kind, root, *arguments]
    env = os.environ | {"OMP_NUM_THREADS": "2"}
    subprocess.run([str(part) for part in argv], cwd=Path(__file__).parents[1], env=env, check=True)
