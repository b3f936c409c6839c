"""A real training: a small Llama, all of its weights, with the trainer that most people use.

    python -m spotwarp.testing.training --out out --steps 24 --save-every 6 [--resume-from CHECKPOINT]

Alone or on several ranks (`torchrun --standalone --nproc-per-node 2 -m …`), with gloo. Needs torch and transformers,
knows nothing of SpotWarp. Dropout and shuffling make the random state matter: a resume
that loses any of it ends with other weights. Prints `start at N`, `step k/N loss=…` for each step and, at the end,
`final <sha256 of final/model.safetensors>`. `--save-time` lets a save take so many seconds more, in the middle of it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

VOCABULARY, CONTEXT, ROWS, SEED = 512, 48, 64, 11


def model() -> Any:
    """A Llama of about a million parameters, always the same."""
    import_module("torch").manual_seed(SEED)
    transformers = import_module("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT,
        attention_dropout=0.1,
        attn_implementation="eager",
    )
    return transformers.LlamaForCausalLM(config)


def data() -> list[dict[str, Any]]:
    """Rows of tokens with something to learn in them."""
    torch = import_module("torch")
    rows = [(torch.arange(CONTEXT) * (row % 7 + 1) + row) % VOCABULARY for row in range(ROWS)]
    return [{"input_ids": row, "labels": row} for row in rows]


def trainer(options: argparse.Namespace, model: Any, rows: Sequence[Any]) -> Any:
    """The trainer of `model` on `rows`, told to be quiet and to stay on the CPU."""
    transformers = import_module("transformers")

    base: Any = transformers.Trainer
    callback: Any = transformers.TrainerCallback

    class Slow(base):  # type: ignore[misc]  # may not be installed
        def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
            super().save_model(output_dir, _internal_call)
            time.sleep(options.save_time)

    class Tell(callback):  # type: ignore[misc]  # as above
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                say(f"start at {state.global_step}")

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
            if logs and "loss" in logs and state.is_world_process_zero:
                say(f"step {state.global_step}/{state.max_steps} loss={logs['loss']}")
                time.sleep(options.step_time)

    settings = transformers.TrainingArguments(
        output_dir=str(options.out),
        max_steps=options.steps,
        save_steps=options.save_every,
        save_total_limit=3,
        logging_steps=1,
        per_device_train_batch_size=2,
        learning_rate=1e-3,
        seed=SEED,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        ddp_backend="gloo" if "WORLD_SIZE" in os.environ else None,
    )
    return Slow(model=model, args=settings, train_dataset=rows, callbacks=[Tell()])


def say(line: str) -> None:
    """One line, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def parser(program: str, description: str) -> argparse.ArgumentParser:
    """The options that every training here has."""
    found = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    found.add_argument("--out", type=Path, default=Path("out"))
    found.add_argument("--steps", type=int, default=24)
    found.add_argument("--save-every", type=int, default=6)
    found.add_argument("--step-time", type=float, default=0.0)
    found.add_argument("--save-time", type=float, default=0.0)
    found.add_argument("--resume-from", default=None)
    return found


def train(options: argparse.Namespace, model: Any, rows: Sequence[Any], weights: str) -> int:
    """From the first step, or from the checkpoint, to the final `weights` file; the exit code."""
    training = trainer(options, model, rows)
    training.train(resume_from_checkpoint=options.resume_from)
    if training.is_world_process_zero():
        final = options.out / "final"
        training.model.save_pretrained(final)
        say(f"final {hashlib.sha256((final / weights).read_bytes()).hexdigest()}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    options = parser("spotwarp.testing.training", "Train a small Llama.").parse_args(arguments)
    return train(options, model(), data(), "model.safetensors")


if __name__ == "__main__":
    sys.exit(main())
