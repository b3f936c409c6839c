"""Saves that torch wrote, coded against each other, whatever their format: smaller, and bit for bit the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

from spotwarp.persistence.backup import BackupOptions
from spotwarp.persistence.manifest import NO_BASE
from spotwarp.testing.backups import Backups
from spotwarp.testing.trees import read_tree

WIDE = 512
State = dict[str, Any]


def torch_file(place: Path, state: State) -> None:
    place.mkdir()
    torch.save(state, place / "state.pt")


def safetensors_files(place: Path, state: State) -> None:
    place.mkdir()
    safetensors.torch.save_file(state["model"], place / "model.safetensors")


def distributed(place: Path, state: State) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a checkpoint without a process group, which is meant
        dcp.save(state, checkpoint_id=place)


@pytest.mark.parametrize("save", [torch_file, safetensors_files, distributed])
def test_a_later_save_is_mostly_a_difference(tmp_path: Path, save: Callable[[Path, State], None]) -> None:
    torch.manual_seed(0)
    work = tmp_path / "w"
    work.mkdir()
    backups = Backups(work, options=BackupOptions(workers=1, coding="delta"))
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDE, WIDE) for _ in range(4)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    stored = []
    for step in (99, 100):
        model(torch.randn(8, WIDE)).square().sum().backward()
        optimizer.step()
        weights = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
        save(work / f"step-{step}", {"model": weights, "step": step})
        stored.append(backups.take().stored_bytes)
    assert stored[1] < stored[0] / 4
    assert backups.base is not None
    assert any(blob.base != NO_BASE for blob in backups.base.blobs)
    assert backups.restored(tmp_path / "out") == read_tree(work)
