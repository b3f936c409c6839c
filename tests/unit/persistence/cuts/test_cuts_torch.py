"""Checkpoints as torch, safetensors and torch's distributed checkpoints write them: where their tensors lie."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

from spotwarp.persistence.cuts import Cuts, cuts, lined_up

WIDE = 400
"""A layer's weight has its square: 320 KB in bfloat16, 640 KB in float32."""
CHUNK = 4 << 20


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """torch warns of a checkpoint that is written without a process group, which is meant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Trained:
    """A model in bfloat16 and its optimiser in float32, some steps on."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*[torch.nn.Linear(WIDE, WIDE) for _ in range(2)])
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self) -> None:
        self.model(torch.randn(4, WIDE)).square().sum().backward()
        self.optimizer.step()

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.bfloat16() for name, tensor in self.model.state_dict().items()}

    def everything(self, step: int) -> dict[str, Any]:
        return {"model": self.weights(), "optimizer": self.optimizer.state_dict(), "losses": [0.5] * step}


def cut(path: Path) -> Cuts:
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        found = cuts(fd, size)
    finally:
        os.close(fd)
    ends = [start + found.length(number) for number, start in enumerate(found.starts)]
    assert [0, *ends] == [*found.starts, size]
    return found


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def found_at(path: Path, found: Cuts, tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """The key of the piece that begins with each tensor; its width is checked."""
    content = path.read_bytes()
    keys = {}
    for name, tensor in tensors.items():
        for number, start in enumerate(found.starts):
            if content.startswith(raw(tensor)[:CHUNK], start):
                assert found.width(number) == tensor.element_size()
                keys[name] = found.key(number)
    return keys


def weights_of(state: dict[Any, Any], name: str) -> dict[str, torch.Tensor]:
    return {f"{name}.{n}": state[n][name] for n in (0, 2)}


def test_safetensors_by_name(tmp_path: Path) -> None:
    trained = Trained()
    trained.step()
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(trained.weights(), path, {"step": "1"})
    before = cut(path)
    weights = {name: tensor for name, tensor in trained.weights().items() if "weight" in name}
    assert found_at(path, before, weights) == {name: f"{name}+0" for name in weights}

    trained.step()
    safetensors.torch.save_file(trained.weights(), path, {"step": "1000000000"})
    after = cut(path)
    assert after.size != before.size
    assert lined_up(after, before) == {number: number for number in range(1, len(after))}


def test_a_saved_object_by_its_records(tmp_path: Path) -> None:
    trained = Trained()
    trained.step()
    torch.save(trained.everything(3), tmp_path / "model-step=3.ckpt")
    state = trained.optimizer.state_dict()["state"]
    tensors = weights_of(state, "exp_avg") | weights_of(state, "exp_avg_sq")
    tensors |= {name: tensor for name, tensor in trained.weights().items() if "weight" in name}
    before = cut(tmp_path / "model-step=3.ckpt")
    keys = found_at(tmp_path / "model-step=3.ckpt", before, tensors)
    assert len(set(keys.values())) == len(tensors)
    assert all(key.startswith("data/") for key in keys.values())

    trained.step()
    torch.save(trained.everything(900), tmp_path / "model-step=9.ckpt")
    after = cut(tmp_path / "model-step=9.ckpt")
    assert after.starts[1] != before.starts[1]
    assert lined_up(after, before) == {n: n for n in range(len(after)) if after.key(n)}


@pytest.mark.parametrize(
    "dtype",
    [
        *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
        *("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "complex64"),
    ],
)
def test_every_type_of_element(tmp_path: Path, dtype: str) -> None:
    tensor = torch.zeros(400_000, dtype=getattr(torch, dtype))
    width = tensor.element_size() // (2 if tensor.is_complex() else 1)
    torch.save({"w": tensor}, tmp_path / "a.pt")
    safetensors.torch.save_file({"w": tensor}, tmp_path / "b.safetensors")
    for path in (tmp_path / "a.pt", tmp_path / "b.safetensors"):
        found = cut(path)
        assert next(found.width(n) for n in range(len(found)) if found.key(n)) == width


def test_a_distributed_checkpoint_item_by_item(tmp_path: Path) -> None:
    trained = Trained()
    found = {}
    for step in (1, 2):
        trained.step()
        place = tmp_path / f"step-{step}"
        state = {"model": trained.weights(), "optimizer": trained.optimizer.state_dict(), "step": step}
        dcp.save(state, checkpoint_id=place)
        found[step] = cut(place / "__0_0.distcp")
        optimizer = trained.optimizer.state_dict()["state"]
        tensors = weights_of(optimizer, "exp_avg") | weights_of(optimizer, "exp_avg_sq")
        tensors |= {name: tensor for name, tensor in trained.weights().items() if "weight" in name}
        assert len(set(found_at(place / "__0_0.distcp", found[step], tensors).values())) == len(tensors)
    assert lined_up(found[2], found[1]) == {n: n for n in range(len(found[2])) if found[2].key(n)}


def test_a_distributed_checkpoint_in_safetensors(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat

    weights = Trained().weights()
    writer = FileSystemWriter(tmp_path, serialization_format=SerializationFormat.SAFETENSORS)
    dcp.save(dict(weights), storage_writer=writer)
    path = tmp_path / "__0_0.distcp"
    wide = {name: tensor for name, tensor in weights.items() if "weight" in name}
    assert found_at(path, cut(path), wide) == {name: f"{name}+0" for name in wide}


def test_large_tensors_are_cut_from_their_beginning(tmp_path: Path) -> None:
    tensor = torch.from_numpy(np.arange(2_500_000, dtype=np.float32))
    torch.save(tensor, tmp_path / "a.pt")
    found = cut(tmp_path / "a.pt")
    content = (tmp_path / "a.pt").read_bytes()
    parts = [(found.key(n), content[start : start + CHUNK]) for n, start in enumerate(found.starts) if found.key(n)]
    assert [key for key, _ in parts] == ["data/0+0", "data/0+1", "data/0+2"]
    assert b"".join(part[: found.length(n + 1)] for n, (_, part) in enumerate(parts)).startswith(raw(tensor))


def test_a_script_and_an_old_file(tmp_path: Path) -> None:
    model = Trained().model
    torch.jit.save(torch.jit.script(model), tmp_path / "script.pt")
    found = cut(tmp_path / "script.pt")
    weights = {name: tensor for name, tensor in model.state_dict().items() if "weight" in name}
    assert len(found_at(tmp_path / "script.pt", found, weights)) == len(weights)
    torch.save(model.state_dict(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert not cut(tmp_path / "old.pt").keys
