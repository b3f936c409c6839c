"""`python -m benchmarks`: every experiment with every tool, in turn, then what a run asks and costs; table, verdict.

    python -m benchmarks                              everything: an hour, 40 GiB of disk
    python -m benchmarks --only T1,T6 --cycles 1      a quick look at some targets (or experiments, by name)
    python -m benchmarks --quick                      one cycle on little data: does everything work?
    python -m benchmarks --render                     measure nothing: the page anew from the results

What is measured is added to `results.json`; what was measured earlier stays and is marked with its date. Exits 1 when a
target is missed, 2 when a tool is missing or failed, or a restore was not what was stored. A quick run judges no speed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import measure, report
from benchmarks.experiments import EXPERIMENTS, Experiment, compare
from benchmarks.served import Idle, Notices, daemon, notices, requests
from benchmarks.slowdown import Training, slowdown
from benchmarks.targets import Results, judge, needs
from benchmarks.tools import TOOLS
from benchmarks.workloads import Data

HERE = Path(__file__).parent
RUNS: dict[str, Callable[[Path, int, bool], Any]] = {
    "daemon": lambda run, cycles, quick: daemon(run, 400 if quick else 20000, cycles),
    "slowdown": lambda run, cycles, quick: slowdown(run, Training(4, 2, 8) if quick else Training(), cycles),
    "requests": lambda run, cycles, quick: requests(run, Idle(20, 200) if quick else Idle()),
    "notices": lambda run, cycles, quick: notices(run, Notices((1, 8), (20,)) if quick else Notices()),
}
"""What is measured of `spotwarp run` alone."""


def main() -> int:
    """Run, write, judge."""
    wish = _parser().parse_args()
    wish.work = wish.work.absolute()
    wish.out = wish.out or (wish.work if wish.quick else HERE)
    if wish.render:
        results = json.loads((wish.out / "results.json").read_text())
        (wish.out / "RESULTS.md").write_text(report.markdown(results))
        return _verdict(results)
    wanted = _wanted(wish.only)
    chosen = _chosen(wanted, wish.tools)
    missing = [tool for one in chosen.values() for tool in one.tools if TOOLS[tool].found_version() is None]
    if missing:
        print("missing:", *{f"{name} ({TOOLS[name].install})" for name in missing}, file=sys.stderr)
        return 2
    try:
        results = _run(wish, wanted, chosen)
    except measure.CommandFailed as error:
        print(error, file=sys.stderr)
        return 2
    print(f"written: {wish.out / 'RESULTS.md'}")
    return 0 if wish.quick else _verdict(results)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one cycle on little data")
    parser.add_argument("--cycles", type=int, help="how often (5, where only bytes count 1; quick 1)")
    parser.add_argument("--only", help="targets (T1 …) or of " + ", ".join((*EXPERIMENTS, *RUNS)))
    parser.add_argument("--tools", help="only these of " + ", ".join(TOOLS))
    parser.add_argument("--work", type=Path, default=Path(".bench"), help="where data and repositories lie (.bench)")
    parser.add_argument("--out", type=Path, help="where RESULTS.md and results.json go (benchmarks; quick: --work)")
    parser.add_argument("--render", action="store_true", help="measure nothing: write RESULTS.md from results.json")
    return parser


def _wanted(only: str | None) -> list[str]:
    """The experiments and runs asked for, by their names or by the targets that need them."""
    names = [*EXPERIMENTS, *RUNS]
    if only is None:
        return names
    asked = {one for word in only.split(",") for one in ([word] if word in names else needs(word))}
    return [name for name in names if name in asked]


def _chosen(wanted: list[str], tools: str | None) -> dict[str, Experiment]:
    """The experiments among `wanted`, with only those `tools` that are asked for."""
    some = tools.split(",") if tools is not None else list(TOOLS)
    found = {name: EXPERIMENTS[name] for name in wanted if name in EXPERIMENTS}
    left = {name: replace(one, tools=tuple(t for t in one.tools if t in some)) for name, one in found.items()}
    return {name: one for name, one in left.items() if one.tools}


def _run(wish: argparse.Namespace, wanted: list[str], chosen: dict[str, Experiment]) -> Results:
    started = time.monotonic()
    run, today = wish.work / f"run-{os.getpid()}", datetime.now(UTC).date().isoformat()
    data = Data(wish.work / "data", wish.quick)
    data.root.mkdir(parents=True, exist_ok=True)
    results = _before(wish.out, wish.quick) | {"date": today, "quick": wish.quick, "machine": _machine(wish.work)}
    try:
        for name in wanted:
            print(f"{name:10} begins after {(time.monotonic() - started) / 60:.0f} min", flush=True)
            if name in EXPERIMENTS and name not in chosen:
                continue
            if (experiment := chosen.get(name)) is not None:
                cycles = wish.cycles or (1 if wish.quick else experiment.cycles)
                measured = compare(experiment, run, data, cycles)
                results["workloads"][name] = {"date": today, **measured}
                _know(results, experiment.tools)
            else:
                cycles = wish.cycles or (1 if wish.quick else 5)
                results[name] = {"date": today, **RUNS[name](run / name, cycles, wish.quick)}
            _write(wish.out, results)
    finally:
        shutil.rmtree(run, ignore_errors=True)
    return results


def _before(out: Path, quick: bool) -> Results:
    """What was measured before, if it was of the same kind."""
    try:
        results: Results = json.loads((out / "results.json").read_text())
        if results["quick"] == quick and all("steps" in one for one in results["workloads"].values()):
            return results
    except (OSError, ValueError, KeyError):
        pass
    return {"workloads": {}, "versions": {}, "does": {}}


def _know(results: Results, tools: tuple[str, ...]) -> None:
    for name in tools:
        results["versions"][name] = TOOLS[name].found_version()
        results["does"][name] = TOOLS[name].does


def _write(out: Path, results: Results) -> None:
    """What is measured so far: an hour's work is not lost to what comes after it."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "RESULTS.md").write_text(report.markdown(results))


def _machine(work: Path) -> dict[str, Any]:
    """What the figures depend on; nothing that names the machine."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    work.mkdir(parents=True, exist_ok=True)
    disk = subprocess.run(["df", "--output=fstype", work], capture_output=True, text=True, check=True).stdout.split()[
        -1
    ]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": models[0].partition(":")[2].strip() if models else platform.machine(),
        "memory_gib": round(memory / (1 << 30)),
        "disk": disk,
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
    }


def _verdict(results: Results) -> int:
    verdicts = judge(results)
    for verdict in verdicts:
        if verdict.figures and not verdict.met:
            print(f"MISSED by {100 * verdict.lacks:.0f} %: {verdict.target.number} {verdict.target.what}")
    unknown = sum(not verdict.figures for verdict in verdicts)
    missed = sum(bool(verdict.figures) and not verdict.met for verdict in verdicts)
    print(f"{len(verdicts) - unknown - missed} targets met, {missed} missed, {unknown} not measured")
    return 1 if missed or unknown else 0


if __name__ == "__main__":
    sys.exit(main())
