"""How many processes a command starts, and whether a checkpoint fits: from flags, variables and records alone."""

from __future__ import annotations

import shlex

import pytest

from spotwarp.execution.sameness.shape import fit, world_of
from spotwarp.persistence.runlog.entry import Shape


@pytest.mark.parametrize(
    ("command", "env", "gpus", "world"),
    [
        ("torchrun --nproc_per_node=8 train.py", {}, 8, 8),
        ("torchrun --nproc-per-node 4 --nnodes 2 train.py --nproc_per_node 99", {}, 8, 8),
        ("/venv/bin/torchrun --standalone --nproc_per_node=gpu train.py", {}, 6, 6),
        ("torchrun --standalone --nnodes=1 --nproc_per_node=$N train.py", {"N": "3"}, 8, 3),
        ("N=5 torchrun --nproc_per_node=${N} train.py", {"N": "3"}, 8, 5),
        ("torchrun --nproc_per_node=${N:-7} train.py", {}, 8, 7),
        ("torchrun --nnodes=1:4 --nproc_per_node=8 train.py", {}, 8, None),
        ("torchrun train.py", {}, 8, 1),
        ("python -m torch.distributed.run --nproc_per_node 2 train.py", {}, None, 2),
        ("cd x && OMP_NUM_THREADS=1 torchrun --nproc_per_node 2 a.py && echo --nproc_per_node 9", {}, None, 2),
        ("accelerate launch --multi_gpu --num_processes 4 train.py --num_processes 1", {}, 8, 4),
        ("accelerate launch --config_file c.yaml train.py", {"WORLD_SIZE": "3"}, 8, None),
        ("deepspeed --num_gpus 4 train.py", {}, 8, 4),
        ("deepspeed train.py", {}, 8, 8),
        ("python train.py", {"WORLD_SIZE": "16", "NGPU": "2"}, 8, 16),
        ("python train.py", {"NGPU": "8"}, 8, 8),
        ("NGPU=4 python train.py", {"NGPU": "8"}, 8, 4),
        ("python train.py", {"SLURM_NTASKS": "2"}, 8, 2),
        ("python train.py", {"WORLD_SIZE": "many"}, 8, None),
        ("python train.py", {}, 8, None),
        ("echo 'never closed", {}, None, None),
        ("", {}, None, None),
    ],
)  # fmt: skip
def test_the_processes_of_a_command(command: str, env: dict[str, str], gpus: int | None, world: int | None) -> None:
    assert world_of((command,), shell=True, env=env, gpus=gpus) == world
    if not set("&$'") & set(command) and command:
        words = tuple(shlex.split(command))
        assert world_of(words, shell=False, env=env, gpus=gpus) == world


FOUR, EIGHT = Shape(4, 4, ("A",)), Shape(8, 8, ("A",))


@pytest.mark.parametrize(
    ("was", "now", "ranks", "refused"),
    [
        (EIGHT, FOUR, 8, "written by 8 process(es), this command starts 4"),
        (EIGHT, EIGHT, 8, ""),
        (None, FOUR, 8, "written by 8"),  # the checkpoint itself says so
        (EIGHT, FOUR, None, "written by 8"),  # it does not: then the attempt before
        (None, FOUR, None, ""),
        (EIGHT, Shape(8, 4), 8, "on 8 GPU(s), this machine has 4"),  # eight processes would crowd on four
        (Shape(2, 8), Shape(2, 4), 2, ""),  # two processes still have a GPU each
        (Shape(2, 2), Shape(2, 8), 2, ""),
        (Shape(None, 8), Shape(None, 4), 1, "on 8 GPU(s), this machine has 4"),  # who knows what it does with them
        (Shape(None, 1), Shape(None, 0), 1, "this machine has 0"),
        (Shape(None, 8), Shape(None, None), 1, ""),
        (Shape(2, 0), Shape(2, 0), 2, ""),
        (Shape(None, 4, ("A",)), Shape(None, 4, ("B",)), 1, ""),
    ],
)
def test_fits(was: Shape | None, now: Shape, ranks: int | None, refused: str) -> None:
    found = fit(was, now, checkpoint=True, ranks=ranks)
    assert bool(found.refused) == bool(refused)
    assert refused in found.refused
    assert fit(was, now, checkpoint=False, ranks=None).refused == ""


def test_changes_are_named() -> None:
    found = fit(Shape(8, 8, ("H100",)), Shape(4, 4, ("A100",)), checkpoint=False, ranks=None)
    assert found.changes == ("processes: was 8, is 4", "GPUs: was 8, is 4", "GPU: was H100, is A100")
    assert fit(EIGHT, EIGHT, checkpoint=True, ranks=8).changes == ()
