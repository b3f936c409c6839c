"""The benchmarks work, on little data; what they judge is judged from the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def _benchmarks(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "benchmarks", *(str(argument) for argument in arguments)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a quick run left its results; cp is the peer that every machine has."""
    work = tmp_path_factory.mktemp("bench")
    done = _benchmarks(
        "--quick", "--only", "T5,full50,slowdown,daemon", "--tools", "spotwarp,planes,cp", "--work", work
    )
    assert done.returncode == 0, done.stderr
    return work


def test_every_step_of_every_tool_is_measured(quick: Path) -> None:
    results = json.loads((quick / "results.json").read_text())
    for tool in ("planes", "cp"):
        (cycle,) = results["workloads"]["full50"]["tools"][tool]
        for step in ("first", "again", "unchanged", "restore"):
            assert cycle[step]["wall_s"] > 0
            assert 5 < cycle[step]["peak_mib"] < 300
        assert cycle["stored"] > cycle["bytes_first"] / 3
    assert results["workloads"]["full50"]["tools"]["planes"][0]["part"]["wall_s"] > 0
    assert len(results["daemon"]["seconds"]) == 1
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


def test_a_missed_target_fails_and_what_is_kept_is_marked(quick: Path, tmp_path: Path) -> None:
    results = json.loads((quick / "results.json").read_text())
    pair = results["slowdown"]["pairs"][0]
    pair["with"]["seconds"] = pair["bare"]["seconds"] * 1.06
    results["workloads"]["logs"]["date"] = "2001-01-01"
    (tmp_path / "results.json").write_text(json.dumps(results))
    judged = _benchmarks("--render", "--out", tmp_path)
    assert judged.returncode == 1
    assert "MISSED by 200 %:  a one-core trainer" in judged.stdout
    page = (tmp_path / "RESULTS.md").read_text()
    assert "**missed by 200 %**" in page
    assert "Measured in a run of its own, 2001-01-01" in page
    pair["with"]["seconds"] = pair["bare"]["seconds"]
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert "trainer" not in _benchmarks("--render", "--out", tmp_path).stdout


def test_what_was_not_measured_is_not_met(quick: Path) -> None:
    judged = _benchmarks("--render", "--out", quick)
    assert judged.returncode == 1
    assert "not measured" in judged.stdout
