"""The benchmarks work, on little data; what they judge is judged from the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def _benchmarks(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "benchmarks", *(str(argument) for argument in arguments)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a quick run left its results; cp is the peer that every machine has."""
    work = tmp_path_factory.mktemp("bench")
    done = _benchmarks("--quick", "--tools", "spotwarp,cp", "--work", work)
    assert done.returncode == 0, done.stderr
    return work


def test_every_step_of_every_tool_is_measured(quick: Path) -> None:
    results = json.loads((quick / "results.json").read_text())
    for workload in ("full50", "workspace"):
        for tool in ("spotwarp", "cp"):
            (cycle,) = results["workloads"][workload]["tools"][tool]
            for step in ("first", "again", "unchanged", "restore"):
                assert cycle[step]["wall_s"] > 0
                assert 5 < cycle[step]["peak_mib"] < 250
            assert cycle["stored"] > cycle["bytes_first"] / 3
    (pair,) = results["slowdown"]["pairs"]
    assert pair["with"]["seconds"] > 0 < pair["bare"]["seconds"]


def test_the_page_says_that_it_is_a_smoke_run(quick: Path) -> None:
    page = (quick / "RESULTS.md").read_text()
    assert "smoke run" in page
    assert "| spotwarp |" in page
    assert str(quick) not in page


def test_nothing_is_left_but_the_data_and_the_results(quick: Path) -> None:
    assert {path.name for path in quick.iterdir()} == {"data", "results.json", "RESULTS.md"}
    assert not list((quick / "data").rglob(".spotwarp"))


def test_a_missed_target_fails(quick: Path, tmp_path: Path) -> None:
    results = json.loads((quick / "results.json").read_text())
    for workload in results["workloads"].values():
        workload["tools"]["restic"] = _as_if_slow(workload["tools"]["spotwarp"])
    pair = results["slowdown"]["pairs"][0]
    pair["with"]["seconds"] = pair["bare"]["seconds"]
    good = tmp_path / "good.json"
    good.write_text(json.dumps(results))
    assert _benchmarks("--judge", good).returncode == 0
    pair["with"]["seconds"] *= 1.06
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(results))
    judged = _benchmarks("--judge", bad)
    assert judged.returncode == 1
    assert "MISSED: a one-core trainer" in judged.stdout


def test_what_was_not_measured_is_not_met(quick: Path) -> None:
    judged = _benchmarks("--judge", quick / "results.json")
    assert judged.returncode == 1
    assert "not measured" in judged.stdout


def _as_if_slow(cycles: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same cycles, each step three times as long."""
    slow: list[dict[str, Any]] = json.loads(json.dumps(cycles))
    for cycle in slow:
        for step in ("first", "again", "unchanged", "restore"):
            cycle[step]["wall_s"] *= 3
    return slow
