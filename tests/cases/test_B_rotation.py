"""B06 and B16: checkpoints that are rotated away while they are uploaded, and a log that is written meanwhile."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.checkpoints import huggingface_files
from spotwarp.testing.faultproxy import FaultProxy, Rule
from spotwarp.testing.product import Machine, Program
from spotwarp.testing.pytest_product import bucket, rent, ws
from spotwarp.testing.pytest_seaweed import s3_proxy, s3_url, seaweed_server
from spotwarp.testing.seaweed import Seaweed
from spotwarp.testing.slow_trainer import chain, steps_of

__all__ = ["bucket", "rent", "s3_proxy", "s3_url", "seaweed_server", "ws"]

pytestmark = pytest.mark.slow  # a whole program, several times

Rent = Callable[..., Machine]
STEPS, EVERY, SIZE = 40, 5, 300_000
TWENTY = [pytest.param(seed, marks=pytest.mark.deep if seed else []) for seed in range(20)]


def train(machine: Machine, *more: str) -> Program:
    words = ["--steps", str(STEPS), "--save-every", str(EVERY), "--size", str(SIZE), "--save-time", "0.3", *more]
    return machine.start("run", "--", sys.executable, "-m", "spotwarp.testing.slow_trainer", *words)


def whole(place: Path, step: int) -> bool:
    """Whether every member of a checkpoint is there at its full length."""
    return all((place / n).is_file() and (place / n).stat().st_size >= len(d) - 64 for n, d in expected(step).items())


def expected(step: int) -> dict[str, bytes]:
    return huggingface_files(step, size=SIZE)


@pytest.mark.parametrize("seed", TWENTY)
def test_B06_rotation_during_the_upload_leaves_a_whole_checkpoint_in_the_bucket(
    rent: Rent, seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str, seed: int
) -> None:
    """The only checkpoint is deleted while it is being sent, again and again; the machine dies at any moment of it."""
    chance = random.Random(seed)
    env = seaweed_server.env(endpoint=s3_proxy.endpoint)
    first = rent("first", remote=s3_url, env=env).init()
    s3_proxy.rule(Rule(verb="PUT", path="/(packs|manifests)/", delay_s=chance.choice([0.1, 0.5, 1.0])))
    s3_proxy.forget()
    program = train(first, "--limit", "1")
    program.until(lambda: b"saved 5\n" in program.out, "the first save", 90)
    puts = len([s for s in s3_proxy.seen if s.verb == "PUT"]) + chance.randrange(1, 25)
    program.until(
        lambda: len([s for s in s3_proxy.seen if s.verb == "PUT"]) >= puts or b"digest" in program.out,
        "so many puts",
        90,
    )
    assert program.process.poll() is None
    saved = [int(step) for step in re.findall(rb"saved (\d+)\n", program.out)]
    first.die()
    s3_proxy.rule()
    second = rent("second", remote=s3_url, env=env).init()
    promised = [(s["id"], s["resumable"]) for s in second.snapshots() if s["resumable"]]
    for number, checkpoint in promised:
        place = second.path.with_name(f"look-{number}")
        second("restore", "--snapshot", str(number), "--to", str(place))
        assert checkpoint["step"] in saved or checkpoint["step"] == max(saved) + EVERY
        assert whole(place / checkpoint["path"], checkpoint["step"]), checkpoint
    assert second.facts("check", "--read-data")["problems"] == []
    s3_proxy.rule(Rule(verb="PUT", path="/packs/", delay_s=0.1))
    done = second("run", code=0, seconds=120)
    [start] = re.findall(rb"start (\d+)\n", done.out)
    assert int(start) == (promised[-1][1]["step"] if promised else 0)
    assert f"digest {chain(STEPS)}".encode() in done.out


def test_B16_the_log_is_never_behind_the_checkpoint_and_two_hops_change_no_bit(rent: Rent) -> None:
    """A trainer that notes its steps: after a restore none before the checkpoint is lost, and none is of the future.

    What was noted after the checkpoint is there as well, since it was there at that moment: a trainer that does not cut
    its log back notes those steps twice. That is told in the README.
    """
    starts, rows_before = [0], 0
    for hop in range(2):
        machine = rent(f"m{hop}").init()
        program = train(machine)
        program.until(lambda p=program, n=hop: f"saved {15 + 15 * n}\n".encode() in p.out, "a save", 90)
        machine("sync")
        written = (machine.path / "out/samples.log").read_text().split()
        machine.die()
        look = rent(f"look{hop}").init()
        look("restore")
        kept = (look.path / "out/samples.log").read_text().split()
        assert written[: len(kept)] == kept or kept[: len(written)] == written
        newest = max(steps_of(look.path / "out"))
        since = [int(row) for row in kept[rows_before:]]
        assert since == list(range(starts[-1] + 1, since[-1] + 1)), "every step since the last start, once and in order"
        assert since[-1] >= newest
        starts.append(newest)
        rows_before = len(kept)
    last = rent("last").init()
    done = last("run", code=0, seconds=120)
    assert f"start {starts[-1]}\n".encode() in done.out
    assert f"digest {chain(STEPS)}".encode() in done.out
    rows = [int(row) for row in (last.path / "out/samples.log").read_text().split()]
    assert set(rows) == set(range(1, STEPS + 1))
    assert rows[rows_before:] == list(range(starts[-1] + 1, STEPS + 1))
