"""The demo's training command as a user meets it: a process, its checkpoints, and its careless resume."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spotwarp.demo.checkpoint import parse_safetensors

FILES = ["config.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]
STEPS = 30
DEADLINE_S = 60


def start(out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "spotwarp.demo.trainer", "--out", str(out), "--steps", str(STEPS), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def train(out: Path, *options: str) -> list[str]:
    """Train to the end without waiting; the lines printed."""
    process = start(out, "--step-time", "0", "--save-time", "0", *options)
    printed, complaint = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, complaint
    return printed.splitlines()


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert process.poll() is None, "the trainer ended early"
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.002)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An uninterrupted training with every checkpoint kept, and its last line."""
    out = tmp_path_factory.mktemp("whole")
    return out, train(out, "--keep", "100")[-1]


def restored(whole: tuple[Path, str], tmp_path: Path, step: int) -> Path:
    shutil.copytree(whole[0] / f"checkpoint-{step}", tmp_path / f"checkpoint-{step}")
    return tmp_path / f"checkpoint-{step}"


def test_the_digest_is_that_of_the_final_file(whole: tuple[Path, str]) -> None:
    content = (whole[0] / "final" / "model.safetensors").read_bytes()
    assert whole[1] == f"final {hashlib.sha256(content).hexdigest()}"


@pytest.mark.parametrize("step", [10, 20, 30])
def test_a_resumed_training_ends_with_the_same_bits(whole: tuple[Path, str], tmp_path: Path, step: int) -> None:
    restored(whole, tmp_path, step)
    lines = train(tmp_path)
    assert lines[0] == f"start at {step}"
    assert lines[-1] == whole[1]
    states = [json.loads((out / "checkpoint-30" / "trainer_state.json").read_text()) for out in (whole[0], tmp_path)]
    assert states[0] == states[1]
    assert [entry["step"] for entry in states[0]["log_history"]] == list(range(1, STEPS + 1))


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_missing_file_goes_unnoticed_and_changes_the_result(
    whole: tuple[Path, str], tmp_path: Path, name: str
) -> None:
    (restored(whole, tmp_path, 20) / name).unlink()
    lines = train(tmp_path)
    assert lines[0] == "start at 20"
    assert lines[-1].startswith("final ")
    assert lines[-1] != whole[1]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json"])
def test_a_torn_file_of_the_newest_checkpoint_ends_the_resume(
    whole: tuple[Path, str], tmp_path: Path, name: str
) -> None:
    restored(whole, tmp_path, 10)
    path = restored(whole, tmp_path, 20) / name
    path.write_bytes(path.read_bytes()[:-5])
    process = start(tmp_path, "--step-time", "0")
    assert "start at" not in process.communicate(timeout=DEADLINE_S)[0]
    assert process.returncode == 1


def test_a_checkpoint_has_the_shape_of_hugging_face(whole: tuple[Path, str]) -> None:
    directory = whole[0] / "checkpoint-20"
    assert sorted(entry.name for entry in directory.iterdir()) == sorted(FILES)
    content = (directory / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    assert 8 + length + max(entry["data_offsets"][1] for entry in header.values()) == len(content)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        with zipfile.ZipFile(directory / name) as records:
            assert records.testzip() is None
            assert records.namelist()[0] == "archive/data.pkl"
            assert {info.compress_type for info in records.infolist()} == {zipfile.ZIP_STORED}
    state = json.loads((directory / "trainer_state.json").read_text())
    assert (state["global_step"], state["max_steps"]) == (20, STEPS)
    assert set(state["log_history"][-1]) == {"step", "loss", "learning_rate"}


def test_the_weights_are_what_the_safetensors_library_reads(whole: tuple[Path, str]) -> None:
    from safetensors.numpy import load_file, save

    path = whole[0] / "final" / "model.safetensors"
    ours, theirs = parse_safetensors(path.read_bytes()), load_file(path)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert parse_safetensors(save(theirs)).keys() == ours.keys()


def test_rotation_keeps_the_highest_steps(tmp_path: Path) -> None:
    train(tmp_path, "--save-every", "3", "--keep", "2")
    assert sorted(entry.name for entry in tmp_path.glob("checkpoint-*")) == ["checkpoint-27", "checkpoint-30"]


def test_a_notice_saves_the_step_and_loses_none(whole: tuple[Path, str], tmp_path: Path) -> None:
    process = start(tmp_path, "--step-time", "0.01", "--save-time", "0")
    log = tmp_path / "train.log"
    until(lambda: log.exists() and "step 13/" in log.read_text(), process)
    process.send_signal(signal.SIGTERM)
    printed = process.communicate(timeout=DEADLINE_S)[0].splitlines()
    assert process.returncode == 128 + signal.SIGTERM
    last = int(printed[-1].split()[1].split("/")[0])
    assert last >= 13
    lines = train(tmp_path)
    assert lines[0] == f"start at {last}"
    assert lines[-1] == whole[1]


def test_a_kill_inside_a_save_leaves_what_the_next_start_dies_of(whole: tuple[Path, str], tmp_path: Path) -> None:
    process = start(tmp_path, "--step-time", "0", "--save-time", "2")
    directory = tmp_path / "checkpoint-20"
    until(directory.is_dir, process)
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    assert not (directory / "trainer_state.json").exists()
    again = start(tmp_path)
    again.communicate(timeout=DEADLINE_S)
    assert again.returncode == 1

    shutil.rmtree(directory)
    lines = train(tmp_path)
    assert lines[0] == "start at 10"
    assert lines[-1] == whole[1]


def test_threads_of_the_environment_change_nothing(
    whole: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    assert train(tmp_path)[-1] == whole[1]
