"""Whether a training that is killed again and again ends with the same bits as one that was left alone.

The command runs once undisturbed, and once over machines that die at chosen moments, each followed by an empty one that
is given the same two commands. Compares the final weights and every loss that was ever logged. Owns all processes that
it starts.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotwarp.clock import SystemClock
from spotwarp.demo.machine import Machine

SPOTWARP = [sys.executable, "-m", "spotwarp"]
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
SETTINGS = {"SPOTWARP_LEASE": "2s", "SPOTWARP_INTERVAL": "1s", "SPOTWARP_SETTLE": "200ms"}
LONG_S = 240.0


@dataclass(frozen=True)
class Kill:
    """A machine's end: after so many steps of this life, in a step or in the save that follows, or in its restore."""

    moment: str
    steps: int = 0


IN_SAVE, IN_STEP, IN_RESTORE = "in a save", "in a step", "in the restore"


class Truth:
    """One training command, run undisturbed and run over machines that are killed."""

    def __init__(
        self,
        root: Path,
        env: dict[str, str],
        remote: str,
        training: Sequence[str],
        *resume_args: str,
        weights: str = "model.safetensors",
    ) -> None:
        """`root` gets a directory for each machine; `weights` is the file in `out/final` that is compared."""
        self.root, self.remote, self.training, self.resume_args = root, remote, list(training), resume_args
        self._weights = weights
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SPOTWARP_")}
        self.env = clean | QUIET | SETTINGS | env

    def holds(self, kills: Sequence[Kill], steps: int, *, bulk: int = 0) -> None:
        """Run it both ways and compare. `bulk` bytes lie beside the training, so that a restore takes a moment."""
        print(*kills, sep="\n")  # noqa: T201 - shown when it fails
        reference = self._undisturbed()
        result, begun = self._disturbed(kills, bulk)
        print(f"lives began at the steps {begun}")  # noqa: T201 - as above
        assert self._final(result) == self._final(reference), "other weights"
        assert losses(result) == losses(reference), "other losses"
        assert [entry["step"] for entry in losses(result)] == list(range(1, steps + 1))
        assert begun[0] == 0
        assert begun == sorted(begun)
        assert begun[-1] > 0, "every life began anew: nothing was resumed"

    def _machine(self, name: str) -> Machine:
        return Machine(self.root / name, self.root / "logs", SystemClock())

    def _call(self, directory: Path, *arguments: str) -> None:
        done = subprocess.run(
            [*SPOTWARP, *arguments], cwd=directory, env=self.env, capture_output=True, text=True, timeout=LONG_S
        )
        assert done.returncode == 0, done.stderr

    def _start(self, machine: Machine) -> None:
        """The two commands."""
        self._call(machine.directory, "init", "--remote-path", self.remote)
        machine.start([*SPOTWARP, "run", "--command", shlex.join(self.training), *self.resume_args], self.env)

    def _undisturbed(self) -> Path:
        with self._machine("reference") as machine:
            machine.start(self.training, self.env)
            assert machine.exit_code(2 * LONG_S) == 0, machine.last_words()
        return machine.directory

    def _disturbed(self, kills: Sequence[Kill], bulk: int) -> tuple[Path, list[int]]:
        """Where the result was restored, and the steps at which the lives began."""
        begun: list[int] = []
        for number, kill in enumerate(kills):
            with self._machine(f"machine-{number}") as machine:
                if bulk and number == 0:
                    (machine.directory / "bulk.bin").write_bytes(os.urandom(bulk))
                self._start(machine)
                self._live(machine, kill, begun)
                machine.kill()
        with self._machine("last") as machine:
            self._start(machine)
            assert machine.exit_code(2 * LONG_S) == 0, machine.last_words()
            begun.append(_began(machine))
        laptop = self.root / "laptop"
        laptop.mkdir()
        self._call(laptop, "init", "--remote-path", self.remote)
        self._call(laptop, "check", "--read-data")
        self._call(laptop, "restore")
        return laptop, begun

    def _live(self, machine: Machine, kill: Kill, begun: list[int]) -> None:
        """Up to the moment of the kill."""
        if kill.moment == IN_RESTORE:
            state = machine.directory / ".spotwarp"
            machine.freeze_when(
                lambda: (state / "restoring").exists() or (state / "staging").exists(), "a restore that is under way"
            )
            assert machine.start_step is None, "the trainer had started before the restore was over"
            return
        machine.until(lambda: machine.start_step is not None, "the training", LONG_S)
        begun.append(_began(machine))
        machine.until(lambda: len(machine.steps) >= kill.steps, f"{kill.steps} steps", LONG_S)
        if kill.moment == IN_SAVE:
            machine.freeze_when(lambda: half_saved(machine.directory), "a half-written checkpoint")

    def _final(self, directory: Path) -> bytes:
        return (directory / "out" / "final" / self._weights).read_bytes()


def _began(machine: Machine) -> int:
    start = machine.start_step
    assert start is not None, machine.last_words()
    return start[1]


def half_saved(directory: Path) -> bool:
    """Whether a checkpoint lies there whose last file does not."""
    found = [path for path in directory.glob("out/checkpoint-*") if path.name.rpartition("-")[2].isdigit()]
    begun = [path for path in found if any(path.glob("*.safetensors"))]
    return any(not (path / "trainer_state.json").exists() for path in begun)


def losses(directory: Path) -> list[Any]:
    """All that was ever logged of the losses, as the last checkpoint has it."""
    newest = max(directory.glob("out/checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    history = json.loads((newest / "trainer_state.json").read_bytes())["log_history"]
    return [entry for entry in history if "loss" in entry]
