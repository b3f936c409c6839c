"""The demo's training command: a real model, a real optimiser, real text; as naive as most training scripts.

    python -m spotwarp.demo.trainer --out out --steps 120 --save-every 10

Owns the loop: step, log, save, resume. Knows nothing of SpotWarp. Resumes from the highest `checkpoint-N` whether it is
whole or not: without weights or state it crashes, without optimiser, schedule or random state it goes on silently with
fresh ones, and ends with other weights. SIGTERM finishes the step, saves and exits 143.
Prints `start at N`, one `step k/N loss=…` per step and `final <sha256 of final/model.safetensors>`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spotwarp.clock import Clock, SystemClock
from spotwarp.demo import checkpoint, corpus
from spotwarp.demo.model import AdamW, Array, Cosine, Parameters, Pass, Shape, initial

BATCH = 8


@dataclass(slots=True)
class Training:
    """Everything a resumed run needs: all of it is in a checkpoint, and nothing else is."""

    shape: Shape
    parameters: Parameters
    optimizer: AdamW
    schedule: Cosine
    rng: np.random.Generator
    max_steps: int
    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    def advance(self, text: Array) -> dict[str, Any]:
        """Make one update on a random batch of `text`; the entry added to the history."""
        length = self.shape.context
        starts = self.rng.integers(0, len(text) - length - 1, BATCH)
        windows = text[starts[:, None] + np.arange(length + 1)]
        training_pass = Pass(self.shape, self.parameters, self.rng)
        loss = training_pass.run(windows[:, :-1], windows[:, 1:])
        rate = self.schedule.next()
        self.optimizer.update(self.parameters, training_pass.gradients, rate)
        self.step += 1
        entry = {"step": self.step, "loss": round(loss, 6), "learning_rate": rate}
        self.history.append(entry)
        return entry

    def files(self) -> dict[str, bytes]:
        """The checkpoint's files in the order in which they are written."""
        optimizer, schedule = self.optimizer, self.schedule
        moments = {"first": optimizer.first, "second": optimizer.second, "count": optimizer.count}
        state = {"global_step": self.step, "max_steps": self.max_steps, "log_history": self.history}
        return {
            "config.json": json.dumps({"model_type": "spotwarp-demo", **asdict(self.shape)}, indent=2).encode(),
            "model.safetensors": checkpoint.safetensors(self.parameters),
            "optimizer.pt": checkpoint.archive(moments),
            "scheduler.pt": checkpoint.archive({"count": schedule.count}),
            "rng_state.pth": checkpoint.archive({"numpy": self.rng.bit_generator.state}),
            "trainer_state.json": json.dumps(state, indent=2).encode(),
        }


def begin(max_steps: int, seed: int) -> Training:
    """A training at step 0."""
    rng = np.random.Generator(np.random.PCG64(seed))
    shape = Shape(vocabulary=len(corpus.VOCABULARY))
    return Training(shape, initial(shape, rng), AdamW(), Cosine(max_steps), rng, max_steps)


def resume(training: Training, directory: Path) -> None:
    """Load the checkpoint in `directory`; what it lacks beside weights and state stays as it is, without a word."""
    training.parameters = checkpoint.parse_safetensors((directory / "model.safetensors").read_bytes())
    if (path := directory / "optimizer.pt").exists():
        training.optimizer = AdamW(**checkpoint.parse_archive(path))
    if (path := directory / "scheduler.pt").exists():
        training.schedule.count = checkpoint.parse_archive(path)["count"]
    if (path := directory / "rng_state.pth").exists():
        training.rng.bit_generator.state = checkpoint.parse_archive(path)["numpy"]
    state = json.loads((directory / "trainer_state.json").read_bytes())
    training.step, training.history = state["global_step"], state["log_history"]


def train(training: Training, options: argparse.Namespace, clock: Clock) -> int:
    """Train to the end, or to SIGTERM; the exit code."""
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
    text = np.frombuffer(corpus.tokens(), np.uint8).astype(np.intp)
    print(f"start at {training.step}", flush=True)
    with (options.out / "train.log").open("a", encoding="utf-8") as log:
        while training.step < training.max_steps:
            entry = training.advance(text)
            clock.sleep(options.step_time)
            line = f"step {training.step}/{training.max_steps} loss={entry['loss']:.4f}"
            print(line, file=log, flush=True)
            print(line, flush=True)
            if stop or training.step % options.save_every == 0 or training.step == training.max_steps:
                directory = options.out / f"checkpoint-{training.step}"
                checkpoint.save(directory, training.files(), seconds=options.save_time, clock=clock)
                checkpoint.rotate(options.out, options.keep)
            if stop:
                return 128 + signal.SIGTERM
    weights = checkpoint.safetensors(training.parameters)
    files = {"config.json": training.files()["config.json"], "model.safetensors": weights}
    checkpoint.save(options.out / "final", files, seconds=0, clock=clock)
    print(f"final {hashlib.sha256(weights).hexdigest()}", flush=True)
    return 0


def main(arguments: Sequence[str] | None = None, clock: Clock | None = None) -> int:
    """The command line; the exit code. Times are seconds."""
    parser = argparse.ArgumentParser(prog="python -m spotwarp.demo.trainer", description="Train a small model.")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where checkpoints go")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints kept")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--step-time", type=float, default=0.05, help="seconds added to each step")
    parser.add_argument("--save-time", type=float, default=0.4, help="seconds a save takes at least")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    training = begin(options.steps, options.seed)
    if found := checkpoint.steps(options.out):
        resume(training, options.out / f"checkpoint-{found[-1]}")
    return train(training, options, clock or SystemClock())


if __name__ == "__main__":
    sys.exit(main())
