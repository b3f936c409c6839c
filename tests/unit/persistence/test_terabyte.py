"""A workspace of a terabyte, at the level of manifests: bounded memory, and a snapshot costs what is new in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1 << 20
GIB_KIB = 1 << 20


def measured(place: Path, *arguments: str, limit_kib: int) -> dict[str, dict[str, int]]:
    words = [sys.executable, "-m", "spotwarp.testing.terabyte", str(place), *arguments]
    limited = ["bash", "-c", f'ulimit -v {limit_kib}; exec "$@"', "-", *words]
    ran = subprocess.run(limited, capture_output=True, check=True)
    return {line["stage"]: line for line in map(json.loads, ran.stdout.splitlines())}


@pytest.mark.slow
def test_half_a_terabyte_in_a_few_checkpoints(tmp_path: Path) -> None:
    stages = measured(tmp_path, "2000", "2", limit_kib=2 * GIB_KIB)
    assert stages["second"]["blobs"] > 130_000
    assert stages["second"]["stored"] < 0.4 * stages["first"]["stored"]  # one of two checkpoints is new
    assert stages["prune"]["dead"] > 3000
    assert max(stage["peak_bytes"] for stage in stages.values()) < 400 * MIB


@pytest.mark.deep
def test_a_terabyte_with_a_million_files(tmp_path: Path) -> None:
    stages = measured(tmp_path, limit_kib=2 * GIB_KIB)
    assert stages["first"]["files"] > 1_000_000
    assert stages["second"]["stored"] < 0.1 * stages["first"]["stored"]
    assert max(stage["peak_bytes"] for stage in stages.values()) < 800 * MIB
