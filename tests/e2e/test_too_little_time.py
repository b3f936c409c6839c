"""A machine that goes before everything is stored: what fits is committed, what does not is named, and a new machine
goes on from the newest checkpoint that got through."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.backups import noise
from spotwarp.testing.checkpoints import huggingface_files
from spotwarp.testing.faultproxy import FaultProxy, Rule
from spotwarp.testing.product import Machine
from spotwarp.testing.seaweed import Seaweed

Rent = Callable[..., Machine]
MIB = 1 << 20
SAVES = "trap 'mv made out; mv big data.bin; exit 0' TERM; touch ready; while :; do sleep 0.05; done"

pytestmark = pytest.mark.slow


def made(machine: Machine) -> Path:
    """What the command will put in place when it is told: checkpoints (small packs), and far more than there is
    time for (large ones)."""
    for step in (10, 20):
        for name, data in huggingface_files(step, size=MIB).items():
            machine.file(f"made/checkpoint-{step}/{name}", data)
    machine.file("big", noise(80 * MIB, 1))
    machine.file(".gitkeep", "")
    return machine.path


def test_so_it_is_when_the_saved_checkpoint_is_being_sent_as_the_command_ends(
    rent: Rent, seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str
) -> None:
    env = seaweed_server.env(endpoint=s3_proxy.endpoint)
    machine = rent(remote=s3_url, env=env).init()
    made(machine)
    machine("exclude", "made/", "big")
    # Saved, and then alive until the sync of what it saved has begun to send.
    command = SAVES.replace("exit 0", "until test -e sending; do sleep 0.05; done; exit 0")
    program = machine.start("run", "--interval", "1h", "--grace", "10s", "--command", command)
    program.until(lambda: (machine.path / "ready").exists() and machine.snapshots(), "a first snapshot")
    before = len(s3_proxy.seen)
    s3_proxy.rule(Rule(verb="PUT", path="/packs/", min_body=MIB, hang=True))
    program.send(signal.SIGTERM)
    program.until(lambda: any("/packs/" in one.path for one in s3_proxy.seen[before:]), "a sync that sends")
    machine.file("sending", "")
    program.end(125, 30)
    s3_proxy.rule()
    last = machine.snapshots()[-1]
    assert (last["late"] > 0, (last["resumable"] or {}).get("step")) == (True, 20), last


def test_what_fits_is_committed_and_what_does_not_is_named(
    rent: Rent, seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str
) -> None:
    env = seaweed_server.env(endpoint=s3_proxy.endpoint)
    machine = rent(remote=s3_url, env=env).init()
    made(machine)
    machine("exclude", "made/", "big")
    program = machine.start("run", "--interval", "1h", "--grace", "8s", "--command", SAVES)
    program.until(lambda: (machine.path / "ready").exists() and machine.snapshots(), "a first snapshot")
    s3_proxy.rule(Rule(verb="PUT", path="/packs/", min_body=MIB, hang=True))
    program.send(signal.SIGTERM)
    done = program.end(125, 30)
    assert "did not get to the store in time: data.bin (no time before the machine's end: left out)" in done.err
    assert "the newest resumable checkpoint in it is out/checkpoint-20" in done.err
    s3_proxy.rule()
    last = machine.snapshots()[-1]
    assert (last["late"] > 0, last["resumable"]["step"]) == (True, 20), last
    assert last["late_bytes"] >= 80 * MIB
    other = rent("other", remote=s3_url, env=env).init()
    resumed = other("run", "--command", "ls out; echo $SPOTWARP_LAST_CHECKPOINT; exit 3", code=3)
    assert b"checkpoint-20\n" in resumed.out
    assert not (other.path / "data.bin").exists()
