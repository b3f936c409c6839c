"""A training that is killed again and again, each time resumed in an empty directory by the same two commands, ends
with the same bits as one that was left alone: the weights, and every loss that was ever logged.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotwarp.clock import SystemClock
from spotwarp.demo.machine import Machine
from spotwarp.testing.pytest_seaweed import BUCKET
from spotwarp.testing.seaweed import Seaweed, seaweed

pytestmark = pytest.mark.slow

SPOTWARP = [sys.executable, "-m", "spotwarp"]
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
SETTINGS = {"SPOTWARP_LEASE": "2s", "SPOTWARP_INTERVAL": "1s", "SPOTWARP_SETTLE": "200ms"}
LONG_S = 120.0
IN_SAVE, IN_STEP = "in a save", "in a step"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with seaweed(tmp_path_factory.mktemp("s3"), buckets=(BUCKET,)) as running:
        yield running


class Truth:
    """One training command, run undisturbed and run over machines that are killed."""

    def __init__(self, root: Path, env: dict[str, str], remote: str, training: list[str], *resume_args: str) -> None:
        self.root, self.remote, self.training, self.resume_args = root, remote, training, resume_args
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SPOTWARP_")}
        self.env = clean | QUIET | SETTINGS | env

    def machine(self, name: str) -> Machine:
        return Machine(self.root / name, self.root / "logs", SystemClock())

    def call(self, directory: Path, *arguments: str) -> None:
        done = subprocess.run(
            [*SPOTWARP, *arguments], cwd=directory, env=self.env, capture_output=True, text=True, timeout=LONG_S
        )
        assert done.returncode == 0, done.stderr

    def start(self, machine: Machine) -> None:
        """The two commands."""
        self.call(machine.directory, "init", "--remote-path", self.remote)
        machine.start([*SPOTWARP, "run", "--command", shlex.join(self.training), *self.resume_args], self.env)

    def undisturbed(self) -> Path:
        with self.machine("reference") as machine:
            machine.start(self.training, self.env)
            assert machine.exit_code(LONG_S) == 0, machine.last_words()
        return machine.directory

    def disturbed(self, kills: list[tuple[str, int]]) -> tuple[Path, list[int]]:
        """Where the result was restored, and the steps at which the lives began."""
        begun = []
        for number, (moment, steps) in enumerate(kills):
            with self.machine(f"machine-{number}") as machine:
                self.start(machine)
                machine.until(lambda machine=machine: machine.start_step, "the training", LONG_S)  # type: ignore[misc]
                begun.append(machine.start_step[1])  # type: ignore[index]
                machine.until(further(machine, steps), f"{steps} steps", LONG_S)
                if moment == IN_SAVE:
                    machine.freeze_when(half_saved(machine.directory), "a half-written checkpoint")
                machine.kill()
        with self.machine("last") as machine:
            self.start(machine)
            assert machine.exit_code(2 * LONG_S) == 0, machine.last_words()
            begun.append(machine.start_step[1])  # type: ignore[index]
        laptop = self.root / "laptop"
        laptop.mkdir()
        self.call(laptop, "init", "--remote-path", self.remote)
        self.call(laptop, "check", "--read-data")
        self.call(laptop, "restore")
        return laptop, begun


def further(machine: Machine, steps: int) -> Callable[[], bool]:
    """That it has trained so many steps."""
    return lambda: len(machine.steps) >= steps


def half_saved(directory: Path) -> Callable[[], bool]:
    """That a checkpoint lies there whose last file does not."""

    def look() -> bool:
        found = [path for path in directory.glob("out/checkpoint-*") if path.name.rpartition("-")[2].isdigit()]
        begun = [path for path in found if (path / "model.safetensors").exists()]
        return any(not (path / "trainer_state.json").exists() for path in begun)

    return look


def losses(directory: Path) -> list[Any]:
    """All that was ever logged of the losses, as the last checkpoint has it."""
    newest = max(directory.glob("out/checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    history = json.loads((newest / "trainer_state.json").read_bytes())["log_history"]
    return [entry for entry in history if "loss" in entry]


def weights(directory: Path) -> bytes:
    return (directory / "out" / "final" / "model.safetensors").read_bytes()


def same(truth: Truth, kills: list[tuple[str, int]], steps: int) -> None:
    print(kills)
    reference = truth.undisturbed()
    result, begun = truth.disturbed(kills)
    print(f"lives began at the steps {begun}")
    assert weights(result) == weights(reference)
    assert losses(result) == losses(reference)
    assert [entry["step"] for entry in losses(result)] == list(range(1, steps + 1))
    assert begun[0] == 0
    assert begun == sorted(begun)
    assert begun[-1] > 0, "every life began anew: nothing was resumed"


def test_a_llama_that_is_killed_three_times_ends_with_the_same_bits(tmp_path: Path, server: Seaweed) -> None:
    chance = random.Random(3)
    kills = [
        (IN_SAVE, chance.randrange(10, 14)),
        (IN_STEP, chance.randrange(11, 14)),
        (IN_SAVE, chance.randrange(5, 9)),
    ]
    command = [sys.executable, "-m", "spotwarp.testing.training", "--steps", "30", "--save-every", "5"]
    truth = Truth(
        tmp_path, server.env(), f"s3://{BUCKET}/llama", [*command, "--save-time", "0.7", "--step-time", "0.2"],
        "--resume-args", "--resume-from {checkpoint}",
    )  # fmt: skip
    same(truth, kills, 30)


def test_a_numpy_training_that_is_killed_five_times_ends_with_the_same_bits(tmp_path: Path, server: Seaweed) -> None:
    chance = random.Random(5)
    kills = [(chance.choice([IN_SAVE, IN_STEP]), chance.randrange(12, 26)) for _ in range(5)]
    assert {moment for moment, _ in kills} == {IN_SAVE, IN_STEP}
    command = [sys.executable, "-m", "spotwarp.demo.trainer", "--out", "out", "--steps", "120", "--save-every", "10"]
    same(Truth(tmp_path, server.env(), f"s3://{BUCKET}/numpy", command), kills, 120)
