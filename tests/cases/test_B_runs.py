"""Group B of the case book through `spotwarp run`: machines die in a save, the next one resumes, no bit differs."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.product import Machine
from spotwarp.testing.pytest_product import bucket, rent, ws

__all__ = ["bucket", "rent", "ws"]

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow  # a whole program, several times


# Naive, as trainers are: resumes from the highest number whether it is whole or not. What it computes depends on every
# step since the first, so that a lost, repeated or torn one changes the digest.
TRAINER = """
import hashlib, json, re, sys, time
from pathlib import Path
from spotwarp.testing.checkpoints import huggingface_files

out, steps, every, pause = Path("out"), int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
staging = "staging" in sys.argv
found = [int(m[1]) for p in out.glob("checkpoint-*") if (m := re.fullmatch(r"checkpoint-(\\d+)", p.name))]
step, chain = 0, ""
if found:
    state = json.loads((out / f"checkpoint-{max(found)}" / "trainer_state.json").read_text())
    (out / f"checkpoint-{max(found)}" / "optimizer.pt").read_bytes()
    step, chain = state["global_step"], state["chain"]
print("start", step, flush=True)
while step < steps:
    step += 1
    chain = hashlib.sha256(f"{chain} {step}".encode()).hexdigest()
    time.sleep(0.02)
    if step % every == 0:
        place = out / (f"tmp-checkpoint-{step}" if staging else f"checkpoint-{step}")
        place.mkdir(parents=True, exist_ok=True)
        for name, body in huggingface_files(step).items():
            if name == "trainer_state.json":
                body = json.dumps({**json.loads(body), "chain": chain}).encode()
            with (place / name).open("wb") as file:
                for half in (body[: len(body) // 2], body[len(body) // 2 :]):
                    file.write(half)
                    file.flush()
                    time.sleep(pause / 2)
        if staging:
            place.rename(out / f"checkpoint-{step}")
print("digest", chain, flush=True)
"""
STEPS, EVERY = 30, 10


def digest(output: bytes) -> str:
    found = re.search(rb"digest (\w+)", output)
    assert found, output
    return found[1].decode()


def expected() -> str:
    chain = ""
    for step in range(1, STEPS + 1):
        chain = hashlib.sha256(f"{chain} {step}".encode()).hexdigest()
    return chain


def train(machine: Machine, *more: str, pause: float) -> list[str]:
    machine.file("train.py", TRAINER)
    return ["run", "--", sys.executable, "train.py", str(STEPS), str(EVERY), str(pause), *more]


def files(place: Path) -> int:
    return len(list(place.iterdir())) if place.is_dir() else 0


@pytest.mark.parametrize("offset", [1, 4, 7])
def test_B01_killed_in_a_save_the_run_ends_with_the_same_bits(rent: Rent, offset: int) -> None:
    """The machine dies with `offset` of the files of its second checkpoint on disk, and some of that in the bucket."""
    first = rent("first").init()
    program = first.start(*train(first, pause=0.3))
    program.until(lambda: files(first.path / "out" / "checkpoint-20") >= offset, "the second save", 90)
    first("sync")  # half a checkpoint is in the bucket now, and known to be half of one
    first.die()
    second = rent("second").init()
    done = second("run", code=0, seconds=120)
    assert re.search(rb"start (10|20)\n", done.out), done.out
    assert digest(done.out) == expected()
    assert second.facts("status")["state"] == "complete"
    assert second.facts("check", "--read-data")["problems"] == []


@pytest.mark.parametrize("at", ["filling", "renamed"])
def test_B04_a_staging_directory_renamed_into_place(rent: Rent, at: str) -> None:
    first = rent("first").init()
    program = first.start(*train(first, "staging", pause=0.2))
    out = first.path / "out"
    if at == "filling":
        program.until(lambda: files(out / "tmp-checkpoint-20") >= 4, "the staging directory", 90)
    else:
        program.until((out / "checkpoint-20").exists, "the rename", 90)
    first("sync")
    first.die()
    second = rent("second").init()
    for snapshot in second.snapshots():
        place = second.path.with_name(f"look-{snapshot['id']}")
        second("restore", "--snapshot", str(snapshot["id"]), "--to", str(place))
        for found in place.glob("out/checkpoint-*"):
            assert "torn" in found.name or (found / "trainer_state.json").exists(), found
    done = second("run", code=0, seconds=120)
    assert re.search(rb"start 20\n" if at == "renamed" else rb"start 10\n", done.out), done.out
    assert digest(done.out) == expected()


def test_B17_two_runs_in_one_directory(ws: Machine) -> None:
    program = ws.start("run", "--command", "echo first > who; touch ready; until test -e go; do sleep 0.05; done")
    program.until((ws.path / "ready").exists)
    for words in (("run", "--command", "echo second > who"), ("run", "--takeover", "--command", "echo second > who")):
        refused = ws(*words, code=125)
        assert str(program.process.pid) in refused.err
        assert "since" in refused.err
    ws.file("go", "")
    program.end(0)
    assert (ws.path / "who").read_text() == "first\n"
    assert ws.facts("status")["generation"] == 1


def test_B17_two_directories_with_one_remote(ws: Machine, rent: Rent) -> None:
    program = ws.start(
        "run", "--command", "echo first > who; touch ready; until test -e go; do sleep 0.05; done; exit 3"
    )
    program.until((ws.path / "ready").exists)
    other = rent("other").init()
    refused = other("run", "--command", "echo second > who", code=125)
    assert f"process {program.process.pid}, since" in refused.err
    assert "alive; left alone" in refused.err
    assert program.process.poll() is None
    ws.file("go", "")
    program.end(3)
    assert (ws.path / "who").read_text() == "first\n"
    # Once it has ended, the other goes on from what it has left.
    assert other("run", "--command", "cat who; exit 4", code=4).out == b"first\n"
    assert other.facts("status")["generation"] == 2
