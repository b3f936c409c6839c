"""The watch for completed checkpoints: each is noticed once, also one that was torn at first sight."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwarp.clock import SystemClock
from spotwarp.execution.checkpoints import Checkpoint
from spotwarp.execution.syncing.watch import CheckpointWatch
from spotwarp.testing.checkpoints import huggingface_files, write_files


@pytest.fixture
def noticed() -> list[bytes]:
    return []


@pytest.fixture
def watch(tmp_path: Path, noticed: list[bytes]) -> CheckpointWatch:
    def complete(one: Checkpoint) -> None:
        noticed.append(one.path)

    (tmp_path / "out").mkdir()
    return CheckpointWatch(tmp_path, settle_s=0.0, clock=SystemClock(), on_complete=complete)


@pytest.mark.parametrize("last", ["trainer_state.json", "optimizer.pt", "model.safetensors"])
def test_a_torn_one_whose_last_file_grows_is_noticed_when_it_is_whole(
    tmp_path: Path, watch: CheckpointWatch, noticed: list[bytes], last: str
) -> None:
    """No name is added and none goes: only a file's size tells."""
    files = huggingface_files(10)
    cut = files[last][: len(files[last]) // 2]
    place = write_files(tmp_path / "out" / "checkpoint-10", {**files, last: cut})
    for _ in range(4):
        watch.look()
    assert noticed == []
    with (place / last).open("ab") as file:
        file.write(files[last][len(cut) :])
    for _ in range(4):
        watch.look()
    assert noticed == [b"out/checkpoint-10"]


def test_each_is_noticed_once(tmp_path: Path, watch: CheckpointWatch, noticed: list[bytes]) -> None:
    write_files(tmp_path / "out" / "checkpoint-10", huggingface_files(10))
    for _ in range(4):
        watch.look()
    write_files(tmp_path / "out" / "checkpoint-20", huggingface_files(20))
    for _ in range(4):
        watch.look()
    assert noticed == [b"out/checkpoint-10", b"out/checkpoint-20"]
