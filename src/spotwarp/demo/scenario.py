"""The demo's main job: one training, four machines lost in four ways, the same weights in the end.

Owns the order of events and what each of them must lead to. Uses SpotWarp as a user would, by its command line only;
a directory is the object store and other directories are the machines. Every wait is for a condition, up to a
deadline. Must never touch anything outside its root, or a process that it did not start.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotwarp.clock import Clock, SystemClock
from spotwarp.demo.machine import DEADLINE_S, Machine, StageFailed
from spotwarp.demo.report import DemoReport, Preemption, render

STEPS, SAVE_EVERY = 120, 10
TRAINING = ("-m", "spotwarp.demo.trainer", "--out", "out", "--steps", str(STEPS), "--save-every", str(SAVE_EVERY))
SETTINGS = {"SPOTWARP_LEASE": "2s", "SPOTWARP_INTERVAL": "1s"}
PREEMPTED, FENCED = 75, 125

Tell = Callable[[str], None]


@dataclass(slots=True)
class Stage:
    """What is under way: where everything lies, the machine that trains, and the findings so far."""

    program: Sequence[str]
    root: Path
    tell: Tell
    clock: Clock
    open: contextlib.ExitStack
    preemptions: list[Preemption] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    machines: int = 0

    @property
    def bucket(self) -> Path:
        """The directory that plays the object store."""
        return self.root / "bucket"

    def machine(self, name: str) -> Machine:
        """An empty machine; whatever runs on it dies with the demo."""
        return self.open.enter_context(Machine(self.root / name, self.root / "logs", self.clock))

    def rent(self) -> Machine:
        """A new, empty machine with SpotWarp started on it, by the two commands of the README."""
        self.machines += 1
        machine = self.machine(f"machine-{self.machines}")
        self.call(machine.directory, "init", "--remote-path", str(self.bucket))
        machine.start([*self.program, "run", "--command", shlex.join([sys.executable, *TRAINING])], environment())
        return machine

    def call(self, directory: Path, *arguments: str) -> str:
        """Run one SpotWarp verb in `directory`; its output. Raises StageFailed when it fails or hangs."""
        command = [*self.program, *arguments]
        try:
            done = subprocess.run(
                command, cwd=directory, env=environment(), capture_output=True, timeout=DEADLINE_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise StageFailed(f"`spotwarp {arguments[0]}` did not end within {DEADLINE_S:.0f} s") from error
        if done.returncode:
            words = done.stderr.decode(errors="replace").strip()
            raise StageFailed(f"`spotwarp {arguments[0]}` exited with {done.returncode}: {words}")
        return done.stdout.decode()

    def snapshots(self) -> list[dict[str, Any]]:
        """All snapshots of the run as the user's own computer sees them, oldest first."""
        listed = json.loads(self.call(self.root / "laptop", "snapshots", "--json"))["snapshots"]
        return sorted(listed, key=lambda snapshot: int(snapshot["id"]))

    def expect(self, met: bool, failure: str) -> None:
        """Note `failure` unless `met`; the scenario goes on."""
        if not met:
            self.failures.append(failure)
            self.tell(f"failed: {failure}")

    def resumed(self, kind: str, lost: Machine, at: float, successor: Machine) -> None:
        """Wait until `successor` trains and note what the loss of `lost` at the moment `at` has cost."""
        successor.until(lambda: successor.start_step is not None, "the start of the trainer")
        began, step = successor.start_step or (at, 0)
        first = lost.start_step or (at, 0)
        done = [first, *(entry for entry in lost.steps if entry[0] <= at)]
        ended, reached = done[-1]
        before = next((moment for moment, number in done if number == step), first[0])
        self.preemptions.append(Preemption(kind, reached - step, round(ended - before, 3), round(began - at, 3)))
        entry = self.preemptions[-1]
        self.tell(f"{kind}: {entry.lost_steps} steps lost, training again at step {step} after {entry.resume_s:.1f} s")
        self.expect(first[1] <= step <= reached, f"{kind}: started at step {step} after reaching {reached}")


def environment() -> dict[str, str]:
    """The demo's environment: the user's, with SpotWarp's settings replaced by the demo's."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SPOTWARP_")} | SETTINGS


def run_demo(
    *, program: Sequence[str], root: Path, on_event: Tell | None = None, clock: Clock | None = None
) -> DemoReport:
    """Train twice, once undisturbed and once over six machines of which five are lost; what came of it.

    `program` is how SpotWarp is called, `root` an empty or missing directory for everything that is written.
    Whatever goes wrong is in the report; only a failure to start programs at all raises (OSError).
    """
    with contextlib.ExitStack() as stack:
        stage = Stage(program, root.resolve(), on_event or (lambda line: None), clock or SystemClock(), stack)
        digests = {"uninterrupted": "", "interrupted": ""}
        zombie_commits = 0
        snapshots: list[dict[str, Any]] = []
        try:
            reference = stage.machine("reference")
            reference.start([sys.executable, *TRAINING], environment())
            laptop(stage)
            machine = notice(stage, stage.rent())
            machine = kill_in_save(stage, machine)
            machine, zombie = freeze_and_take_over(stage, machine)
            machine = death_in_restore(stage, machine)
            digests["interrupted"] = finish(stage, machine)
            digests["uninterrupted"] = digest(reference)
            snapshots = stage.snapshots()
            zombie_commits = sum(map(zombie, snapshots))
        except StageFailed as error:
            stage.expect(False, str(error))
    return DemoReport(
        digest_uninterrupted=digests["uninterrupted"],
        digest_interrupted=digests["interrupted"],
        preemptions=tuple(stage.preemptions),
        zombie_commits=zombie_commits,
        bytes_read=sum(int(snapshot.get("bytes_read", 0)) for snapshot in snapshots),
        bytes_stored=sum(file.stat().st_size for file in stage.bucket.rglob("*") if file.is_file()),
        failures=tuple(stage.failures),
    )


def laptop(stage: Stage) -> None:
    """The user's own computer, which only looks on."""
    stage.bucket.mkdir()
    (stage.root / "laptop").mkdir()
    stage.call(stage.root / "laptop", "init", "--remote-path", str(stage.bucket))


def notice(stage: Stage, machine: Machine) -> Machine:
    """The machine is told that it will go: nothing may be lost."""
    machine.until(reached(machine, SAVE_EVERY * 2 + 3), "training")
    at = stage.clock.monotonic()
    machine.notify()
    code = machine.exit_code()
    stage.expect(code == PREEMPTED, f"notice: exit code {code}, not {PREEMPTED}")
    last = machine.steps[-1]
    successor = stage.rent()
    stage.resumed("notice", machine, max(at, last[0]), successor)
    stage.expect(stage.preemptions[-1].lost_steps == 0, "notice: steps were lost in spite of the notice")
    return successor


def kill_in_save(stage: Stage, machine: Machine) -> Machine:
    """The machine dies while the trainer writes a checkpoint, of which half lies on its disk.

    The trainer is held in the middle of the save until SpotWarp has looked at the half-written directory: the worst
    moment for it, made certain.
    """
    start = first_step(machine)

    def half_written() -> bool:
        found = [entry for entry in machine.directory.glob("out/checkpoint-*") if entry.is_dir()]
        torn = [entry for entry in found if not (entry / "trainer_state.json").exists()]
        return any(int(entry.name.rsplit("-", 1)[1]) >= start + SAVE_EVERY for entry in torn)

    machine.freeze_when(half_written, "a half-written checkpoint", program=False)
    with contextlib.suppress(StageFailed):  # refusing to store it is as good an answer as leaving it out
        stage.call(machine.directory, "sync")
    at = stage.clock.monotonic()
    machine.kill()
    successor = stage.rent()
    stage.resumed("kill in save", machine, at, successor)
    return successor


def freeze_and_take_over(stage: Stage, machine: Machine) -> tuple[Machine, Callable[[dict[str, Any]], bool]]:
    """The machine hangs, is given up, and wakes in the middle of its work while its successor trains.

    Returns the successor and the test for a snapshot that the woken machine should not have been able to make.
    """
    machine.until(reached(machine, first_step(machine) + SAVE_EVERY + 6), "training")
    frozen = machine.freeze()
    at = stage.clock.monotonic()
    known = stage.snapshots()
    generation = max(int(snapshot["generation"]) for snapshot in known)
    before = {snapshot["id"] for snapshot in known}
    successor = stage.rent()
    stage.resumed("zombie", machine, at, successor)
    machine.thaw(frozen)
    code = machine.exit_code()
    stage.expect(code == FENCED, f"zombie: exit code {code}, not {FENCED}")
    stage.expect(not machine.tree(), "zombie: its trainer is still alive")
    return successor, lambda entry: int(entry["generation"]) <= generation and entry["id"] not in before


def death_in_restore(stage: Stage, machine: Machine) -> Machine:
    """The machine dies, and so does the next one in the middle of its restore."""
    machine.until(reached(machine, first_step(machine) + SAVE_EVERY + 6), "training")
    at = stage.clock.monotonic()
    machine.kill()
    unlucky = stage.rent()
    state = unlucky.directory / ".spotwarp"
    unlucky.freeze_when(
        lambda: (state / "restoring").exists() or (state / "staging").exists(), "a restore that is under way"
    )
    stage.expect(unlucky.start_step is None, "death in restore: the trainer had started before the restore was over")
    unlucky.kill()
    successor = stage.rent()
    stage.resumed("death in restore", machine, at, successor)
    return successor


def first_step(machine: Machine) -> int:
    """The step at which the trainer on `machine` started."""
    return (machine.start_step or (0.0, 0))[1]


def reached(machine: Machine, step: int) -> Callable[[], bool]:
    """The condition that `machine` has trained `step`."""
    return lambda: bool(machine.steps) and machine.steps[-1][1] >= step


def finish(stage: Stage, machine: Machine) -> str:
    """Let the last machine train to the end; the digest of the weights."""
    code = machine.exit_code(2 * DEADLINE_S)
    stage.expect(code == 0, f"the last machine exited with {code}: {machine.last_words()}")
    return digest(machine)


def digest(machine: Machine) -> str:
    """The digest that the trainer printed, which must be that of the file."""
    machine.exit_code()
    printed = machine.find(r"final ([0-9a-f]{64})$")
    if not printed:
        raise StageFailed(f"{machine.name} printed no final digest; last words: {machine.last_words()}")
    stored = hashlib.sha256((machine.directory / "out" / "final" / "model.safetensors").read_bytes()).hexdigest()
    if printed[-1][1][1] != stored:
        raise StageFailed(f"{machine.name} printed another digest than that of its final weights")
    return stored


def demo_main(json: bool, keep: Path | None, program: Sequence[str] = (sys.executable, "-m", "spotwarp")) -> int:
    """`spotwarp demo`: run the scenario, in `keep` when given; 0 when everything was as promised, else 1."""
    from json import dumps

    with tempfile.TemporaryDirectory(prefix="spotwarp-demo-") as scratch:
        root = keep or Path(scratch) / "demo"
        tell = (lambda line: None) if json else (lambda line: print(line, flush=True))
        report = run_demo(program=program, root=root, on_event=tell)
    if json:
        print(dumps(report.to_json(), indent=2))
    else:
        render(report)
    return 0 if report.ok else 1
