"""A stand-in for a fine-tuning job that saves slowly, so that it can be killed at any byte of a save. Without torch.

    python -m spotwarp.testing.slow_trainer --steps 30 --save-every 10 --save-time 1

Writes `checkpoint-<step>` directories as the Hugging Face trainer does, file by file, piece by piece, and with
`--inplace-last` also `last.ckpt`, always the same file, emptied and filled again. Resumes naively, as trainers do: from
the highest number, whole or not. Keeps the newest `--limit` checkpoints, and notes each step in `samples.log`. What it
computes depends on every step since the first. Prints `start N`, what it found in `last.ckpt`, and at the end
`digest <hex>`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import time
from pathlib import Path

from spotwarp.testing.checkpoints import huggingface_files, safetensors_file, torch_file

PIECES = 16


def chain(step: int) -> str:
    """What an undisturbed run has computed after `step` steps."""
    value = ""
    for number in range(1, step + 1):
        value = hashlib.sha256(f"{value} {number}".encode()).hexdigest()
    return value


def last(value: str, size: int, kind: str) -> bytes:
    """The content of `last.ckpt` for a state, `size` bytes of payload."""
    block = hashlib.sha256(value.encode()).digest()
    body = (block * (size // len(block) + 1))[:size]
    return safetensors_file({"w": body}) if kind == "safetensors" else torch_file(body)


def version(data: bytes, steps: range, size: int, kind: str) -> int | None:
    """The step of which `data` is `last.ckpt`, None when it is of none: torn, or a mixture."""
    return next((step for step in steps if data == last(chain(step), size, kind)), None)


def write_slowly(path: Path, data: bytes, seconds: float) -> None:
    """Write `data` in pieces; the file is emptied first, and the same file as before."""
    size = max(1, -(-len(data) // PIECES))
    with path.open("wb") as file:
        for at in range(0, len(data), size):
            file.write(data[at : at + size])
            file.flush()
            time.sleep(seconds / PIECES)


def save(options: argparse.Namespace, step: int, value: str) -> None:
    """One save: the checkpoint's files in the trainer's order, and then `last.ckpt`."""
    place = options.out / f"checkpoint-{step}"
    place.mkdir(parents=True, exist_ok=True)
    files = huggingface_files(step, size=options.size)
    state = {**json.loads(files["trainer_state.json"]), "chain": value}
    files["trainer_state.json"] = json.dumps(state).encode()
    parts = len(files) + (len(files) if options.inplace_last else 0)
    for name, data in files.items():
        write_slowly(place / name, data, options.save_time / parts)
    if options.inplace_last:
        write_slowly(options.out / "last.ckpt", last(value, options.size, options.kind), options.save_time / 2)
    for old in sorted(steps_of(options.out))[: -options.limit] if options.limit else ():
        shutil.rmtree(options.out / f"checkpoint-{old}")


def steps_of(out: Path) -> list[int]:
    """The numbers of the checkpoints there are."""
    return [int(m[1]) for p in out.glob("checkpoint-*") if (m := re.fullmatch(r"checkpoint-(\d+)", p.name))]


def resumed(options: argparse.Namespace) -> tuple[int, str]:
    """The step and the state of the highest checkpoint, read as a trainer reads it: no question whether it is whole."""
    found = steps_of(options.out)
    if not found:
        return 0, ""
    place = options.out / f"checkpoint-{max(found)}"
    state = json.loads((place / "trainer_state.json").read_text())
    (place / "optimizer.pt").read_bytes()
    return state["global_step"], state["chain"]


def main() -> None:
    """Train."""
    parse = argparse.ArgumentParser()
    parse.add_argument("--out", type=Path, default=Path("out"))
    parse.add_argument("--steps", type=int, default=30)
    parse.add_argument("--save-every", type=int, default=10)
    parse.add_argument("--step-time", type=float, default=0.02)
    parse.add_argument("--save-time", type=float, default=1.0)
    parse.add_argument("--size", type=int, default=20_000)
    parse.add_argument("--limit", type=int, default=0)
    parse.add_argument("--inplace-last", action="store_true")
    parse.add_argument("--kind", choices=["safetensors", "torch"], default="safetensors")
    options = parse.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    step, value = resumed(options)
    print("start", step, flush=True)
    if (file := options.out / "last.ckpt").exists():
        steps = range(options.save_every, options.steps + 1, options.save_every)
        print("last", version(file.read_bytes(), steps, options.size, options.kind) or "TORN", flush=True)
    while step < options.steps:
        step += 1
        value = hashlib.sha256(f"{value} {step}".encode()).hexdigest()
        with (options.out / "samples.log").open("a") as log:
            log.write(f"{step}\n")
        time.sleep(options.step_time)
        if step % options.save_every == 0:
            save(options, step, value)
            print("saved", step, flush=True)
    print("digest", value, flush=True)


if __name__ == "__main__":
    main()
