"""The same life of a run on every kind of store: stored, the machine lost, restored on another, finished, checked."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest

from spotwarp.testing.clouds import BUCKET, Cloud, gcs_cloud
from spotwarp.testing.gcs import gcs_double
from spotwarp.testing.product import Machine

Rent = Callable[..., Machine]
TRAINING = (
    "n=$(cat count 2>/dev/null || echo 0); "
    "until test -e go; do n=$((n+1)); echo $n > new; mv new count; sleep 0.05; done; cp count last"
)
SAVING = (
    f"for n in 1 2 3; do echo $n > state; {sys.executable} -m spotwarp sync || exit 9; done; "
    "until test -e go; do sleep 0.05; done"
)

pytestmark = pytest.mark.slow


def test_a_run_survives_its_machine(cloud: Cloud, rent: Rent, tmp_path: Path) -> None:
    first = rent("first", remote=cloud.url, env=cloud.env()).init()
    data = os.urandom(6 * 1024 * 1024)
    first.file("data/weights.bin", data)
    training = first.start("run", "--command", TRAINING)
    training.until(lambda: len(first.snapshots()) > 1, "a second snapshot", 90)
    first.die()
    second = rent("second", remote=cloud.url, env=cloud.env()).init()
    resumed = second.start("run")
    resumed.until(lambda: (second.path / "count").exists(), "the training on the other machine", 90)
    before = int((second.path / "count").read_text())
    resumed.until(lambda: int((second.path / "count").read_text()) > before + 3, "it to go on")
    second.file("go", "")
    resumed.end(0, 90)
    assert (second.path / "data/weights.bin").read_bytes() == data
    second("prune", "--grace", "0s")
    second("check", "--read-data")
    second("restore", "--to", str(tmp_path / "restored"))
    for name in ("data/weights.bin", "count", "last", "go"):
        assert (tmp_path / "restored" / name).read_bytes() == (second.path / name).read_bytes(), name


def test_A26_a_name_that_may_be_rewritten_only_once_a_second(rent: Rent, tmp_path: Path) -> None:
    """Google's limit, and a lease so short that two heartbeats a second are due, three saves at once: no refusal."""
    with gcs_double(BUCKET) as server:
        server.rewrite_gap_s = 1.0
        cloud = gcs_cloud(server, "p", tmp_path)
        machine = rent("one", remote=cloud.url, env=cloud.env()).init()
        running = machine.start("run", "--command", SAVING)
        running.until(lambda: len(machine.snapshots()) >= 2, "two snapshots", 60)
        machine.file("go", "")
        running.end(0, 60)
        machine("restore", "--to", str(tmp_path / "restored"))
        puts = [seen for seen in server.seen if seen.verb == "PUT"]
    assert sum("/beats/" in unquote(seen.path) for seen in puts) >= 2
    assert [(seen.path, seen.status) for seen in puts if seen.status == 429] == []
    assert (tmp_path / "restored/state").read_text() == "3\n"
