"""`python -m benchmarks`: every workload with every tool, in turn, then the pinned trainer; results, table, verdict.

Exits 1 when a target is missed, 2 when a tool is missing or failed, or a restore was not what was stored. A quick run
judges no speed: it shows that everything works.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import measure, report, trees, workloads
from benchmarks.served import Idle, Notices, notices, requests
from benchmarks.slowdown import Training, slowdown
from benchmarks.targets import Results, judge
from benchmarks.tools import TOOLS, Place, Tool
from benchmarks.workloads import Workload

HERE = Path(__file__).parent
WORKLOADS: dict[str, Callable[..., Workload]] = {"full50": workloads.checkpoints, "workspace": workloads.small_files}
_ALL = (*WORKLOADS, "slowdown", "requests", "notices")
_MEMORY = {"full50": 3 << 30, "workspace": 3 << 29, "quick": 1 << 28}
"""Bytes of free memory to be had before each step."""


def main() -> int:
    """Run, write, judge."""
    wish = _parser().parse_args()
    if wish.judge is not None:
        results = json.loads(wish.judge.read_text())
        print(report.markdown(results))
        return _verdict(results)
    tools = [TOOLS[name] for name in wish.tools.split(",")]
    missing = [tool for tool in tools if tool.found_version() is None]
    if missing:
        print("missing:", *(f"{tool.name} ({tool.install})" for tool in missing), file=sys.stderr)
        return 2
    try:
        results = _run(wish, tools)
    except measure.CommandFailed as error:
        print(error, file=sys.stderr)
        return 2
    print(f"written: {wish.out / 'RESULTS.md'}")
    return 0 if wish.quick else _verdict(results)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one cycle on little data: does everything work?")
    parser.add_argument("--cycles", type=int, help="how often (5; quick 1)")
    parser.add_argument("--tools", default="spotwarp,restic,rclone,cp", help="of " + ", ".join(TOOLS))
    parser.add_argument("--only", default=",".join(_ALL), help="of " + ", ".join(_ALL))
    parser.add_argument("--work", type=Path, default=Path(".bench"), help="where data and repositories lie (.bench)")
    parser.add_argument("--out", type=Path, help="where RESULTS.md and results.json go (benchmarks; quick: --work)")
    parser.add_argument("--judge", type=Path, metavar="RESULTS.JSON", help="measure nothing: judge what was measured")
    parser.set_defaults(judge=None)
    return parser


def _run(wish: argparse.Namespace, tools: list[Tool]) -> Results:
    wish.work = wish.work.absolute()
    wish.out = wish.out or (wish.work if wish.quick else HERE)
    wish.cycles = wish.cycles or (1 if wish.quick else 5)
    only = wish.only.split(",")
    data, run = wish.work / "data", wish.work / f"run-{os.getpid()}"
    data.mkdir(parents=True, exist_ok=True)
    results: Results = {
        "date": datetime.now(UTC).date().isoformat(),
        "quick": wish.quick,
        "cycles": wish.cycles,
        "machine": _machine(wish.work),
        "versions": {tool.name: tool.found_version() for tool in tools},
        "does": {tool.name: tool.does for tool in tools},
        "workloads": {},
    }
    try:
        for name in (name for name in WORKLOADS if name in only):
            workload = WORKLOADS[name](data, quick=wish.quick)
            measured = _compare(run, workload, tools, wish.cycles, quick=wish.quick)
            results["workloads"][name] = {"what": workload.what, "tools": measured}
            _write(wish.out, results)
        if "slowdown" in only:
            training = Training(seconds=4, checkpoints=2, mib=8) if wish.quick else Training()
            results["slowdown"] = slowdown(run, training, wish.cycles)
            _write(wish.out, results)
        if "requests" in only:
            results["requests"] = requests(run / "requests", Idle(20, 200) if wish.quick else Idle())
            _write(wish.out, results)
        if "notices" in only:
            asked = Notices((1, 8), (20,)) if wish.quick else Notices()
            results["notices"] = notices(run / "notices", asked)
            _write(wish.out, results)
    finally:
        shutil.rmtree(run, ignore_errors=True)
    return results


def _write(out: Path, results: Results) -> None:
    """What is measured so far: an hour's work is not lost to what comes after it."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "RESULTS.md").write_text(report.markdown(results))


def _compare(
    run: Path, workload: Workload, tools: list[Tool], cycles: int, *, quick: bool
) -> dict[str, list[dict[str, Any]]]:
    """All cycles of all tools, in turn, another one first each time."""
    found: dict[str, list[dict[str, Any]]] = {tool.name: [] for tool in tools}
    for cycle in range(cycles):
        first = cycle % len(tools)
        for turn, tool in enumerate(tools[first:] + tools[:first], cycle * len(tools) + 1):
            measured = _cycle(run / f"{workload.name}-{cycle}-{tool.name}", workload, tool, turn, quick=quick)
            found[tool.name].append(measured)
            steps = "  ".join(f"{step} {measured[step]['wall_s']:.2f} s" for step in report.STEPS)
            print(f"{workload.name:10} cycle {cycle + 1}  {tool.name:9} {steps}", flush=True)
    return found


def _cycle(root: Path, workload: Workload, tool: Tool, turn: int, *, quick: bool) -> dict[str, Any]:
    """One tool's life with one workload: first backup, second, one without a change, restore, comparison."""
    at = Place(*(root / name for name in ("source", "repository", "restored", "caches")))
    for folder in (at.source, at.repository, at.restored, at.caches):
        folder.mkdir(parents=True)
    log = root / "log"
    memory = _MEMORY["quick" if quick else workload.name]

    def timed(command: measure.Command, reads: Path) -> dict[str, float]:
        trees.read(reads)
        measure.settle(memory)
        return asdict(measure.run(command, log))

    workload.begin(at.source, turn)
    try:
        for command in tool.prepare(at):
            measure.run(command, log)
        facts: dict[str, Any] = {"bytes_first": trees.measured(at.source)[0]}
        facts["first"] = timed(tool.store(at), at.source)
        facts["stored_first"] = trees.measured(at.repository)[0]
        workload.change(at.source, turn)
        facts["bytes"], facts["files"] = trees.measured(at.source)
        facts["again"] = timed(tool.store(at), at.source)
        facts["stored"], facts["objects"] = trees.measured(at.repository)
        facts["unchanged"] = timed(tool.store(at), at.source)
        facts["restore"] = timed(tool.restore(at), at.repository)
        if wrong := trees.differences(at.source, at.restored, exact=tool.exact):
            raise measure.CommandFailed(f"{tool.name} did not restore {len(wrong)} paths, such as {wrong[:3]}")
    finally:
        workload.end(at.source, turn)
    if workload.name != "workspace":  # few big files: their room is needed
        shutil.rmtree(root)
    return facts


def _machine(work: Path) -> dict[str, Any]:
    """What the figures depend on; nothing that names the machine."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
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
    missed = [verdict.target.what for verdict in judge(results) if not verdict.met]
    print("\n".join(f"MISSED: {what}" for what in missed) or "all targets met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
