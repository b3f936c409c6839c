"""Results as a page of Markdown: what was compared with what, where, and what came out. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.targets import OURS, PEER, Results, judge, paired

MIB = 1 << 20
STEPS = {
    "first": "first backup",
    "again": "second backup",
    "unchanged": "backup without a change",
    "restore": "restore",
}

Cycle = dict[str, Any]


def markdown(results: Results) -> str:
    """The whole page."""
    parts = [_head(results), _targets(results)]
    parts += [_workload(results, name) for name in results["workloads"]]
    if results.get("slowdown"):
        parts.append(_slowdown(results["slowdown"]))
    if results.get("requests"):
        parts.append(_requests(results["requests"]))
    if results.get("notices"):
        parts.append(_notices(results["notices"]))
    return "\n\n".join([*parts, _METHOD]) + "\n"


def _head(results: Results) -> str:
    machine = results["machine"]
    versions = [f"- {name} {version}: {results['does'][name]}" for name, version in results["versions"].items()]
    quick = ["**A smoke run on little data: no figure here means anything.**", ""] if results["quick"] else []
    return "\n".join(
        [
            "# Side by side",
            "",
            *quick,
            f"Measured {results['date']} by `make bench`: {results['cycles']} cycles, the tools in turn within each.",
            "Figures are medians, with lowest–highest where they say how far to trust them.",
            "",
            f"Machine: {machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, {machine['disk']},"
            f" Linux {machine['kernel']}, Python {machine['python']}.",
            "",
            *versions,
        ]
    )


def _targets(results: Results) -> str:
    rows = []
    for verdict in judge(results):
        target = verdict.target
        bound = f"{'≥' if target.at_least else '≤'} {target.bound:g} {target.unit}"
        found = _spread(verdict.figures, ".2f") + f" {target.unit}" if verdict.figures else "not measured"
        rows.append([target.what, bound, found, "met" if verdict.met else "**MISSED**"])
    return "## Targets\n\n" + _table(["", "target", "measured", ""], rows)


def _workload(results: Results, name: str) -> str:
    workload = results["workloads"][name]
    tools: dict[str, list[Cycle]] = workload["tools"]
    some = next(iter(tools.values()))[0]
    sizes = f"{some['bytes_first'] / MIB:.0f} → {some['bytes'] / MIB:.0f} MiB, {some['files']} files"
    columns: dict[str, Callable[[Cycle], float]] = {
        "first, MiB/s": lambda c: c["bytes_first"] / MIB / c["first"]["wall_s"],
        "CPU s": lambda c: c["first"]["cpu_s"],
        "second, s": lambda c: c["again"]["wall_s"],
        "CPU s ": lambda c: c["again"]["cpu_s"],
        "stored for it, MiB": lambda c: (c["stored"] - c["stored_first"]) / MIB,
        "no change, s": lambda c: c["unchanged"]["wall_s"],
        "CPU s  ": lambda c: c["unchanged"]["cpu_s"],
        "restore, MiB/s": lambda c: c["bytes"] / MIB / c["restore"]["wall_s"],
        "CPU s   ": lambda c: c["restore"]["cpu_s"],
    }
    rows = [
        [tool]
        + [_spread([figure(cycle) for cycle in cycles]) for figure in columns.values()]
        + [f"{max(cycle[step]['peak_mib'] for cycle in cycles for step in STEPS):.0f}"]
        + [f"{_median(c['stored_first'] / c['bytes_first'] for c in cycles):.3f}"]
        + [f"{_median(c['objects'] for c in cycles):.0f}"]
        for tool, cycles in tools.items()
    ]
    head = ["", *(column.strip() for column in columns), "peak MiB", "stored / first", "objects"]
    noise = _median(c[step]["others_cpu"] for cycles in tools.values() for c in cycles for step in STEPS)
    return "\n\n".join(
        [
            f"## {name}: {workload['what']} ({sizes})",
            _table(head, rows),
            *_ratios(results, name, tools),
            f"Others kept {noise:.2f} cores busy meanwhile (median).",
        ]
    )


def _ratios(results: Results, name: str, tools: Iterable[str]) -> list[str]:
    peers = [tool for tool in tools if tool != OURS]
    rows = [
        [f"{words}: wall time of … / SpotWarp's", *(_spread(paired(results, name, step, peer, OURS)) for peer in peers)]
        for step, words in STEPS.items()
    ]
    return [_table(["", *peers], rows)] if peers else []


def _slowdown(measured: dict[str, Any]) -> str:
    pairs = measured["pairs"]
    rows = [
        [
            way,
            *(_spread([pair[way][key] for pair in pairs]) for key in ("seconds", "cpu", "beside_cpu", "others_cpu")),
        ]
        for way in ("bare", "with")
    ]
    return "\n\n".join(
        [
            f"## slowdown: {measured['steps']} steps on one core, {measured['checkpoints']} checkpoints of"
            f" {measured['mib']} MiB",
            _table(["", "trainer, s", "its CPU s", "SpotWarp's CPU s", "others, cores"], rows),
            "The trainer is bound to core 0 and SpotWarp to none. Pairs, the order alternating; the trainer's own"
            " seconds from its first step to its last, checkpoints written within.",
        ]
    )


def _requests(measured: dict[str, Any]) -> str:
    rows = [[kind, f"{count:.0f}"] for kind, count in measured["hour"].items()]
    return "\n\n".join(
        [
            f"## requests: an idle hour with {measured['files']} files, at defaults",
            _table(["request", "an hour"], rows),
            f"Counted for {measured['seconds']:.0f} s after everything was stored. A GET of the log asks for the entry"
            f" that is not there yet. The agent used {measured['cpu_s_hour']:.0f} CPU seconds an hour.",
        ]
    )


def _notices(measured: dict[str, Any]) -> str:
    rows = [[f"{p['rate']} MiB/s", f"{p['mib']}", f"{p['seconds']:.2f}"] for p in measured["points"]]
    lines = [
        f"At {rate} MiB/s: {fit['base_s']:.2f} s, and a second for every {fit['mib_s']:.0f} MiB."
        for rate, fit in measured["fits"].items()
    ]
    return "\n\n".join(
        [
            "## notices: from SIGTERM to everything stored and read back",
            _table(["link", "to move, MiB", "seconds"], rows),
            "\n".join(lines),
        ]
    )


def _spread(figures: Iterable[float], form: str = "") -> str:
    """The median, and how far apart the figures lie."""
    values = sorted(figures)
    if not values:
        return "–"
    low, middle, high = values[0], statistics.median(values), values[-1]
    shown = form or (".0f" if middle >= 100 else ".1f" if middle >= 10 else ".2f")
    if len(values) == 1:
        return f"{middle:{shown}}"
    return f"{middle:{shown}} ({low:{shown}}–{high:{shown}})"


def _median(figures: Iterable[float]) -> float:
    return statistics.median(list(figures))


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


_METHOD = f"""## How it is measured

- Each command is run as a user types it, in a process of its own, Python's start included. To a directory on the same
  disk as the workspace. Ratios are taken cycle by cycle; {PEER} is the one that does most nearly the same.
- The tools take turns, another one first in each cycle. All see the same files, moved by rename, never copied; what a
  step reads is in the page cache before it starts; nothing is left to be written back; free memory is host-backed.
- Every restore is compared with the workspace, byte by byte; for all but rclone also modes and times.
- Directories are new in each cycle and deleted after the last: ext4 is slow beside freshly deleted trees.
- {PEER} encrypts, SpotWarp does not yet; both wait until a backup is on the disk. SpotWarp's restore does too, the
  others' do not. A SpotWarp backup here is a whole life: it claims the run, stores, reads back what it stored, seals.
- A mirror's `stored for it` is its growth: it keeps no history."""
