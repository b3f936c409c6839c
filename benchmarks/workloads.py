"""What is stored: workspaces, each in the states that a tool meets one after the other.

The data is made once, by `gen`, and kept: a cycle renames it into a new source directory and back, so that every tool
finds the same files, equally cached. What is written to meanwhile (`changes`) goes on from cycle to cycle. Nothing is
deleted while cycles run: ext4 looks at each recently freed inode on every create, which made the same copy of 20,000
files 16 times slower.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
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
    newest: str = ""
    """The path of the newest checkpoint, if there are any."""


@dataclass(frozen=True, slots=True)
class Data:
    """Where the data lies, and how much of it."""

    root: Path
    quick: bool

    def at(self, name: str) -> Path:
        """The directory of one data set."""
        return self.root / (f"{name}-quick" if self.quick else name)


def full(data: Data, *, steps: int) -> Workload:
    """full, full50: one save of a full fine-tune, then a second, so many steps later."""
    name = "full" if steps == 1 else f"full{steps}"
    size = ("--params-m", "4", "--hidden", "256") if data.quick else ()
    apart = "a step" if steps == 1 else f"{steps} steps"
    what = f"two saves of a full fine-tune, {apart} apart: bf16 shards, fp32 Adam state"
    return _checkpoints(data, name, what, "full", steps, ("--steps", steps, *size))


def lora(data: Data) -> Workload:
    """lora: two saves of an adapter and its optimizer."""
    return _checkpoints(
        data, "lora", "two saves of a LoRA run, 50 steps apart: fp32 adapter and Adam state", "lora", 50
    )


def _checkpoints(data: Data, name: str, what: str, kind: str, steps: int, arguments: Sequence[object] = ()) -> Workload:
    root = data.at(name)
    names = [f"checkpoint-{steps * save}" for save in (1, 2)]

    def write() -> None:
        state = root / "state"
        for save in (1, 2):
            generate(kind, root, "--save", save, "--state", state, *arguments)
        shutil.rmtree(state)

    _once(root, names, write)
    return Workload(
        *(name, what),
        begin=lambda source, _: _move(root, source, names[:1]),
        change=lambda source, _: _move(root, source, names[1:]),
        end=lambda source, _: _move(source, root, names),
        newest=names[1],
    )


def small_files(data: Data) -> Workload:
    """workspace: 20,000 small files, then 25 edits and eight longer logs."""
    what = "a virtual environment, a git clone, logs; between the backups 25 edits and 8 longer logs"
    arguments = ("--files", 400 if data.quick else 20000)
    return _changing(data, "workspace", what, ["venv", "repo", "logs"], arguments)


def in_place(data: Data) -> Workload:
    """inplace: 1 GiB of which 1 % of the pages is rewritten."""
    what = "two files of fp32 weights, 1 % of whose pages is rewritten in place, and a log"
    names = ["scatter.bin", "cluster.bin", "metrics.jsonl"]
    return _changing(data, "inplace", what, names, ("--mib", 64 if data.quick else 1024))


def logs(data: Data) -> Workload:
    """logs: nine logs, each 60 KB longer the second time."""
    return _changing(data, "logs", "nine logs that are appended to", [f"train_{log}.log" for log in range(9)], ())


def _changing(data: Data, name: str, what: str, names: Sequence[str], arguments: Sequence[object]) -> Workload:
    root = data.at(name)
    _once(root, names, lambda: generate(name, root, *arguments))
    return Workload(
        *(name, what),
        begin=lambda source, _: _move(root, source, names),
        change=lambda source, number: generate(name, source, "--touch", number),
        end=lambda source, _: _move(source, root, names),
    )


def _move(here: Path, there: Path, names: Sequence[str]) -> None:
    for name in names:
        if (here / name).exists():  # not all are there when a cycle ends early
            if here.stat().st_dev == there.stat().st_dev:
                (here / name).rename(there / name)
            else:
                _across(here / name, there / name)


def _across(here: Path, there: Path) -> None:
    """To another file system and back: a copy stays behind, and what comes back is what went."""
    if not there.exists():
        shutil.copytree(here, there)


def _once(root: Path, names: Sequence[str], write: Callable[[], None]) -> None:
    """Have `root` hold `names`, written anew when they were not, or not all, or a killed run took some along."""
    done = root / ".written"
    if done.exists() and all((root / name).exists() for name in names):
        return
    shutil.rmtree(root, ignore_errors=True)
    print(f"{root.name:10} data is being made", flush=True)
    write()
    done.touch()


def generate(kind: str, root: Path, *arguments: object) -> None:
    """Have `gen` write data, in a process of its own: this one must stay small."""
    argv = [sys.executable, "-m", "benchmarks.gen", kind, root, *arguments]
    env = os.environ | {"OMP_NUM_THREADS": "2"}
    subprocess.run([str(part) for part in argv], cwd=Path(__file__).parents[1], env=env, check=True)
