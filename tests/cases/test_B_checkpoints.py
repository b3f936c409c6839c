"""Group B of the case book, as far as judging goes: what is resumable, what is torn, which one is chosen."""

from __future__ import annotations

import errno
import os
import re
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
    survey,
    walk,
)
from spotwarp.execution.restoring.pointers import mend_pointers
from spotwarp.testing.checkpoints import deepspeed_files, huggingface_files, safetensors_file, torch_file, write_files

RESUMABLE, WEIGHTS_ONLY, TORN = CheckpointClass.RESUMABLE, CheckpointClass.WEIGHTS_ONLY, CheckpointClass.TORN


def judged(root: Path) -> dict[bytes, Checkpoint]:
    return {path: judge(root, path) for path in find(walk(root))}


def chosen(root: Path) -> bytes | None:
    best = newest(judged(root).values())
    return best.path if best else None


def naive_choice(root: Path) -> str:
    """What a trainer takes: the highest number, whole or not."""
    steps = [int(m[1]) for entry in os.scandir(root) if (m := re.fullmatch(r"checkpoint-(\d+)", entry.name))]
    return f"checkpoint-{max(steps)}"


@pytest.mark.parametrize("adapter", [False, True], ids=["full", "adapter"])
def test_B01_a_save_killed_at_any_byte_is_never_the_one_to_resume_from(tmp_path: Path, adapter: bool) -> None:
    write_files(tmp_path / "checkpoint-10", huggingface_files(10, adapter=adapter, size=64))
    last = huggingface_files(20, adapter=adapter, size=64)
    for count, (name, content) in enumerate(last.items()):
        for length in {0, 1, len(content) // 3, len(content) - 1, len(content)}:
            whole = count == len(last) - 1 and length == len(content)
            write_files(tmp_path / "checkpoint-20", {name: content[:length]})
            assert chosen(tmp_path) == (b"checkpoint-20" if whole else b"checkpoint-10"), (name, length)

            aside = in_the_way(judged(tmp_path).values())
            assert [c.path for c in aside] == ([] if whole else [b"checkpoint-20"]), (name, length)
            for one in aside:
                assert one.reason
                (tmp_path / os.fsdecode(one.path)).rename(tmp_path / "checkpoint-20.torn-1")
                assert naive_choice(tmp_path) == "checkpoint-10"
                (tmp_path / "checkpoint-20.torn-1").rename(tmp_path / "checkpoint-20")
        write_files(tmp_path / "checkpoint-20", {name: content})
    assert naive_choice(tmp_path) == "checkpoint-20"


def test_B01_a_save_that_says_it_is_in_progress_is_believed(tmp_path: Path) -> None:
    write_files(tmp_path / "checkpoint-10", huggingface_files(10))
    write_files(tmp_path / "checkpoint-17", huggingface_files(17) | {"checkpoint-is-incomplete.txt": b"started"})
    assert chosen(tmp_path) == b"checkpoint-10"


def test_B02_the_highest_number_is_chosen_and_decoys_are_listed(tmp_path: Path) -> None:
    for step in (9, 10, 100, 1000):
        write_files(tmp_path / f"checkpoint-{step}", huggingface_files(step))
    os.utime(
        tmp_path / "checkpoint-9" / "trainer_state.json", (2**31, 2**31)
    )  # the newest by time, which counts nothing
    for decoy in ("checkpoint-1000-tmp", "checkpoint-best", "tmp-checkpoint-1100"):
        write_files(tmp_path / decoy, huggingface_files(1100))
    (tmp_path / "checkpoint-1200").write_bytes(b"a file")
    (tmp_path / "checkpoint-1300").mkdir()

    assert chosen(tmp_path) == b"checkpoint-1000"
    assert survey(walk(tmp_path)).decoys == (
        b"checkpoint-1000-tmp",
        b"checkpoint-1200",
        b"checkpoint-best",
        b"tmp-checkpoint-1100",
    )
    assert [(c.path, c.reason) for c in in_the_way(judged(tmp_path).values())] == [
        (b"checkpoint-1300", "the directory is empty")
    ]


def test_B04_a_staging_directory_is_nothing_until_it_has_its_name(tmp_path: Path) -> None:
    write_files(tmp_path / "checkpoint-40", huggingface_files(40))
    staging = write_files(tmp_path / "tmp-checkpoint-50", huggingface_files(50))
    assert chosen(tmp_path) == b"checkpoint-40"
    before = seen(tmp_path, b"tmp-checkpoint-50")
    staging.rename(tmp_path / "checkpoint-50")
    assert chosen(tmp_path) == b"checkpoint-50"
    assert seen(tmp_path, b"checkpoint-50") == before  # a rename changes no file: nothing has to be read again
    assert seen(tmp_path, b"tmp-checkpoint-50") == ()


@pytest.mark.parametrize("damage", ["five bytes short", "zeros at the end"])
def test_B10_a_truncated_torch_archive_is_rejected_and_the_older_checkpoint_used(tmp_path: Path, damage: str) -> None:
    write_files(tmp_path / "checkpoint-10", huggingface_files(10))
    optimizer = write_files(tmp_path / "checkpoint-20", huggingface_files(20, size=100_000)) / "optimizer.pt"
    assert chosen(tmp_path) == b"checkpoint-20"
    content = optimizer.read_bytes()
    optimizer.write_bytes(content[:-5] if damage == "five bytes short" else content[:-4096] + bytes(4096))

    assert chosen(tmp_path) == b"checkpoint-10"
    assert judge(tmp_path, b"checkpoint-20").reason == "optimizer.pt is cut short: it has no end record"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("one byte short", "model-00002-of-00002.safetensors is cut short: "),
        ("absent", "model-00002-of-00002.safetensors is missing"),
        ("header only", "model-00002-of-00002.safetensors is cut short inside its header"),
    ],
)
def test_B11_a_truncated_or_missing_shard_is_rejected(tmp_path: Path, damage: str, reason: str) -> None:
    shard = (
        write_files(tmp_path / "checkpoint-20", huggingface_files(20, shards=2)) / "model-00002-of-00002.safetensors"
    )
    assert chosen(tmp_path) == b"checkpoint-20"
    content = shard.read_bytes()
    if damage == "absent":
        shard.unlink()
    else:
        shard.write_bytes(content[:8] if damage == "header only" else content[:-1])

    found = judge(tmp_path, b"checkpoint-20")
    assert found.cls is TORN
    assert found.reason.startswith(reason)
    assert chosen(tmp_path) is None


def test_B13_a_save_without_optimizer_is_labelled_and_a_full_one_preferred(tmp_path: Path) -> None:
    adapter = {n: c for n, c in huggingface_files(10, adapter=True).items() if n.startswith("adapter_")}
    model = {n: c for n, c in huggingface_files(20).items() if n in ("config.json", "model.safetensors")}
    write_files(tmp_path / "lora" / "checkpoint-10", adapter | {"README.md": b"# adapter"})
    write_files(tmp_path / "full" / "checkpoint-20", model)
    found = judged(tmp_path)
    assert {c.cls for c in found.values()} == {WEIGHTS_ONLY}
    assert {c.reason for c in found.values()} == {"weights only: nothing to resume the optimizer from"}
    assert in_the_way(found.values()) == []
    assert chosen(tmp_path) is None

    write_files(tmp_path / "lora" / "checkpoint-5", huggingface_files(5, adapter=True))
    assert chosen(tmp_path) == b"lora/checkpoint-5"


def test_B14_the_step_inside_may_differ_from_the_number_in_the_name(tmp_path: Path) -> None:
    own = {"optimizer.pt", "scheduler.pt"}
    files = {n: c for n, c in huggingface_files(800, ranks=2).items() if n not in own} | deepspeed_files(799)
    before = seen(write_files(tmp_path / "checkpoint-800", files).parent, b"checkpoint-800")
    found = judge(tmp_path, b"checkpoint-800")
    assert (found.cls, found.step, found.world_size, found.reason) == (RESUMABLE, 800, 2, "")
    assert in_the_way([found]) == []
    assert mend_pointers(tmp_path, 1, print) == []
    assert seen(tmp_path, b"checkpoint-800") == before


def test_B14_deepspeeds_pointer_to_a_tag_that_is_not_there_is_torn(tmp_path: Path) -> None:
    files = huggingface_files(800) | {
        "latest": b"global_step800",
        "global_step799/mp_rank_00_model_states.pt": torch_file(b"model"),
        "extra.safetensors": safetensors_file({"w": b"1"}),
    }
    write_files(tmp_path / "checkpoint-800", files)
    assert judge(tmp_path, b"checkpoint-800").reason == "latest names global_step800, which is not there"


def deepspeed(root: Path, latest: str, *steps: int) -> Path:
    """DeepSpeed's own layout: complete tags side by side, and `latest`."""
    for step in steps:
        write_files(root / "out", deepspeed_files(step))
    write_files(root / "out", {"latest": latest.encode()})
    return root / "out"


def test_B07_a_pointer_is_mended_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    out = deepspeed(tmp_path, "global_step200\n", 50, 100)
    monkeypatch.setattr("os.link", refused)
    assert mend_pointers(tmp_path, 7, lambda _: None) == ["out/latest"]
    assert (out / "latest").read_text() == "global_step100"
    assert (out / "latest.dangling-7").read_text() == "global_step200\n"


@pytest.mark.parametrize("there", [False, True], ids=["a missing", "b empty"])
def test_B07_a_dangling_pointer_is_told_and_given_the_newest_whole_tag(tmp_path: Path, there: bool) -> None:
    out = deepspeed(tmp_path, "global_step200\n", 50, 100)
    if there:
        (out / "global_step200").mkdir()
    assert chosen(tmp_path) == b"out/global_step100"
    said: list[str] = []
    assert mend_pointers(tmp_path, 7, said.append) == ["out/latest"]
    assert (out / "latest").read_text() == "global_step100"
    assert (out / "latest.dangling-7").read_text() == "global_step200\n"
    assert "names global_step200, which is missing or not whole: it now names global_step100" in said[0]
    assert mend_pointers(tmp_path, 7, said.append) == []  # mended is mended
    assert len(said) == 1


def test_B07c_a_pointer_to_a_whole_tag_is_left_alone(tmp_path: Path) -> None:
    out = deepspeed(tmp_path, "global_step100", 100, 200)
    said: list[str] = []
    assert mend_pointers(tmp_path, 7, said.append) == []
    assert (out / "latest").read_text() == "global_step100"
    assert "out/global_step200 is whole and newer" in said[0]


def test_B07_without_any_whole_tag_it_is_said_that_the_trainer_would_start_anew(tmp_path: Path) -> None:
    out = deepspeed(tmp_path, "global_step200")
    said: list[str] = []
    assert mend_pointers(tmp_path, 7, said.append) == []
    assert (out / "latest").read_text() == "global_step200"
    assert "start anew" in said[0]


def test_B07_other_peoples_files_of_that_name_are_left_alone(tmp_path: Path) -> None:
    write_files(tmp_path, {"logs/latest": b"run-7", "a/latest": b"epoch3", "a/epoch3/mp_rank_00_model_states.pt": b""})
    write_files(tmp_path / "a", {"global_step5/x_model_states.pt": b""})
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "latest").symlink_to("../logs/latest")
    said: list[str] = []
    assert mend_pointers(tmp_path, 1, said.append) == []
    assert said == []


def test_B07_a_tag_lacking_any_file_is_torn_and_set_aside(tmp_path: Path) -> None:
    out = deepspeed(tmp_path, "global_step100", 100)
    files = {name: data for name, data in deepspeed_files(200, ranks=3, slices=2).items() if name.startswith("global")}
    for missing in files:
        for cut in (None, 0, len(files[missing]) // 2, len(files[missing]) - 1):
            write_files(out, files)
            (out / missing).unlink()
            if cut is not None:
                (out / missing).write_bytes(files[missing][:cut])
            found = judged(tmp_path)
            assert found[b"out/global_step200"].cls is TORN, (missing, cut)
            assert found[b"out/global_step200"].reason
            assert [c.path for c in in_the_way(found.values())] == [b"out/global_step200"]
    write_files(out, files)
    assert chosen(tmp_path) == b"out/global_step200"
    assert judged(tmp_path)[b"out/global_step200"].framework == "deepspeed"


def test_a_step_that_differs_from_the_directory_is_no_checkpoint_to_resume_from(tmp_path: Path) -> None:
    write_files(tmp_path / "checkpoint-20", huggingface_files(19))
    assert judge(tmp_path, b"checkpoint-20").reason == "trainer_state.json is of step 19, not 20"
