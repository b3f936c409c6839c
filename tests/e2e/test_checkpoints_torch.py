"""Checkpoints that the real trainer saved are judged as what they are, by code that knows nothing of torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spotwarp.execution.checkpoints import Checkpoint, CheckpointClass, find, judge, newest, walk

pytestmark = pytest.mark.slow

RESUMABLE, WEIGHTS_ONLY, TORN = CheckpointClass.RESUMABLE, CheckpointClass.WEIGHTS_ONLY, CheckpointClass.TORN
SCRIPT = Path(__file__).with_name("save_checkpoints.py")
# What the trainer never reads back, and what it can do without.
OPTIONAL = {"README.md", "config.json", "generation_config.json", "training_args.bin"}
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def train(kind: str, out: Path, *, ranks: int = 1) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *launcher, str(SCRIPT), kind, str(out)]
    done = subprocess.run(command, env=os.environ | QUIET, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def judged(root: Path) -> dict[bytes, Checkpoint]:
    return {path: judge(root, path) for path in find(walk(root))}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("saved")
    for kind in ("full", "adapter", "weights", "sharded"):
        train(kind, root / kind)
    return root


@pytest.mark.parametrize("kind", ["full", "adapter", "sharded"])
def test_what_the_trainer_saved_is_resumable(saved: Path, kind: str) -> None:
    found = judged(saved / kind)
    assert [(c.path, c.cls, c.reason, c.world_size) for c in found.values()] == [
        (b"checkpoint-2", RESUMABLE, "", 1),
        (b"checkpoint-4", RESUMABLE, "", 1),
    ]
    best = newest(found.values())
    assert best is not None
    assert best.step == 4
    assert best.loss is not None
    assert 1 < best.loss < 10
    names = {path.name for path in (saved / kind / "checkpoint-4").iterdir()}
    assert ("model.safetensors.index.json" in names) == (kind == "sharded")
    assert ("adapter_model.safetensors" in names) == (kind == "adapter")


def test_what_it_saved_without_an_optimizer_is_weights_only(saved: Path) -> None:
    assert {c.cls for c in judged(saved / "weights").values()} == {WEIGHTS_ONLY}


@pytest.mark.parametrize("kind", ["full", "adapter", "sharded"])
def test_with_a_file_missing_or_cut_it_is_not_resumable(saved: Path, tmp_path: Path, kind: str) -> None:
    whole = shutil.copytree(saved / kind / "checkpoint-4", tmp_path / "checkpoint-4")
    assert judge(tmp_path, b"checkpoint-4").cls is RESUMABLE
    for path in sorted(whole.iterdir()):
        content = path.read_bytes()
        path.unlink()
        assert (judge(tmp_path, b"checkpoint-4").cls is RESUMABLE) == (path.name in OPTIONAL), path.name
        cuts = [0, 1, len(content) // 2, len(content) - 5, len(content) - 1] if path.name != "README.md" else []
        for content_cut in {content[:cut] for cut in cuts if content[cut:].strip()}:
            path.write_bytes(content_cut)
            found = judge(tmp_path, b"checkpoint-4")
            assert found.cls is TORN, (path.name, len(content_cut))
            assert path.name in found.reason
        path.write_bytes(content)
    assert judge(tmp_path, b"checkpoint-4").cls is RESUMABLE


def test_every_rank_of_a_distributed_run_left_its_random_state(tmp_path: Path) -> None:
    train("full", tmp_path, ranks=2)
    assert [(c.cls, c.world_size) for c in judged(tmp_path).values()] == [(RESUMABLE, 2), (RESUMABLE, 2)]
    (tmp_path / "checkpoint-4" / "rng_state_1.pth").unlink()
    assert judge(tmp_path, b"checkpoint-4", world_size=2).cls is TORN


def test_the_trainer_goes_on_from_what_is_judged_resumable(saved: Path, tmp_path: Path) -> None:
    out = shutil.copytree(saved / "full", tmp_path / "out")
    train("resumed", out)
    best = newest(judged(out).values())
    assert best is not None
    assert best.step == 6
