"""Checkpoints that the real trainer saved are judged as what they are, by code that knows nothing of torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from spotwarp.execution.checkpoints import Checkpoint, CheckpointClass, Shape, examine_single, find, judge, newest, walk

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


def cuts(content: bytes) -> set[bytes]:
    """Five ways to be cut short."""
    size = len(content)
    return {content[:length] for length in (0, 1, size // 2, size - 5, size - 1) if 0 <= length < size}


def judged(root: Path) -> dict[bytes, Checkpoint]:
    return {path: judge(root, path) for path in find(walk(root))}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("saved")
    for kind in ("full", "adapter", "weights", "sharded"):
        train(kind, root / kind)
    return root


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("two")
    train("full", root, ranks=2)
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


def test_every_rank_of_a_distributed_run_left_its_random_state(two: Path) -> None:
    assert [(c.cls, c.world_size) for c in judged(two).values()] == [(RESUMABLE, 2), (RESUMABLE, 2)]


def test_of_two_ranks_with_a_file_missing_or_cut_it_is_not_resumable(two: Path, tmp_path: Path) -> None:
    whole = shutil.copytree(two / "checkpoint-4", tmp_path / "checkpoint-4")
    for path in sorted(whole.iterdir()):
        content = path.read_bytes()
        path.unlink()
        assert (judge(tmp_path, b"checkpoint-4", world_size=2).cls is RESUMABLE) == (path.name in OPTIONAL), path.name
        for cut in cuts(content) if path.name != "README.md" else ():
            if content[len(cut) :].strip():  # a last newline may be missing
                path.write_bytes(cut)
                assert judge(tmp_path, b"checkpoint-4", world_size=2).cls is TORN, (path.name, len(cut))
        path.write_bytes(content)


def test_a_step_that_differs_from_its_directory_is_not_resumable(saved: Path, tmp_path: Path) -> None:
    for kind in ("full", "adapter", "sharded"):
        shutil.copytree(saved / kind / "checkpoint-4", tmp_path / kind / "checkpoint-40")
        assert judge(tmp_path, f"{kind}/checkpoint-40".encode()).reason == "trainer_state.json is of step 4, not 40"


def test_torchs_own_weights_file_is_as_good(saved: Path, tmp_path: Path) -> None:
    torch = import_module("torch")
    load = import_module("safetensors.torch").load_file
    whole = shutil.copytree(saved / "full" / "checkpoint-4", tmp_path / "checkpoint-4")
    torch.save(load(whole / "model.safetensors"), whole / "pytorch_model.bin")
    (whole / "model.safetensors").unlink()
    assert judge(tmp_path, b"checkpoint-4").cls is RESUMABLE
    torch.save(load(saved / "full" / "checkpoint-4" / "model.safetensors"), tmp_path / "last.ckpt")
    legacy = tmp_path / "old.pt"
    torch.save({"w": torch.ones(300)}, legacy, _use_new_zipfile_serialization=False)
    for path, proven in ((whole / "pytorch_model.bin", True), (tmp_path / "last.ckpt", True), (legacy, False)):
        content = path.read_bytes()
        name = os.fsencode(path.relative_to(tmp_path)).replace(b"checkpoint-4/", b"")
        place = path.parent
        found = examine_single(place, name, len(content), prove=True)
        assert (found.shape, found.proven) == (Shape.WHOLE, proven)
        for cut in cuts(content):
            path.write_bytes(cut)
            assert examine_single(place, name, len(cut), prove=True).shape in (Shape.TORN, Shape.BLANK)
            if path.name == "pytorch_model.bin":
                assert judge(tmp_path, b"checkpoint-4").cls is TORN
        path.write_bytes(content)
    (whole / "pytorch_model.bin").unlink()
    assert judge(tmp_path, b"checkpoint-4").cls is TORN


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_distributed_checkpoint_needs_every_file_that_its_metadata_names(tmp_path: Path, ranks: int) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *launcher, str(SCRIPT.with_name("save_distributed.py")), str(tmp_path)]
    done = subprocess.run(command, env=os.environ | QUIET, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = judged(tmp_path)
    assert {path: (one.cls, one.step, one.framework) for path, one in found.items()} == {
        b"step-4": (RESUMABLE, 4, "torch-distributed"),
        b"weights-4": (WEIGHTS_ONLY, 4, "torch-distributed"),
    }
    files = sorted((tmp_path / "step-4").iterdir())
    assert [path.name for path in files] == [".metadata", *(f"__{rank}_0.distcp" for rank in range(ranks))]
    for path in files:
        content = path.read_bytes()
        path.unlink()
        one = judged(tmp_path).get(b"step-4")  # without its only piece it is no checkpoint at all
        assert one.cls is TORN if one else path.suffix == ".distcp"
        for cut in cuts(content):
            path.write_bytes(cut)
            assert judged(tmp_path)[b"step-4"].cls is TORN, (path.name, len(cut))
        path.write_bytes(content)
    assert judged(tmp_path)[b"step-4"].cls is RESUMABLE


def test_the_trainer_goes_on_from_what_is_judged_resumable(saved: Path, tmp_path: Path) -> None:
    out = shutil.copytree(saved / "full", tmp_path / "out")
    train("resumed", out)
    best = newest(judged(out).values())
    assert best is not None
    assert best.step == 6
