"""The demo's main job: one training, four machines lost in four ways, the same weights in the end.

Owns the order of events and what each of them must lead to. Uses SpotWarp as a user would, by its command line; a
directory is the object store and other directories are the machines. Every wait is for a condition, up to a
deadline. Must never touch anything outside its root, or a process that it did not start.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from spotwarp.clock import Clock, SystemClock
from spotwarp.demo.evidence import Evidence, gather
from spotwarp.demo.machine import DEADLINE_S, Machine, StageFailed
from spotwarp.demo.report import DemoReport, Preemption, render
from spotwarp.errors import SpotWarpError, UsageError

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

    def expect(self, met: bool, failure: str) -> None:
        """Note `failure` unless `met`; the scenario goes on."""
        if not met:
            self.failures.append(failure)
            self.tell(f"  failed: {failure}")

    def resumed(self, kind: str, lost: Machine, at: float, successor: Machine) -> None:
        """Wait until `successor` trains and note what the loss of `lost` at the moment `at` has cost."""
        successor.until(lambda: successor.start_step is not None, "the start of the trainer")
        began, step = successor.start_step or (at, 0)
        first = lost.start_step or (at, 0)
        done = [first, *(entry for entry in lost.steps if entry[0] <= at)]
        ended, reached = done[-1]
        before = next((moment for moment, number in done if number == step), first[0])
        entry = Preemption(kind, reached - step, round(ended - before, 3), round(began - at, 3))
        self.preemptions.append(entry)
        self.tell(
            f"  {successor.name} trains from step {step} after {entry.resume_s:.1f} s; {lost.name} was at {reached}"
        )
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
        stage.bucket.mkdir(parents=True)
        try:
            stage.tell(f"{STEPS} steps of training, once undisturbed, once on machines that are lost; about 40 seconds")
            reference = stage.machine("reference")
            reference.start([sys.executable, *TRAINING], environment())
            machine = notice(stage, stage.rent())
            machine = kill_in_save(stage, machine)
            machine = freeze_and_take_over(stage, machine)
            machine = death_in_restore(stage, machine)
            digests["interrupted"] = finish(stage, machine)
            digests["uninterrupted"] = digest(reference)
        except StageFailed as error:
            stage.expect(False, str(error))
    try:
        evidence = gather(stage.bucket, stage.clock)
    except SpotWarpError as error:
        evidence = Evidence(0, 0)
        stage.expect(False, f"the run log cannot be read: {error}")
    return DemoReport(
        digest_uninterrupted=digests["uninterrupted"],
        digest_interrupted=digests["interrupted"],
        preemptions=tuple(stage.preemptions),
        zombie_commits=evidence.zombie_commits,
        bytes_read=evidence.read_bytes,
        bytes_stored=sum(file.stat().st_size for file in stage.bucket.rglob("*") if file.is_file()),
        failures=tuple(stage.failures),
    )


def notice(stage: Stage, machine: Machine) -> Machine:
    """The machine is told that it will go, and its successor is there at once: it must wait until all is stored."""
    machine.until(reached(machine, SAVE_EVERY * 2 + 3), "training")
    stage.tell(f"notice: {machine.name} is told that it will go")
    at = stage.clock.monotonic()
    machine.notify()
    successor = stage.rent()
    code = machine.exit_code()
    stage.expect(code == PREEMPTED, f"notice: exit code {code}, not {PREEMPTED}")
    last = machine.steps[-1]
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
    stage.tell(f"kill in save: {machine.name} dies with half a checkpoint on its disk")
    with contextlib.suppress(StageFailed):  # refusing to store it is as good an answer as leaving it out
        stage.call(machine.directory, "sync")
    at = stage.clock.monotonic()
    machine.kill()
    successor = stage.rent()
    stage.resumed("kill in save", machine, at, successor)
    return successor


def freeze_and_take_over(stage: Stage, machine: Machine) -> Machine:
    """The machine hangs, is given up, and wakes in the middle of its work while its successor trains."""
    machine.until(reached(machine, well_on(machine)), "training")
    frozen = machine.freeze()
    at = stage.clock.monotonic()
    stage.tell(f"zombie: {machine.name} hangs")
    successor = stage.rent()
    stage.resumed("zombie", machine, at, successor)
    machine.thaw(frozen)
    code = machine.exit_code()
    stage.expect(code == FENCED, f"zombie: exit code {code}, not {FENCED}")
    stage.expect(not machine.tree(), "zombie: its trainer is still alive")
    stage.tell(f"  {machine.name} woke up in the middle of its work and ended with exit code {code}")
    return successor


def death_in_restore(stage: Stage, machine: Machine) -> Machine:
    """The machine dies, and so does the next one in the middle of its restore."""
    machine.until(reached(machine, well_on(machine)), "training")
    at = stage.clock.monotonic()
    machine.kill()
    unlucky = stage.rent()
    stage.tell(f"death in restore: {machine.name} dies, and {unlucky.name} in the middle of its restore")
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


def well_on(machine: Machine) -> int:
    """A step at which `machine` has saved twice and is between two saves."""
    return (first_step(machine) // SAVE_EVERY + 2) * SAVE_EVERY + 6


def reached(machine: Machine, step: int) -> Callable[[], bool]:
    """The condition that `machine` has trained `step`."""
    return lambda: bool(machine.steps) and machine.steps[-1][1] >= step


def finish(stage: Stage, machine: Machine) -> str:
    """Let the last machine train to the end; the digest of the weights that another computer gets from the bucket."""
    code = machine.exit_code(2 * DEADLINE_S)
    stage.expect(code == 0, f"the last machine exited with {code}: {machine.last_words()}")
    printed = digest(machine)
    laptop = stage.root / "laptop"
    laptop.mkdir()
    stage.call(laptop, "init", "--remote-path", str(stage.bucket))
    stage.call(laptop, "restore")
    restored = weights_digest(laptop)
    stage.expect(restored == printed, "the final weights in the bucket are not those of the last machine")
    return restored


def digest(machine: Machine) -> str:
    """The digest that the trainer on `machine` printed at its end. Raises StageFailed when there is none."""
    machine.exit_code()
    printed = machine.find(r"final ([0-9a-f]{64})$")
    if not printed:
        raise StageFailed(f"{machine.name} printed no final digest; last words: {machine.last_words()}")
    return printed[-1][1][1]


def weights_digest(directory: Path) -> str:
    """The digest of the final weights in `directory`. Raises StageFailed when there are none."""
    try:
        return hashlib.sha256((directory / "out" / "final" / "model.safetensors").read_bytes()).hexdigest()
    except FileNotFoundError as error:
        raise StageFailed(f"there are no final weights in {directory.name}") from error


def demo_main(json: bool, keep: Path | None, program: Sequence[str] = (sys.executable, "-m", "spotwarp")) -> int:
    """`spotwarp demo`: run the scenario, in `keep` when given; 0 when everything was as promised, else 1.

    Raises UsageError when `keep` is in use or numpy is missing.
    """
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UsageError(f"{keep} is not an empty directory.", hint="Name a directory that does not exist yet.")
    if find_spec("numpy") is None:
        raise UsageError("The demo trains with numpy, which is missing.", hint="pip install 'spotwarp[demo]'")
    with tempfile.TemporaryDirectory(prefix="spotwarp-demo-") as scratch:
        tell = None if json else partial(print, flush=True)
        report = run_demo(program=program, root=keep or Path(scratch) / "demo", on_event=tell)
    render(report, as_json=json)
    return 0 if report.ok else 1
