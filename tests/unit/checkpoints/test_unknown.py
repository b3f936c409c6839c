"""Layouts that are not known here: kept under their name unless something proves damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwarp.execution.checkpoints import CheckpointClass, by_company, in_the_way, judge
from spotwarp.testing.checkpoints import huggingface_files, safetensors_file, torch_file, write_files

WEIGHTS = safetensors_file({"w": b"x" * 64})
LAYOUTS = {
    "numpy": {"state.json": b"{}", "weights.npz": b"PK"},
    "json alone": {"state.json": b"{}"},
    "one torch file": {"model.pt": torch_file(b"x" * 100)},
    "own weights": {"model.bin": b"xyz", "trainer_state.json": b'{"global_step": 3}'},
    "own state": {
        "model.safetensors": WEIGHTS,
        "optimizer.pt": torch_file(b"x"),
        "state.json": b"{}",
    },
    "accelerate": {
        "model.safetensors": WEIGHTS,
        "optimizer.bin": torch_file(b"x"),
        "scheduler.bin": torch_file(b"y"),
        "random_states_0.pkl": b"\x80\x02.",
    },
    "diffusers": {
        "unet/diffusion_pytorch_model.safetensors": WEIGHTS,
        "optimizer.bin": torch_file(b"x"),
    },
}


@pytest.fixture(params=LAYOUTS)
def foreign(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_files(tmp_path / "checkpoint-10", LAYOUTS[request.param])
    return tmp_path


def test_an_unknown_layout_is_neither_resumable_nor_torn(foreign: Path) -> None:
    verdict = judge(foreign, b"checkpoint-10")
    assert verdict.cls is CheckpointClass.UNKNOWN
    assert "layout" in verdict.reason
    assert in_the_way(by_company([verdict])) == []


def test_damage_in_a_known_file_is_torn_whatever_the_layout(tmp_path: Path) -> None:
    write_files(
        tmp_path / "checkpoint-10",
        {**LAYOUTS["accelerate"], "model.safetensors": WEIGHTS[:-1]},
    )
    assert judge(tmp_path, b"checkpoint-10").cls is CheckpointClass.TORN


def test_beside_a_resumable_one_of_the_trainer_it_is_torn(foreign: Path) -> None:
    write_files(foreign / "checkpoint-5", huggingface_files(5))
    judged = by_company(judge(foreign, path) for path in (b"checkpoint-5", b"checkpoint-10"))
    assert [one.cls for one in judged] == [CheckpointClass.RESUMABLE, CheckpointClass.TORN]
    assert [one.path for one in in_the_way(judged)] == [b"checkpoint-10"]


def test_a_set_of_the_trainers_own_files_only_is_torn_when_something_is_missing(tmp_path: Path) -> None:
    files = huggingface_files(5)
    del files["trainer_state.json"]
    write_files(tmp_path / "checkpoint-5", files)
    assert judge(tmp_path, b"checkpoint-5").cls is CheckpointClass.TORN
