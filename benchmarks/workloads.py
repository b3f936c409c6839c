"""What is stored: two workspaces, each in the states that a tool meets one after the other.

The data is made once, by `gen`, and kept: a cycle renames it into a new source directory and back, so that every tool
finds the same files, equally cached. Nothing is deleted while cycles run: ext4 looks at each recently freed inode on
every create, which made the same copy of 20,000 files 16 times slower.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
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
    for save in (1, 2):
        _once(root, f"save-{save}", "full", "--save", save, "--steps", 50, "--state", root / "state", *size)
    names = [f"checkpoint-{50 * save}" for save in (1, 2)]

    def back(source: Path, _: int) -> None:
        for name in names:
            (source / name).rename(root / name)

    return Workload(
        name="full50",
        what="two saves of a full fine-tune, 50 steps apart: bf16 shards, fp32 Adam state",
        begin=lambda source, _: _move(root, source, names[0]),
        change=lambda source, _: _move(root, source, names[1]),
        end=back,
    )


def small_files(data: Path, *, quick: bool) -> Workload:
    """workspace: 20,000 small files, then 25 edits and eight longer logs."""
    root = data / ("workspace-quick" if quick else "workspace")
    _once(root, "written", "workspace", "--files", 400 if quick else 20000)
    return Workload(
        name="workspace",
        what="a virtual environment, a git clone, logs; between the backups 25 edits and 8 longer logs",
        begin=lambda source, _: _move(root, source, "venv", "repo", "logs"),
        change=lambda source, number: _gen("workspace", source, "--touch", number),
        end=lambda source, _: _move(source, root, "venv", "repo", "logs"),
    )


def _move(here: Path, there: Path, *names: str) -> None:
    for name in names:
        (here / name).rename(there / name)


def _once(root: Path, mark: str, kind: str, *arguments: object) -> None:
    """Have `gen` write into `root`, unless it did."""
    done = root / f".{mark}"
    if not done.exists():
        _gen(kind, root, *arguments)
        done.touch()


def _gen(kind: str, root: Path, *arguments: object) -> None:
    argv = [sys.executable, "-m", "benchmarks.gen", kind, root, *arguments]
    env = os.environ | {"OMP_NUM_THREADS": "2"}
    subprocess.run([str(part) for part in argv], cwd=Path(__file__).parents[1], env=env, check=True)
