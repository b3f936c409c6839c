"""Writes training workspaces with the values, sizes and habits of real ones.

    python -m benchmarks.gen lora      ROOT --save N    checkpoint of a LoRA run (HF Trainer's layout, the last 3 kept)
    python -m benchmarks.gen full      ROOT --save N    of a full fine-tune: bf16 shards, fp32 Adam state
    python -m benchmarks.gen workspace ROOT [--touch K] 20,009 small files: a virtual environment, a git clone, logs
    python -m benchmarks.gen inplace   ROOT [--touch K] 1 GiB of which 1 % is overwritten, and a log that grows
    python -m benchmarks.gen logs      ROOT [--touch K] nine logs that are appended to

What a trainer holds in memory between two saves is kept in --state, so that they are saves of one run. Seeds, sizes and
the order of draws are never changed: figures must stay comparable from year to year.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import torch

MIB: Final = 1 << 20
BETA1_SPREAD: Final = 0.23
"""An average of fresh gradients with beta1 0.9 has this share of their spread."""

Shapes = list[tuple[str, tuple[int, ...], float]]
"""Name, shape and scale of each tensor; a negative scale is a norm's weight: ones and a little."""
Array = np.ndarray[Any, np.dtype[np.float32]]


def rng_for(*key: object) -> np.random.Generator:
    """The stream of chance that belongs to `key`."""
    return np.random.default_rng([zlib.crc32(repr(part).encode()) for part in key])


def normal(rng: np.random.Generator, count: int, scale: float) -> Array:
    drawn = rng.standard_normal(count, dtype=np.float32)
    drawn *= scale
    return drawn


# ------------------------------------------------------------------------------------------------------ checkpoints


def full_shapes(params_m: float, hidden: int = 1024) -> Shapes:
    """A decoder-only transformer of about `params_m` million parameters; smaller runs take a smaller `hidden`."""
    inter, vocab = hidden * 11 // 4, hidden * 125 // 4
    per_layer = 4 * hidden * hidden + 3 * hidden * inter + 2 * hidden
    layers = max(1, round((params_m * 1e6 - vocab * hidden) / per_layer))
    shapes: Shapes = [("model.embed_tokens.weight", (vocab, hidden), 0.02)]
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        scale = 0.02 / (1 + 0.02 * layer)
        shapes += [(prefix + f"self_attn.{part}_proj.weight", (hidden, hidden), scale) for part in "qkvo"]
        shapes += [
            (prefix + "mlp.gate_proj.weight", (inter, hidden), scale),
            (prefix + "mlp.up_proj.weight", (inter, hidden), scale),
            (prefix + "mlp.down_proj.weight", (hidden, inter), scale * 0.7),
            (prefix + "input_layernorm.weight", (hidden,), -1),
            (prefix + "post_attention_layernorm.weight", (hidden,), -1),
        ]
    return [*shapes, ("model.norm.weight", (hidden,), -1)]


def lora_shapes(rank: int = 64, layers: int = 28, hidden: int = 3584) -> Shapes:
    parts = {"q": (hidden, hidden), "k": (512, hidden), "v": (512, hidden), "o": (hidden, hidden)}
    shapes: Shapes = []
    for layer in range(layers):
        for part, (rows, columns) in parts.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{part}_proj."
            shapes += [
                (prefix + "lora_A.weight", (rank // 2, columns), 0.01),
                (prefix + "lora_B.weight", (rows, rank // 2), 0),
            ]
    return shapes


@dataclass(frozen=True, slots=True)
class Run:
    """A training run: fp32 master weights with Adam's moments, moved on between saves."""

    seed: str
    shapes: Shapes
    state: Path
    lr: float
    steps: int
    """Optimizer steps between two saves."""

    def advance(self, save: int) -> Iterator[tuple[tuple[int, ...], str, Array, Array, Array]]:
        """Shape, name, weights and both moments of every tensor at this save; the next one goes on from them."""
        self.state.mkdir(parents=True, exist_ok=True)
        for name, shape, scale in self.shapes:
            kept = self.state / f"{name}.npz.npy"
            count = int(np.prod(shape))
            spread = self._spread(name, shape, count)
            if kept.exists():
                weights, second = np.load(kept)
            else:
                weights, second = self._initial(name, count, scale, spread)
            rng = rng_for(self.seed, name, save)
            first = normal(rng, count, 1) * spread * np.float32(BETA1_SPREAD)
            decay = np.float32(0.999**self.steps)
            noise = (1 + normal(rng, count, 1) * np.float32(0.2)) ** 2
            second = second * decay + (1 - decay) * (spread * spread) * noise
            # Noise gradients add up as a random walk: k steps go about lr * sqrt(k) far.
            reach = 1.0 if self.steps == 1 else self.steps**0.5 / BETA1_SPREAD
            weights = weights - np.float32(self.lr * reach) * (first / (np.sqrt(second) + 1e-8))
            np.save(kept, np.stack([weights, second]))
            yield shape, name, weights, first, second

    def _spread(self, name: str, shape: tuple[int, ...], count: int) -> Array:
        """How far each parameter's gradients spread: a scale per tensor, heavy-tailed per row as real ones are."""
        of_tensor = 10 ** rng_for(self.seed, name).uniform(-5.2, -3.8)
        rows = rng_for(self.seed, name, "rows").standard_normal(shape[0]).astype(np.float32)
        spread: Array = np.exp(rows * 0.8) * of_tensor
        return np.repeat(spread, count // shape[0]) if len(shape) > 1 else spread

    def _initial(self, name: str, count: int, scale: float, spread: Array) -> tuple[Array, Array]:
        rng = rng_for(self.seed, name, "init")
        weights = np.ones(count, np.float32) + normal(rng, count, 0.02) if scale < 0 else normal(rng, count, scale)
        second: Array = (spread * normal(rng, count, 1)) ** 2 * 0.3 + spread**2 * 0.7
        return weights, second


def save_checkpoint(root: Path, run: Run, save: int, *, adapter: bool, shard_bytes: int, keep: int = 3) -> Path:
    """Save number `save` of `run`, as HF's Trainer writes it; older checkpoints beyond `keep` are removed."""
    import torch

    dtype = torch.float32 if adapter else torch.bfloat16
    folder = root / f"checkpoint-{save * run.steps}"
    folder.mkdir(parents=True, exist_ok=True)
    moments: dict[int, dict[str, torch.Tensor]] = {}
    shards: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for number, (shape, name, weights, first, second) in enumerate(run.advance(save)):
        tensor = torch.from_numpy(weights.astype(np.float32)).reshape(shape).to(dtype)
        if shard_bytes and size + tensor.nbytes > shard_bytes and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
        moments[number] = {
            "step": torch.tensor(float(save * run.steps)),
            "exp_avg": torch.from_numpy(first).reshape(shape),
            "exp_avg_sq": torch.from_numpy(second.astype(np.float32)).reshape(shape),
        }
    _write_weights(folder, shards, "adapter_model" if adapter else "model")
    _write_json(folder / ("adapter_config.json" if adapter else "config.json"), {"r": 32, "hidden_size": 1024})
    groups = [{"lr": run.lr, "betas": (0.9, 0.999), "params": list(moments)}]
    torch.save({"state": moments, "param_groups": groups}, folder / "optimizer.pt")
    _write_trainer_files(folder, run, save)
    saved = sorted(root.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    for old in saved[:-keep]:
        shutil.rmtree(old)
    return folder


def _write_weights(folder: Path, shards: list[dict[str, torch.Tensor]], name: str) -> None:
    from safetensors.torch import save_file

    if len(shards) == 1:
        save_file(shards[0], folder / f"{name}.safetensors", metadata={"format": "pt"})
        return
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"{name}-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        index.update(dict.fromkeys(shard, file))
    _write_json(folder / f"{name}.safetensors.index.json", {"metadata": {}, "weight_map": index})


def _write_trainer_files(folder: Path, run: Run, save: int) -> None:
    import torch

    def step_facts(step: int) -> dict[str, float]:
        return {
            "epoch": round(step / 5000, 4),
            "grad_norm": float(abs(rng_for(run.seed, "gn", step).normal(0.6, 0.2))),
            "learning_rate": 1e-5,
            "loss": float(1.8 / (1 + step / 400) + rng_for(run.seed, "ls", step).normal(0, 0.03)),
            "step": step,
        }

    draws = rng_for(run.seed, "log", save).integers(0, 2**32, 624)
    torch.save({"base_lrs": [1e-5], "last_epoch": save, "_step_count": save + 1}, folder / "scheduler.pt")
    torch.save({"python": list(range(625)), "numpy": draws, "cpu": torch.get_rng_state()}, folder / "rng_state.pth")
    torch.save({"output_dir": str(folder.parent), "bf16": True, "seed": 42}, folder / "training_args.bin")
    vocabulary = {f"tok{i}_{(i * 2654435761) & 0xFFFF:x}": i for i in range(32000)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    _write_json(folder / "special_tokens_map.json", {"eos_token": "</s>", "pad_token": "<pad>"})
    last = save * run.steps
    history = [step_facts(step) for step in range(10, last + 1, 10)]
    # Trainer writes this one last.
    _write_json(folder / "trainer_state.json", {"best_metric": None, "global_step": last, "log_history": history})


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


# ------------------------------------------------------------------------------------------------------ small files

WORDS: Final = (  # noqa: SIM905 - a list of quoted words is harder to read
    "self return import def class None True for in if else not raise ValueError config tensor model device "
    "batch optimizer grad step loss dtype shape index torch numpy path open json args kwargs cache name value key "
    "layer hidden attention mask logits tokens config.get os.path join assert isinstance super forward init"
).split()


def source_text(rng: np.random.Generator, length: int) -> bytes:
    """`length` bytes that compress as source code does."""
    lines: list[str] = []
    size = 0
    names = [f"var_{int(number):x}" for number in rng.integers(0, 1 << 20, 30)]
    while size < length:
        count = int(rng.integers(2, 9))
        draws = zip(
            rng.integers(0, len(WORDS), count), rng.integers(0, 30, count), rng.integers(0, 3, count), strict=True
        )
        words = [WORDS[word] if common else names[name] for word, name, common in draws]
        line = "    " * int(rng.integers(0, 4)) + " ".join(words) + "\n"
        lines.append(line)
        size += len(line)
    return "".join(lines)[:length].encode()


def log_lines(log: int, start: int, count: int) -> bytes:
    """Lines `start` to `start + count` of a trainer's log number `log`."""
    draws = rng_for("log", log, start).random(count)
    return b"".join(
        b"2026-05-01 12:%02d:%02d,%03d INFO trainer step=%d loss=%.5f lr=1.0e-05 tok/s=%d\n"
        % (i // 60 % 60, i % 60, i % 1000, start + i, draw * 2, 10000 + draw * 800)
        for i, draw in enumerate(draws)
    )


def write_workspace(root: Path, files: int = 20000, seed: int = 7) -> None:
    """A virtual environment, a clone with its objects, eight logs: `files` small files, nine more, and a git pack."""
    rng = rng_for(seed, "tree")
    pool = source_text(rng_for(seed, "pool"), 4 * MIB)
    for i in range(files):
        length = int(min(400_000, max(20, rng.lognormal(8.2, 1.3))))
        start = int(rng.integers(0, len(pool) - length))
        path, content = _small_file(i, pool[start : start + length])
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    for log in range(8):
        _append(root / f"logs/train_{log}.log", log_lines(log, 0, 20000))
    packs = root / "repo/.git/objects/pack"
    packs.mkdir(parents=True, exist_ok=True)
    (packs / "pack-1.pack").write_bytes(rng.bytes(24 * MIB))


def _small_file(i: int, text: bytes) -> tuple[str, bytes]:
    """Seven of ten files lie in packages, two are git objects, one is a source."""
    kind = i % 10
    if kind < 7:
        package = f"venv/lib/python3.11/site-packages/pkg{i % 160}/sub{i % 7}"
        name = f"__pycache__/m{i}.cpython-311.pyc" if i % 2 else f"m{i}.py"
        return f"{package}/{name}", f"# module {i}\n".encode() + text
    if kind < 9:
        name = f"{(i * 2654435761) % (1 << 32):08x}"
        blob = zlib.compress(b"blob " + str(i).encode() + text, 1)
        return f"repo/.git/objects/{name[:2]}/{name[2:]}{i:032x}", blob
    return f"repo/src/d{i % 40}/f{i}.py", f"# src {i}\n".encode() + text


def touch_workspace(root: Path, touch: int) -> None:
    """An hour's work: 25 sources edited, every log longer."""
    rng = rng_for("touch", touch)
    sources = sorted((root / "repo/src").rglob("*.py"))
    for i in rng.choice(len(sources), 25, replace=False):
        old = sources[i].read_bytes()
        sources[i].write_bytes(old[:200] + f"\n# edit {touch}\n".encode() + old[200:])
    for log in range(8):
        _append(root / f"logs/train_{log}.log", log_lines(log, 20000 + touch * 500, 500))


def _append(path: Path, lines: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(lines)


# ------------------------------------------------------------------------------------------------------ in place


def write_inplace(root: Path, total: int = 1024 * MIB, seed: int = 3) -> None:
    """Two files of weights that are written to in place, and a log."""
    root.mkdir(parents=True, exist_ok=True)
    for name in ("scatter.bin", "cluster.bin"):
        with (root / name).open("wb") as file:
            for part in range(total // 2 // (32 * MIB)):
                file.write(normal(rng_for(seed, name, part), 8 * MIB, 0.05).tobytes())
    (root / "metrics.jsonl").write_bytes(log_lines(99, 0, 200000))


def touch_inplace(root: Path, touch: int) -> None:
    """Overwrite 1 % of the pages, here scattered, there in runs of 512 KiB."""
    rng = rng_for("ip", touch)
    for name, run in (("scatter.bin", 1), ("cluster.bin", 128)):
        with (root / name).open("r+b") as file:
            pages = os.fstat(file.fileno()).st_size // 4096
            count = max(1, pages // 100 // run)
            for start in rng.choice(pages // run, count, replace=False):
                os.pwrite(file.fileno(), rng.bytes(4096 * run), int(start) * run * 4096)
    _append(root / "metrics.jsonl", log_lines(99, 200000 + 2000 * touch, 2000))


# ------------------------------------------------------------------------------------------------------ logs


def append_logs(root: Path, touch: int) -> None:
    """Nine logs of 20,000 lines, or 600 lines more for each."""
    for log in range(9):
        start, count = (20000 + 600 * (touch - 1), 600) if touch else (0, 20000)
        _append(root / f"train_{log}.log", log_lines(log, start, count))


# ------------------------------------------------------------------------------------------------------ command line


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gen", description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["lora", "full", "workspace", "inplace", "logs"])
    parser.add_argument("root", type=Path)
    parser.add_argument("--save", type=int, default=1, help="which save of the run, from 1")
    parser.add_argument("--touch", type=int, default=0, help="change what is there, the K-th time")
    parser.add_argument("--state", type=Path, default=Path(".bench/state"))
    parser.add_argument("--params-m", type=float, default=215, help="full: millions of parameters")
    parser.add_argument("--hidden", type=int, default=1024, help="full: width of the model")
    parser.add_argument("--files", type=int, default=20000, help="workspace: how many small files")
    parser.add_argument("--mib", type=int, default=1024, help="inplace: how much")
    parser.add_argument("--steps", type=int, default=0, help="optimizer steps between saves (lora 50, full 1)")
    wish = parser.parse_args()
    wish.root.mkdir(parents=True, exist_ok=True)
    if wish.kind == "lora":
        run = Run("lora", lora_shapes(), wish.state / "lora", 2e-4, wish.steps or 50)
        save_checkpoint(wish.root, run, wish.save, adapter=True, shard_bytes=0)
    elif wish.kind == "full":
        steps = wish.steps or 1
        run = Run("full", full_shapes(wish.params_m, wish.hidden), wish.state / f"full-{steps}", 1e-5, steps)
        save_checkpoint(wish.root, run, wish.save, adapter=False, shard_bytes=160 * MIB)
    elif wish.kind == "workspace":
        touch_workspace(wish.root, wish.touch) if wish.touch else write_workspace(wish.root, wish.files)
    elif wish.kind == "logs":
        append_logs(wish.root, wish.touch)
    else:
        touch_inplace(wish.root, wish.touch) if wish.touch else write_inplace(wish.root, wish.mib * MIB)


if __name__ == "__main__":
    main()
