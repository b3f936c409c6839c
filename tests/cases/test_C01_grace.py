"""Case C01: the platform allows more time than the launcher, which kills its workers in the middle of a save."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.product import Machine, until
from spotwarp.testing.pytest_product import bucket, rent, ws

__all__ = ["bucket", "rent", "ws"]

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow

# As torchrun does, with a second where it has thirty: passes SIGTERM on, kills when its own patience is over.
LAUNCHER = """
import signal, subprocess, sys, threading
told = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: told.set())
worker = subprocess.Popen([sys.executable, "worker.py"])
told.wait()
worker.send_signal(signal.SIGTERM)
try:
    worker.wait(1)
except subprocess.TimeoutExpired:
    worker.kill()
    worker.wait()
    print("worker killed", file=open("launcher.log", "a"))
sys.exit(1)
"""
# Saves a checkpoint file by file, as the trainer does; a save takes longer than the launcher allows.
WORKER = """
import signal, sys, threading, time
from pathlib import Path
from spotwarp.testing.checkpoints import huggingface_files
def save(step, pause):
    place = Path("out") / f"checkpoint-{step}"
    place.mkdir(parents=True, exist_ok=True)
    for name, content in huggingface_files(step).items():
        (place / name).write_bytes(content[: len(content) // 2])
        time.sleep(pause)
        (place / name).write_bytes(content)
told = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: told.set())
save(10, 0)
Path("ready").touch()
told.wait()
save(20, 1.5)
Path("finished").touch()
"""


def phases(machine: Machine) -> dict[str, dict[str, object]]:
    """The run log's phase entries by name."""
    entries = [
        json.loads(path.read_bytes()[8:-16])
        for path in sorted((Path(machine.remote) / "runs" / "main" / "log").iterdir())
    ]
    return {entry["phase"]: entry for entry in entries if entry["kind"] == "phase"}


def test_C01_a_save_that_the_launcher_cut_short_is_not_resumed_from(rent: Rent) -> None:
    """The final sync starts when the tree is gone, long before the deadline, and holds its last bytes; the half-written
    checkpoint is set aside, the one before it is what the next machine resumes from."""
    ws = rent(env={"SPOTWARP_GRACE": "8s", "SPOTWARP_SYNC_SHARE": "0.25", "SPOTWARP_INTERVAL": "1h"}).init()
    ws.file("launcher.py", LAUNCHER)
    ws.file("worker.py", WORKER)
    program = ws.start("run", "--", sys.executable, "launcher.py")
    program.until((ws.path / "ready").exists, "the first checkpoint")
    until(lambda: ws.facts("status", code=None)["resumable_step"] == 10, "the sync beside the training")
    program.send(signal.SIGTERM)
    done = program.end(75, 8)
    assert not (ws.path / "finished").exists()
    split = "8.0 s left: 6.0 s for the command to save, 2.0 s for the final sync"
    assert split in done.err
    logged = phases(ws)
    assert split in str(logged["notice"]["reason"])
    assert logged["preempted"]["exit"] == 1
    assert ws.facts("status")["resumable_step"] == 10

    other = rent("other").init()
    resumed = other("run", "--command", "ls out > seen; cat launcher.log > log")
    assert "resuming from out/checkpoint-10" in resumed.err
    seen = (other.path / "seen").read_text().split()
    assert "checkpoint-10" in seen
    assert "checkpoint-20" not in seen
    assert any(name.startswith("checkpoint-20.torn-") for name in seen)
    assert (other.path / "log").read_text().splitlines()[-1] == "worker killed"


def test_C01_a_save_that_outlasts_its_share_is_ended_so_that_the_final_sync_has_its_own(rent: Rent) -> None:
    """Without an impatient launcher in between it is the share that ends the save, and still in time."""
    ws = rent(env={"SPOTWARP_GRACE": "6s", "SPOTWARP_SYNC_SHARE": "0.75", "SPOTWARP_INTERVAL": "1h"}).init()
    ws.file("worker.py", WORKER)
    program = ws.start("run", "--", sys.executable, "worker.py")
    program.until((ws.path / "ready").exists, "the first checkpoint")
    program.send(signal.SIGTERM)
    done = program.end(75, 8)
    assert "6.0 s left: 1.5 s for the command to save, 4.5 s for the final sync" in done.err
    assert "the time to save is over: ending the command" in done.err
    assert ws.facts("status")["resumable_step"] == 10
