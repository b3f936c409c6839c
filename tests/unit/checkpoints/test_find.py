"""Names: which directories are checkpoints, which only look so, which one is the newest, which are in the way."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from spotwarp.execution.checkpoints import (
    Checkpoint,
    CheckpointClass,
    find,
    in_the_way,
    judge,
    newest,
    seen,
    step_of,
    survey,
    walk,
)
from spotwarp.testing.checkpoints import huggingface_files, safetensors_file, write_files

RESUMABLE, WEIGHTS_ONLY, TORN = CheckpointClass.RESUMABLE, CheckpointClass.WEIGHTS_ONLY, CheckpointClass.TORN


def checkpoint(path: bytes, cls: CheckpointClass = RESUMABLE) -> Checkpoint:
    return Checkpoint(path, cls, step_of(path), "huggingface", "" if cls is RESUMABLE else "why", files=1, bytes=1)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        (b"checkpoint-0", 0),
        (b"checkpoint-9", 9),
        (b"out/run/checkpoint-1000", 1000),
        (b"checkpoint-007", 7),
        (b"checkpoint-" + b"9" * 18, 10**18 - 1),
        (b"checkpoint-" + b"9" * 19, None),
        (b"checkpoint-", None),
        (b"checkpoint-best", None),
        (b"checkpoint-1000-tmp", None),
        (b"tmp-checkpoint-1100", None),
        (b"checkpoint-5.torn-3", None),
        (b"checkpoint-5\n", None),
        (b"checkpoint--5", None),
        (b"Checkpoint-5", None),
        ("checkpoint-\u0665".encode(), None),
        (b"checkpoint-5/optimizer_0", None),
    ],
)
def test_the_grammar_of_a_name(name: bytes, step: int | None) -> None:
    assert step_of(name) == step


def test_entries_in_any_order_are_sorted_into_checkpoints_models_and_decoys() -> None:
    entries = [
        (b"out/checkpoint-20/checkpoint-3", True),
        (b"out/checkpoint-20", True),
        (b"out/checkpoint-20/config.json", False),
        (b"out/checkpoint-20/model.safetensors", False),
        (b"out/checkpoint-9", True),
        (b"out/checkpoint-7", False),
        (b"out/checkpoint-9.torn-4", True),
        (b"out/tmp-checkpoint-30", True),
        (b"base/model-00001-of-00002.safetensors", False),
        (b"base/config.json", False),
        (b"lora/adapter_config.json", False),
        (b"web/config.json", False),
        (b"vectors/a.safetensors", False),
        (b".spotwarp/set-aside/checkpoint-5", True),
        (b".spotwarp/staging/config.json", False),
        (b".spotwarp/staging/model.safetensors", False),
        (b"config.json", False),
        (b"model.safetensors", False),
    ]
    found = survey(entries)
    assert found.checkpoints == (b"out/checkpoint-20", b"out/checkpoint-9")
    assert found.models == (b"", b"base", b"lora")
    assert found.decoys == (b"out/checkpoint-7", b"out/checkpoint-9.torn-4", b"out/tmp-checkpoint-30")
    assert find(reversed(entries)) == [b"out/checkpoint-20", b"out/checkpoint-9"]


def test_walking_a_workspace_follows_no_link_and_enters_nothing_of_spotwarps(tmp_path: Path) -> None:
    outside = write_files(tmp_path / "outside" / "checkpoint-99", {"a": b""}).parent
    workspace = tmp_path / "ws"
    write_files(workspace / "out" / "checkpoint-1", {"a": b""})
    write_files(workspace / ".spotwarp" / "set-aside" / "checkpoint-2", {"a": b""})
    (workspace / "elsewhere").symlink_to(outside)
    (workspace / "out" / "checkpoint-3").symlink_to(outside / "checkpoint-99")
    os.mkdir(os.fsencode(workspace) + b"/\xff")  # noqa: PTH102 - not text
    entries = dict(walk(workspace))
    assert entries[b"\xff"]
    assert not entries[b"elsewhere"]
    assert not any(path.startswith((b"elsewhere/", b".spotwarp/")) for path in entries)
    assert survey(walk(workspace)).checkpoints == (b"out/checkpoint-1",)
    assert survey(walk(workspace)).decoys == (b"out/checkpoint-3",)


def test_walking_a_workspace_that_is_not_there_finds_nothing(tmp_path: Path) -> None:
    assert list(walk(tmp_path / "absent")) == []


def test_the_newest_is_the_highest_number_among_the_resumable() -> None:
    found = [checkpoint(b"checkpoint-9"), checkpoint(b"checkpoint-1000"), checkpoint(b"checkpoint-100")]
    torn, weights = checkpoint(b"checkpoint-2000", TORN), checkpoint(b"checkpoint-3000", WEIGHTS_ONLY)
    chosen = newest([*found, torn, weights])
    assert chosen is not None
    assert chosen.path == b"checkpoint-1000"
    assert newest([torn, weights]) is None
    assert newest([]) is None


def test_of_two_with_the_same_step_the_choice_does_not_depend_on_their_order() -> None:
    pair = [checkpoint(b"a/checkpoint-5"), checkpoint(b"b/checkpoint-5")]
    assert newest(pair) == newest(reversed(pair)) == pair[1]


def test_in_the_way_is_what_a_trainer_would_wrongly_take() -> None:
    found = [
        checkpoint(b"a/checkpoint-10"),
        checkpoint(b"a/checkpoint-30", TORN),
        checkpoint(b"a/checkpoint-5", TORN),
        checkpoint(b"a/checkpoint-20", WEIGHTS_ONLY),
        checkpoint(b"a/checkpoint-7", WEIGHTS_ONLY),
        checkpoint(b"b/checkpoint-40", WEIGHTS_ONLY),
        checkpoint(b"base", TORN),
        checkpoint(b"final", WEIGHTS_ONLY),
    ]
    assert [c.path for c in in_the_way(found)] == [b"a/checkpoint-20", b"a/checkpoint-30", b"a/checkpoint-5"]


def test_a_directory_without_a_step_is_a_model_and_judged_by_its_own_files_only(tmp_path: Path) -> None:
    write_files(tmp_path / "out", {"config.json": b"{}", "model.safetensors": safetensors_file({"w": b"1234"})})
    write_files(tmp_path / "out" / "checkpoint-5", {"model.safetensors": b"torn"})
    model = judge(tmp_path, b"out")
    assert (model.cls, model.step, model.files) == (WEIGHTS_ONLY, None, 2)
    write_files(tmp_path / "out", {"model.safetensors": b"torn"})
    assert judge(tmp_path, b"out").cls is TORN
    assert judge(tmp_path, b"").cls is TORN


def test_a_signature_changes_with_everything_that_changes_a_file(tmp_path: Path) -> None:
    directory = write_files(tmp_path / "checkpoint-5", huggingface_files(5) | {"sub/a": b"1"})
    signatures = [seen(tmp_path, b"checkpoint-5")]
    assert signatures[0] == seen(tmp_path, b"checkpoint-5")
    names = {name for name, *_ in signatures[0]}
    assert names == {os.fsencode(name) for name in huggingface_files(5)} | {b"sub/a"}

    (directory / "optimizer.pt").write_bytes(b"")
    signatures.append(seen(tmp_path, b"checkpoint-5"))
    os.utime(directory / "sub" / "a", ns=(0, 0))
    signatures.append(seen(tmp_path, b"checkpoint-5"))
    (directory / "new").write_bytes(b"1")
    signatures.append(seen(tmp_path, b"checkpoint-5"))
    os.utime(directory / "new", ns=(5, 5))
    (directory / "other").write_bytes(b"2")
    os.utime(directory / "other", ns=(5, 5))
    (directory / "other").rename(directory / "new")  # same size, same mtime: another inode
    signatures.append(seen(tmp_path, b"checkpoint-5"))
    (directory / "new").unlink()
    signatures.append(seen(tmp_path, b"checkpoint-5"))
    assert all(one != other for one, other in pairwise(signatures))


def test_the_signature_of_nothing_is_empty(tmp_path: Path) -> None:
    assert seen(tmp_path, b"checkpoint-5") == ()
