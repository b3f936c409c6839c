"""Which files are the same file in earlier saves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwarp.persistence.backup.saves import KEY_SAVES, Saves, keys
from spotwarp.persistence.content import SMALL
from spotwarp.persistence.manifest import DIRECTORY, FILE, NO_BASE, Blob, CheckpointFact, Entry, Extent, Manifest


def snapshot(paths: list[str], *, facts: dict[str, int] | None = None, size: int = SMALL) -> Manifest:
    """A snapshot with files of these paths, each a second younger than the one before it in the list."""
    entries = [Entry(path.encode(), FILE, 0o644, second * 10**9, size) for second, path in enumerate(paths, start=1)]
    entries.sort(key=lambda entry: entry.path)
    checkpoints = tuple(CheckpointFact(p.encode(), "resumable", step) for p, step in (facts or {}).items())
    return Manifest(0, "main", 1, (), (), entries, checkpoints)


def earlier_of(path: str, before: list[str], *, facts: dict[str, int] | None = None) -> list[str]:
    return [found.path.decode() for found in Saves(snapshot(before, facts=facts)).earlier(path.encode())]


@pytest.mark.parametrize(
    ("path", "earlier"),
    [
        ("checkpoint-200/optimizer.pt", "checkpoint-100/optimizer.pt"),
        ("out/checkpoint-1000/model-00001-of-00002.safetensors", "out/checkpoint-500/model-00001-of-00002.safetensors"),
        (
            "checkpoint-20/global_step20/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
            "checkpoint-10/global_step10/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
        ),
        ("ds/global_step200/mp_rank_00_model_states.pt", "ds/global_step100/mp_rank_00_model_states.pt"),
        ("step_200/__3_0.distcp", "step_100/__3_0.distcp"),
        ("checkpoint/step-20/__0_0.distcp", "checkpoint/step-10/__0_0.distcp"),
        ("iter_0000200/mp_rank_00_001/model_optim_rng.pt", "iter_0000100/mp_rank_00_001/model_optim_rng.pt"),
        ("checkpoints/20/model/rank_0.bin", "checkpoints/10/model/rank_0.bin"),
        ("checkpoint_3/pytorch_model.bin", "checkpoint_2/pytorch_model.bin"),
        ("epoch_3/step_30/model.bin", "epoch_2/step_20/model.bin"),
        ("model-step=200.ckpt", "model-step=100.ckpt"),
        ("v0/checkpoints/epoch=3-step=30-val_loss=0.25.ckpt", "v0/checkpoints/epoch=2-step=20-val_loss=-1.5.ckpt"),
        (
            "gpt--val_loss=2.50-step=200-consumed_samples=80.0/model_weights/__0_0.distcp",
            "gpt--val_loss=2.75-step=100-consumed_samples=40.0/model_weights/__0_0.distcp",
        ),
        ("ep0-ba200-rank3.pt", "ep0-ba100-rank3.pt"),
        ("out/model_200.pt", "out/model_100.pt"),
        ("200.safetensors", "100.safetensors"),
        ("checkpoint_0200.pth.tar", "checkpoint_0100.pth.tar"),
        ("GlobalStep200.bin", "GlobalStep100.bin"),
    ],
)
def test_the_same_file_of_another_save(path: str, earlier: str) -> None:
    assert earlier_of(path, [earlier]) == [earlier]
    assert earlier_of(earlier, [path]) == [path]


@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("checkpoint-200/rng_state_0.pth", "checkpoint-100/rng_state_1.pth"),
        ("checkpoint-200/optimizer.pt", "other/checkpoint-100/optimizer.pt"),
        ("run-1/checkpoint-200/optimizer.pt", "run-2/checkpoint-100/optimizer.pt"),
        ("lr=0.1/checkpoint-200/optimizer.pt", "lr=0.2/checkpoint-200/optimizer.pt"),
        ("checkpoint-200/model.safetensors", "checkpoint-100/adapter.safetensors"),
        ("checkpoint-200/model.safetensors", "checkpoint-100.torn-57/model.safetensors"),
        (
            "global_step200/zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "global_step100/zero_pp_rank_1_mp_rank_00_optim_states.pt",
        ),
        ("step_200/__3_0.distcp", "step_100/__0_0.distcp"),
        ("ep0-ba200-rank3.pt", "ep0-ba100-rank2.pt"),
        ("out-step=200-rank=3.pt", "out-step=100-rank=2.pt"),
        ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
        ("model_rank_1.pt", "model_rank_0.pt"),
        ("resnet50.pth", "resnet18.pth"),
        ("data/tokens_2.bin", "data/tokens_1.bin"),
        ("logs/2/events.bin", "logs/1/events.bin"),
        ("model.safetensors", "model.safetensors"),
        ("checkpoint-200/optimizer.pt", "checkpoint-200/optimizer.pt"),
    ],
)
def test_other_files(path: str, other: str) -> None:
    assert earlier_of(path, [other]) == []


def test_a_directory_that_only_the_snapshot_knows_for_a_checkpoint() -> None:
    before = ["out/dcp000100/__0_0.distcp", "out/dcp000100/__1_0.distcp"]
    assert earlier_of("out/dcp000200/__1_0.distcp", before, facts={"out/dcp000100": 100}) == before[1:]
    assert earlier_of("out/dcp000200/__1_0.distcp", before) == []


def test_the_newest_is_that_of_the_highest_step() -> None:
    paths = [f"checkpoint-{step}/optimizer.pt" for step in (300, 1000, 200)]
    facts = {f"checkpoint-{step}": step for step in (200, 300, 1000)}
    assert earlier_of("checkpoint-1100/optimizer.pt", paths, facts=facts) == [paths[1], paths[0], paths[2]]
    assert earlier_of("checkpoint-1000/optimizer.pt", paths, facts=facts) == [paths[0], paths[2]]


def test_where_no_step_is_known_the_newest_is_the_youngest() -> None:
    paths = [f"model-step={step}.ckpt" for step in (300, 1000, 200)]
    assert earlier_of("model-step=400.ckpt", paths) == paths[::-1]


def test_a_save_without_the_file_is_passed_over() -> None:
    paths = ["checkpoint-100/optimizer.pt", "checkpoint-100/model.pt", "checkpoint-200/model.pt"]
    assert earlier_of("checkpoint-300/optimizer.pt", paths) == ["checkpoint-100/optimizer.pt"]


def test_small_files_links_and_directories_are_none() -> None:
    assert Saves(snapshot(["checkpoint-1/a.pt"], size=SMALL - 1)).earlier(b"checkpoint-2/a.pt") == []
    directory = Manifest(0, "main", 1, (), (), [Entry(b"checkpoint-1/a.pt", DIRECTORY, 0o755, 0, SMALL)])
    assert Saves(directory).earlier(b"checkpoint-2/a.pt") == []
    assert Saves(None).earlier(b"checkpoint-2/a.pt") == []


def test_many_saves_of_one_kind_are_not_all_remembered() -> None:
    paths = [f"frames/step_{number:06}.bin" for number in range(2000)]
    found = earlier_of("frames/step_900000.bin", paths)
    assert 6 <= len(found) <= 12
    assert found == paths[: -len(found) - 1 : -1]


def save(name: str, *blobs: int) -> Entry:
    extents = tuple(Extent(n * SMALL, SMALL, blob, 0) for n, blob in enumerate(blobs))
    return Entry(name.encode(), FILE, 0o644, 0, SMALL * len(blobs), extents)


def blob(base: int = NO_BASE) -> Blob:
    return Blob(0, 0, 1, 0 if base == NO_BASE else 3, SMALL, b"d" * 16, base)


def test_a_save_that_serves_enough_others_serves_no_more() -> None:
    blobs = [blob(), blob(), *[one for _ in range(KEY_SAVES) for one in (blob(0), blob())]]
    key, *later = [save(f"step_{n}", 2 * n, 2 * n + 1) for n in range(KEY_SAVES + 1)]
    assert keys([*later[:-1][::-1], key], blobs) == [*later[:-1][::-1], key]
    assert keys([*later[::-1], key], blobs) == later[::-1]


def test_what_stands_by_itself_or_shares_a_piece_serves_nobody() -> None:
    saves = [save(f"step_{n}", n, 9) for n in range(8)]
    assert keys(saves, [blob() for _ in range(10)]) == saves


PARTS = st.sampled_from(
    [b"checkpoint-1", b"step_2", b"3", b"ckpts", b"\xff\xfe", b"a-step=1-loss=.5.pt", b"x_9.pt", b"rank_0"]
)
PATHS = st.lists(
    PARTS | st.binary(min_size=1, max_size=9).filter(lambda b: not {0, 47} & {*b}), min_size=1, max_size=5
).map(b"/".join)


@given(st.lists(PATHS, max_size=8, unique=True), PATHS)
def test_any_name_has_others_of_the_snapshot_or_none(before: list[bytes], path: bytes) -> None:
    entries = [Entry(name, FILE, 0o644, 0, SMALL) for name in sorted(before)]
    for found in Saves(Manifest(0, "main", 1, (), (), entries)).earlier(path):
        assert found.path != path
        assert found in entries
