"""What a trainer that keeps one core busy loses to the SpotWarp beside it.

The same fixed work runs bare and under `spotwarp run` at its defaults, in pairs whose order alternates; the trainer
holds on to core 0, SpotWarp may run where it likes. Compared are the trainer's own seconds, first step to last,
checkpoints included.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.tools import Place

_TRAINER = Path(__file__).with_name("trainer.py")


@dataclass(frozen=True, slots=True)
class Training:
    """How long one run is to take about, and how many checkpoints of which size it writes."""

    seconds: float = 30
    checkpoints: int = 6
    mib: int = 64


def slowdown(work: Path, training: Training, pairs: int) -> dict[str, Any]:
    """The pairs measured, as JSON."""
    steps = _calibrate(work / "slowdown-try", training)
    measured: list[dict[str, Any]] = []
    for pair in range(pairs):
        order = ("bare", "with") if pair % 2 == 0 else ("with", "bare")
        measured.append({way: _train(work / f"slowdown-{pair}-{way}", training, steps, way) for way in order})
        both = measured[-1]
        print(
            f"slowdown   pair {pair + 1}: {both['bare']['seconds']:.2f} s, {both['with']['seconds']:.2f} s", flush=True
        )
    return {**asdict(training), "steps": steps, "pairs": measured}


def _calibrate(root: Path, training: Training) -> int:
    """How many steps take as long as asked for; a multiple of the number of checkpoints."""
    tried = 200
    spent = _train(root, Training(0, 1, 1), tried, "bare")["seconds"]
    every = max(1, round(training.seconds * tried / spent / training.checkpoints))
    return every * training.checkpoints


def _train(root: Path, training: Training, steps: int, way: str) -> dict[str, float]:
    at = Place(root / "source", root / "repository", root / "restored", root / "caches")
    for folder in (at.source, at.caches):
        folder.mkdir(parents=True)
    spent = root / "spent.json"
    trainer = [sys.executable, str(_TRAINER), str(steps), str(steps // training.checkpoints), str(training.mib)]
    command = at.command(*trainer, spent)
    if way == "with":
        measure.run(at.command("spotwarp", "init", "--remote-path", at.repository), root / "log")
        command = at.command("spotwarp", "run", "--", *command.argv)
    command.env.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
    measure.settle(1 << 30)
    sample = measure.run(command, root / "log")
    own: dict[str, float] = json.loads(spent.read_text())
    beside = max(0.0, sample.cpu_s - own["cpu"])
    return {**own, "beside_cpu": beside, "others_cpu": sample.others_cpu, "wall": sample.wall_s}
