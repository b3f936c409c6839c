"""B01 and B12: machines that die inside a save, at twenty places of it; the next one resumes and no bit differs."""

from __future__ import annotations

import random
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.execution.checkpoints import CheckpointClass, judge
from spotwarp.testing.checkpoints import deepspeed_files, huggingface_files, write_files
from spotwarp.testing.product import Machine, Program
from spotwarp.testing.pytest_product import bucket, rent, ws
from spotwarp.testing.slow_trainer import chain, last, version

__all__ = ["bucket", "rent", "ws"]

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow  # a whole program, several times

STEPS, EVERY, SIZE = 30, 10, 20_000
SAVES = range(EVERY, STEPS + 1, EVERY)
TWENTY = [pytest.param(seed, marks=pytest.mark.deep if seed else []) for seed in range(20)]


def train(machine: Machine, *more: str, save_time: float = 2.0) -> Program:
    words = ["--steps", str(STEPS), "--save-every", str(EVERY), "--size", str(SIZE), "--save-time", str(save_time)]
    return machine.start("run", "--", sys.executable, "-m", "spotwarp.testing.slow_trainer", *words, *more)


def freeze(machine: Machine) -> None:
    """Stop the trainer where it is, so that a snapshot of this very moment can be taken."""
    found = [p for p in machine.processes() if p.cmdline()[1:3] == ["-m", "spotwarp.testing.slow_trainer"]]
    assert found
    for process in found:
        process.suspend()


def written(place: Path) -> int:
    return sum(p.stat().st_size for p in place.iterdir()) if place.is_dir() else 0


def size_of_a_save() -> int:
    return sum(len(data) for data in huggingface_files(20, size=SIZE).values())


def the_same_bits(machine: Machine, *, starts: str) -> bytes:
    done = machine("run", code=0, seconds=120)
    assert re.search(rb"start (%s)\n" % starts.encode(), done.out), done.out
    assert f"digest {chain(STEPS)}".encode() in done.out, done.out
    return done.out


@pytest.mark.parametrize("seed", TWENTY)
def test_B01_killed_anywhere_in_a_save_the_run_ends_with_the_same_bits(rent: Rent, seed: int) -> None:
    """Every second time the bucket has a snapshot of the very moment: half a checkpoint, known to be half of one."""
    offset = int(random.Random(seed).random() * size_of_a_save())
    first = rent("first").init()
    program = train(first)
    program.until(lambda: written(first.path / "out" / "checkpoint-20") >= offset, "the second save", 90)
    if seed % 2 == 0:
        freeze(first)
        first("sync")
    first.die()
    second = rent("second").init()
    second("restore")
    for found in (second.path / "out").glob("checkpoint-*[0-9]"):
        if ".torn-" in found.name:
            continue
        cls = judge(second.path, b"out/" + found.name.encode()).cls
        # Weights without an optimizer are what a user may want to restore; a run sets them aside as well.
        assert cls is not CheckpointClass.TORN, f"{found} is offered and is not whole"
        assert cls is CheckpointClass.RESUMABLE or written(found) < size_of_a_save()
    the_same_bits(second, starts="10|20" if seed % 2 == 0 else "0|10|20")


def killed_in_the_rewrite(first: Machine, seed: int, kind: str) -> None:
    """The machine dies while `last.ckpt` is written for the second time; its first version is in the bucket."""
    size = len(last("", SIZE, kind))
    offset = random.Random(seed).randrange(size * 15 // 16)  # the last piece leaves too little time
    program = train(first, "--inplace-last", "--kind", kind, save_time=3.0)
    path = first.path / "out" / "last.ckpt"
    program.until(lambda: b"saved 10" in program.out, "the first save", 90)
    first("sync")
    program.until(lambda: path.stat().st_size < size, "the rewrite", 90)
    program.until(lambda: path.stat().st_size >= offset, "the offset", 30)
    freeze(first)
    assert version(path.read_bytes(), SAVES, SIZE, kind) is None
    if seed % 4 < 2:
        first("sync")  # a snapshot of the torn file's moment
    first.die()


@pytest.mark.parametrize("seed", TWENTY)
def test_B12_killed_in_the_rewrite_of_the_only_copy_it_comes_back_whole(rent: Rent, seed: int) -> None:
    kind = ("safetensors", "torch")[seed % 2]
    first = rent("first").init()
    killed_in_the_rewrite(first, seed, kind)
    second = rent("second").init()
    second("restore")
    assert version((second.path / "out" / "last.ckpt").read_bytes(), SAVES, SIZE, kind) in (10, 20)
    out = the_same_bits(second, starts="10|20")
    assert re.search(rb"last (10|20)\n", out), out


@pytest.mark.parametrize("seed", [pytest.param(0), pytest.param(3, marks=pytest.mark.deep)])
def test_B12_on_the_same_disk_the_trainer_finds_the_version_before(rent: Rent, seed: int) -> None:
    kind = ("safetensors", "torch")[seed % 2]
    first = rent("first").init()
    killed_in_the_rewrite(first, seed, kind)
    torn = (first.path / "out" / "last.ckpt").read_bytes()
    out = the_same_bits(first, starts="20")
    assert b"last 10\n" in out
    [aside] = (first.path / "out").glob("last.ckpt.torn-*")
    assert aside.read_bytes() == torn
    assert version((first.path / "out" / "last.ckpt").read_bytes(), SAVES, SIZE, kind) == STEPS


def test_B12_ended_in_the_rewrite_the_last_snapshot_keeps_the_version_before(rent: Rent) -> None:
    first = rent("first").init()
    size = len(last("", SIZE, "safetensors"))
    program = train(first, "--inplace-last", save_time=3.0)
    path = first.path / "out" / "last.ckpt"
    program.until(lambda: b"saved 10" in program.out, "the first save", 90)
    first("sync")
    program.until(lambda: 0 < path.stat().st_size < size, "the rewrite", 90)
    program.send(signal.SIGTERM)
    done = program.end(75)
    assert re.search(r"out/last.ckpt: kept at the version of snapshot \d+: ", done.err), done.err
    second = rent("second").init()
    assert "kept at the version of snapshot" in second("status", code=None).out.decode()
    second("restore")
    assert version((second.path / "out" / "last.ckpt").read_bytes(), SAVES, SIZE, "safetensors") == 10
    assert (second.path / "out" / "checkpoint-20").is_dir()


def test_B07_restored_the_pointer_names_what_is_there(rent: Rent) -> None:
    """A machine that died before the tag that `latest` names was whole: neither the verb nor a run offers it."""
    first = rent("first").init()
    out = write_files(first.path / "out", deepspeed_files(100) | deepspeed_files(200))
    (out / "global_step200" / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    first("sync")
    second = rent("second").init()
    done = second("restore")
    assert "names global_step200, which is missing or not whole: it now names global_step100" in done.err
    assert (second.path / "out" / "latest").read_text() == "global_step100"
    third = rent("third").init()
    done = third("run", "--command", "cat out/latest; ls out", code=0)
    assert done.out.startswith(b"global_step100")
    assert re.search(rb"\nglobal_step200\.torn-\d+\n", done.out), done.out
    assert b"\nglobal_step200\n" not in done.out
