"""A training that is killed again and again, each time resumed in an empty directory by the same two commands, ends
with the same bits as one that was left alone: the weights, and every loss that was ever logged.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwarp.testing.pytest_seaweed import BUCKET
from spotwarp.testing.seaweed import Seaweed, seaweed
from spotwarp.testing.truth import IN_RESTORE, IN_SAVE, IN_STEP, Kill, Truth

RESUME = ("--resume-args", "--resume-from {checkpoint}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with seaweed(tmp_path_factory.mktemp("s3"), buckets=(BUCKET,)) as running:
        yield running


@pytest.mark.slow
def test_a_llama_that_is_killed_three_times_ends_with_the_same_bits(tmp_path: Path, server: Seaweed) -> None:
    chance = random.Random(3)
    kills = [
        Kill(IN_SAVE, chance.randrange(10, 14)),
        Kill(IN_STEP, chance.randrange(11, 14)),
        Kill(IN_SAVE, chance.randrange(5, 9)),
    ]
    command = [sys.executable, "-m", "spotwarp.testing.training", "--steps", "30", "--save-every", "5"]
    slowly = ["--save-time", "0.7", "--step-time", "0.2"]
    Truth(tmp_path, server.env(), f"s3://{BUCKET}/llama", [*command, *slowly], *RESUME).holds(kills, 30)


@pytest.mark.slow
def test_a_numpy_training_that_is_killed_five_times_ends_with_the_same_bits(tmp_path: Path, server: Seaweed) -> None:
    chance = random.Random(5)
    kills = [Kill(chance.choice([IN_SAVE, IN_STEP]), chance.randrange(12, 26)) for _ in range(5)]
    assert {kill.moment for kill in kills} == {IN_SAVE, IN_STEP}
    command = [sys.executable, "-m", "spotwarp.demo.trainer", "--out", "out", "--steps", "120", "--save-every", "10"]
    Truth(tmp_path, server.env(), f"s3://{BUCKET}/numpy", command).holds(kills, 120)


@pytest.mark.deep
@pytest.mark.parametrize("seed", [1, 2])
def test_two_ranks_that_are_killed_end_with_the_same_bits(tmp_path: Path, server: Seaweed, seed: int) -> None:
    """Idle between two steps, in a save, in the restore, and twice in a row."""
    chance = random.Random(seed)
    kills = [
        Kill(IN_STEP, chance.randrange(7, 10)),
        Kill(IN_RESTORE),
        Kill(IN_SAVE, chance.randrange(6, 9)),
        Kill(IN_STEP, chance.randrange(9, 11)),  # late enough for a checkpoint to have been stored, on any machine
    ]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", "spotwarp.testing.training", "--steps", "24", "--save-every", "4"]
    slowly = ["--save-time", "0.7", "--step-time", "0.4"]
    truth = Truth(tmp_path, server.env(), f"s3://{BUCKET}/ranks-{seed}", [*command, *slowly], *RESUME)
    truth.holds(kills, 24, bulk=48 << 20)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real language model on this disk."""
    from spotwarp.testing.finetune import prepare

    directory = tmp_path_factory.mktemp("model") / "smollm2"
    prepare(directory)
    return directory


@pytest.mark.deep
def test_a_language_model_fine_tuned_over_killed_machines_ends_with_the_same_bits(
    tmp_path: Path, server: Seaweed, smollm2: Path
) -> None:
    chance = random.Random(7)
    kills = [
        Kill(IN_SAVE, chance.randrange(7, 9)),
        Kill(IN_RESTORE),
        Kill(IN_STEP, chance.randrange(8, 12)),
        Kill(IN_STEP, chance.randrange(3, 6)),
    ]
    command = [sys.executable, "-m", "spotwarp.testing.finetune", "--model", str(smollm2), "--steps", "24"]
    slowly = ["--save-every", "4", "--save-time", "0.7"]
    truth = Truth(
        tmp_path, server.env(), f"s3://{BUCKET}/smollm2", [*command, *slowly], *RESUME,
        weights="adapter_model.safetensors",
    )  # fmt: skip
    truth.holds(kills, 24, bulk=48 << 20)
