"""A trainer that keeps one core busy, for measuring what runs beside it: fixed work, a checkpoint now and then.

    python -m benchmarks.trainer STEPS EVERY MIB OUT    prints its seconds and CPU seconds as JSON into OUT

It stays on one core (the first it may use) and never waits for anything but the disk.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np


def main() -> None:
    steps, every, mib = (int(word) for word in sys.argv[1:4])
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((384, 384), dtype=np.float32)
    state = rng.standard_normal(mib << 18, dtype=np.float32)
    started, cpu = time.perf_counter(), time.process_time()
    for step in range(1, steps + 1):
        for _ in range(8):
            weights = np.tanh(weights @ weights.T * np.float32(0.01))
        state[step % 97 :: 97] += np.float32(step)
        if step % every == 0:
            _save(step, weights, state)
    spent = {"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu}
    Path(sys.argv[4]).write_text(json.dumps(spent))


def _save(step: int, weights: np.ndarray, state: np.ndarray) -> None:
    """A checkpoint as a whole or not at all, the last two kept."""
    folder = Path(f"checkpoint-{step}")
    unfinished = Path(f"tmp-{step}")
    unfinished.mkdir()
    header = json.dumps(
        {
            "state": {"dtype": "F32", "shape": list(state.shape), "data_offsets": [0, state.nbytes]},
            "weights": {
                "dtype": "F32",
                "shape": list(weights.shape),
                "data_offsets": [state.nbytes, state.nbytes + weights.nbytes],
            },
        }
    ).encode()
    with (unfinished / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.write(state.data)
        file.write(np.ascontiguousarray(weights).data)
    (unfinished / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
    unfinished.rename(folder)
    for old in sorted(Path().glob("checkpoint-*"), key=lambda path: int(path.name[11:]))[:-2]:
        shutil.rmtree(old)


if __name__ == "__main__":
    main()
