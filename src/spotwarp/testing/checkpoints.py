"""Checkpoints built byte by byte, as real trainers leave them, for tests of whatever reads them.

Owns nothing of the product's: the formats are written here a second time, on purpose, so that writer and reader cannot
share a mistake. Small, deterministic, without torch or numpy.
"""

from __future__ import annotations

import json
import pickle
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path


def safetensors_file(tensors: Mapping[str, bytes], *, dtype: str = "U8", width: int = 1) -> bytes:
    """A safetensors file with each value as a flat tensor of elements of `width` bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, content in tensors.items():
        header[name] = {"dtype": dtype, "shape": [len(content) // width], "data_offsets": [end, end + len(content)]}
        end += len(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(tensors.values())


def torch_file(content: bytes, *, crc: bool = True, dumped: bytes = b"\x80\x02}q\x00.") -> bytes:
    """A file as `torch.save` lays it out: stored records on 64-byte boundaries, descriptors behind them, zip64 ends.

    `dumped` is the object in it; nothing has to refer to `content`. Without `crc` as torch writes it when told not to
    compute any: all zero.
    """
    records = {"data.pkl": dumped, "byteorder": b"little", "data/0": content, "version": b"3\n"}
    body, directory = bytearray(), bytearray()
    for leaf, data in records.items():
        name = b"archive/" + leaf.encode()
        offset = len(body)
        pad = -(offset + 30 + len(name) + 4) % 64
        extra = struct.pack("<2sH", b"FB", pad) + b"Z" * pad
        checksum = zlib.crc32(data) if crc else 0
        body += struct.pack("<4s5H3L2H", b"PK\3\4", 0, 0x808, 0, 0, 0, 0, 0, 0, len(name), len(extra)) + name + extra
        body += data + struct.pack("<4s3L", b"PK\7\x08", checksum, len(data), len(data))
        sizes = (checksum, len(data), len(data), len(name), 0, 0, 0, 0, 0, offset)
        directory += struct.pack("<4s6H3L5H2L", b"PK\1\2", 0, 0, 0x808, 0, 0, 0, *sizes) + name
    start, end, count = len(body), len(body) + len(directory), len(records)
    tail = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(directory), start)
    tail += struct.pack("<4sLQL", b"PK\6\7", 0, end, 1)
    tail += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(directory), start, 0)
    return bytes(body + directory + tail)


def huggingface_files(
    step: int, *, ranks: int = 1, shards: int = 1, adapter: bool = False, size: int = 256
) -> dict[str, bytes]:
    """The files of a resumable `checkpoint-<step>` in the order in which the trainer writes them.

    `size` is the number of bytes in each tensor.
    """
    files: dict[str, bytes] = {}
    if adapter:
        files["adapter_config.json"] = b'{"peft_type": "LORA"}'
        files["adapter_model.safetensors"] = safetensors_file({"lora_A": b"a" * size, "lora_B": b"b" * size})
    elif shards == 1:
        files["config.json"] = b'{"model_type": "llama"}'
        files["model.safetensors"] = safetensors_file({"embed": b"e" * size, "head": b"h" * size})
    else:
        names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
        files["config.json"] = b'{"model_type": "llama"}'
        files |= {name: safetensors_file({f"layer.{at}": b"w" * size}) for at, name in enumerate(names)}
        index = {
            "metadata": {"total_size": size * shards},
            "weight_map": {f"layer.{at}": name for at, name in enumerate(names)},
        }
        files["model.safetensors.index.json"] = json.dumps(index).encode()
    files["training_args.bin"] = torch_file(b"arguments")
    files["optimizer.pt"] = torch_file(b"m" * size)
    files["scheduler.pt"] = torch_file(b"s" * 16)
    for name in ["rng_state.pth"] if ranks == 1 else [f"rng_state_{rank}.pth" for rank in range(ranks)]:
        files[name] = torch_file(b"r" * 64)
    history = [{"step": step - 1, "loss": 2.5}, {"step": step, "loss": 2.25}, {"step": step, "eval_loss": 3.0}]
    state = {"global_step": step, "max_steps": 2 * step, "log_history": history}
    files["trainer_state.json"] = json.dumps(state).encode()
    return files


def deepspeed_files(step: int, *, ranks: int = 2, slices: int = 1) -> dict[str, bytes]:
    """The files of DeepSpeed's tag `global_step<step>`, in the order in which they are written, with `latest` last."""
    says = pickle.dumps({"module": {}, "dp_world_size": ranks, "mp_world_size": slices}, protocol=2)
    tag = f"global_step{step}"
    files = {f"{tag}/mp_rank_{at:02}_model_states.pt": torch_file(b"w" * 64, dumped=says) for at in range(slices)}
    for at in range(slices):
        for rank in range(ranks):
            files[f"{tag}/zero_pp_rank_{rank}_mp_rank_{at:02}_optim_states.pt"] = torch_file(b"m" * 64)
    return files | {"zero_to_fp32.py": b"# weights for one process", "latest": tag.encode()}


def write_files(directory: Path, files: Mapping[str, bytes]) -> Path:
    """Write `files` (names may have folders) into `directory`, made as needed; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return directory
