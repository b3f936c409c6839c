"""Checkpoints in Hugging Face's shape: the same names, the same order, the same lack of caution.

Owns the bytes of a `checkpoint-N` directory: safetensors for weights, zip archives laid out like torch's for the rest,
`trainer_state.json` last. Written in place and slowly, without fsync, as real trainers do: a kill inside a save must
leave what it would leave there. Must never put a time or a path of the machine into a file, and never unpickles.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spotwarp.clock import Clock
from spotwarp.demo.model import Array, Parameters

DTYPES = {"float32": "F32"}
PIECES = 8


def safetensors(parameters: Parameters) -> bytes:
    """`parameters` as a safetensors file, tensors in the order of their names."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in sorted(parameters):
        start, end = end, end + parameters[name].nbytes
        dtype, shape = DTYPES[str(parameters[name].dtype)], list(parameters[name].shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    tensors = (parameters[name].tobytes() for name in sorted(parameters))
    return b"".join((len(text).to_bytes(8, "little"), text, *tensors))


def parse_safetensors(content: bytes) -> Parameters:
    """The tensors of a safetensors file. Raises ValueError when header and length disagree."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    if len(content) != start + max(entry["data_offsets"][1] for entry in header.values()):
        raise ValueError("incomplete safetensors file: the header promises another length")
    return {
        name: np.frombuffer(content[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]], np.float32)
        .reshape(entry["shape"])
        .copy()
        for name, entry in header.items()
    }


def archive(state: Mapping[str, Any]) -> bytes:
    """`state` (JSON values and, one level down, arrays) as a zip laid out like torch's: an index, then raw tensors."""
    tensors: list[Array] = []

    def refer(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: refer(entry) for name, entry in value.items()}
        if isinstance(value, np.ndarray):
            tensors.append(value)
            return {"tensor": len(tensors) - 1, "shape": list(value.shape)}
        return value

    index = json.dumps(refer(dict(state))).encode()
    records = {"data.pkl": index, "byteorder": b"little"}
    records |= {f"data/{number}": tensor.tobytes() for number, tensor in enumerate(tensors)}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as out:
        for name, content in (records | {"version": b"3\n"}).items():
            out.writestr(zipfile.ZipInfo(f"archive/{name}", (1980, 1, 1, 0, 0, 0)), content)
    return buffer.getvalue()


def parse_archive(path: Path) -> dict[str, Any]:
    """What `archive` was given. Raises zipfile.BadZipFile, KeyError or ValueError for anything else."""
    with zipfile.ZipFile(path) as records:

        def resolve(value: Any) -> Any:
            if isinstance(value, dict) and "tensor" in value:
                content = records.read(f"archive/data/{value['tensor']}")
                return np.frombuffer(content, np.float32).reshape(value["shape"]).copy()
            if isinstance(value, dict):
                return {name: resolve(entry) for name, entry in value.items()}
            return value

        state = resolve(json.loads(records.read("archive/data.pkl")))
    return dict(state)


def save(directory: Path, files: Mapping[str, bytes], *, seconds: float, clock: Clock) -> None:
    """Write `files` into `directory` in their order, in place, taking at least `seconds`, spread by size."""
    directory.mkdir(parents=True, exist_ok=True)
    total = sum(len(content) for content in files.values())
    for name, content in files.items():
        share = seconds * (0.75 * len(content) / total + 0.25 / len(files))
        size = -(-len(content) // PIECES)
        with (directory / name).open("wb") as file:
            for start in range(0, len(content), size):
                file.write(content[start : start + size])
                file.flush()
                if seconds:
                    clock.sleep(share / PIECES)


def steps(out: Path) -> list[int]:
    """The steps of all `checkpoint-N` directories, in numerical order; whether they are whole is not asked."""
    matches = (re.fullmatch(r"checkpoint-(\d+)", entry.name) for entry in out.iterdir() if entry.is_dir())
    return sorted(int(match[1]) for match in matches if match)


def rotate(out: Path, keep: int) -> None:
    """Delete all but the `keep` highest checkpoints."""
    for step in steps(out)[:-keep]:
        shutil.rmtree(out / f"checkpoint-{step}")
