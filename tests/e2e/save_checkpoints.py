"""Save checkpoints with the real trainer: `python save_checkpoints.py KIND OUT`, a tiny model on the CPU.

KIND is `full`, `adapter`, `weights` (no optimiser), `sharded` or `resumed` (go on from the newest in OUT).
"""

from __future__ import annotations

import sys
from functools import partial

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


def main(kind: str, out: str) -> None:
    """Train four steps (six if resumed), saving after the second, the fourth and the sixth."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    model = LlamaForCausalLM(config)
    if kind == "adapter":
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    if kind == "sharded":
        model.save_pretrained = partial(model.save_pretrained, max_shard_size="8KB")
    rows = [torch.arange(8) + at for at in range(16)]
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=out,
            max_steps=6 if kind == "resumed" else 4,
            save_steps=2,
            logging_steps=1,
            per_device_train_batch_size=1,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            save_only_model=kind == "weights",
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
    )
    trainer.train(resume_from_checkpoint=kind == "resumed")


if __name__ == "__main__":
    main(*sys.argv[1:])
