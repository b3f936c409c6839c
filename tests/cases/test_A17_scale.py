"""Case A17: a huge directory takes bounded memory and few requests, and says how far it is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotwarp.testing.product import Machine
from spotwarp.testing.pytest_product import bucket, rent, ws
from spotwarp.testing.scale import make

__all__ = ["bucket", "rent", "ws"]

MIB = 1 << 20
MANY = 1_000_000
LIMIT_KIB = 1_500_000
BYTES_A_FILE = 900
"""What one more file may add to the peak, its own 100 bytes on their way included; as Python objects it was 2200."""


def measured(place: Path, count: int) -> dict[str, dict[str, int]]:
    """What each stage of a life with so many files took."""
    place.mkdir()
    words = [sys.executable, "-m", "spotwarp.testing.scale", str(count), str(place), "--restore"]
    ran = subprocess.run(words, capture_output=True, check=True)
    shutil.rmtree(place)
    return {line["stage"]: line for line in map(json.loads, ran.stdout.splitlines())}


@pytest.mark.slow
def test_A17_a_file_more_costs_some_hundred_bytes(tmp_path: Path) -> None:
    """First backup, one after a change, restore: the peak of each, at ten and at fifty thousand files."""
    few, more = measured(tmp_path / "few", 10_000), measured(tmp_path / "more", 50_000)
    for stage in ("first", "changed", "restore"):
        assert more[stage]["files"] == 50_000
        grown = (more[stage]["peak_bytes"] - few[stage]["peak_bytes"]) / 40_000
        assert grown < BYTES_A_FILE, stage
    assert more["first"]["packs"] < 10
    assert more["idle"]["quiet"]
    assert more["idle"]["read"] == 0


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[str]:
    """The name of a machine whose disk takes a million files and forgets them in a moment."""
    disk = tmp_path / "roomy"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8G,nr_inodes=2M", "spotwarp-test", disk], check=True)
    try:
        yield disk.name
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.deep
def test_A17_a_million_files_with_little_address_space(roomy: str, rent: Callable[..., Machine], bucket: Path) -> None:
    machine = rent(roomy, env={"SPOTWARP_INTERVAL": "5s"}).init()
    make(machine.path / "many", MANY)
    limited = ("bash", "-c", f'ulimit -v {LIMIT_KIB}; exec "$@"', "-")
    program = machine.start("run", "--command", "until test -e go; do sleep 0.2; done", under=limited)
    said = re.compile(r"looking at the workspace: \d+|storing: ")
    program.until(lambda: said.search(program.err), "a word on how far it is", 120)
    entries = bucket / "runs/main/manifests"
    program.until(lambda: entries.exists() and any(entries.iterdir()), "the first snapshot", 900)
    peak = int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{program.process.pid}/status").read_text())[1]) * 1024  # type: ignore[index]
    machine.file("go", "")
    program.end(0, seconds=900)
    assert peak < 600 * MIB
    assert sum(path.is_file() for path in bucket.rglob("*")) < 200
    assert machine.facts("snapshots")[-1]["files"] >= MANY


@pytest.mark.deep
def test_A17_many_files_and_nothing_new(tmp_path: Path) -> None:
    stages = measured(tmp_path / "many", MANY // 5)
    assert stages["idle"]["quiet"]
    assert stages["idle"]["cpu_s"] < 20
    assert stages["restore"]["files"] == MANY // 5
    assert max(stage["peak_bytes"] for stage in stages.values()) < 400 * MIB
