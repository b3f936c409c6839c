"""Results as a page of Markdown: what was compared with what, where, and what came out. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.targets import OURS, Results, Verdict, judge, later, paired, step

MIB = 1 << 20
STEPS = {
    "first": "first backup",
    "again": "second backup",
    "unchanged": "backup without a change",
    "restore": "restore",
    "part": "restore of the newest checkpoint alone",
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
    if results.get("daemon"):
        parts.append(_daemon(results["daemon"]))
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
            f"Measured {results['date']} by `make bench`: the tools in turn within each cycle.",
            "Figures are medians, with lowest–highest where they say how far to trust them.",
            "",
            f"Machine: {machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, {machine['disk']},"
            f" Linux {machine['kernel']}, Python {machine['python']}.",
            "",
            *versions,
        ]
    )


def _targets(results: Results) -> str:
    rows = [
        [
            verdict.target.number,
            verdict.target.what,
            f"{'≥' if verdict.target.at_least else '≤'} {verdict.target.bound:g} {verdict.target.unit}"
            + (f" ({verdict.target.goal:g})" if verdict.target.goal else ""),
            _spread(verdict.figures) + f" {verdict.target.unit}" if verdict.figures else "–",
            _said(verdict),
        ]
        for verdict in judge(results)
    ]
    return "## Targets\n\n" + _table(["", "", "target (goal)", "measured", ""], rows)


def _said(verdict: Verdict) -> str:
    if not verdict.figures:
        return "not measured"
    return "met" if verdict.met else f"**missed by {100 * verdict.lacks:.0f} %**"


def _workload(results: Results, name: str) -> str:
    workload = results["workloads"][name]
    tools: dict[str, list[Cycle]] = workload["tools"]
    some = next(iter(tools.values()))[0]
    sizes = f"{some['bytes_first'] / MIB:.0f} → {some['bytes'] / MIB:.0f} MiB, {some['files']} files"
    where = {"disk": "", "ram": ", in memory", "s3": ", SeaweedFS on this machine"}[workload["where"]]
    columns = {head: figure for head, (needs, figure) in _COLUMNS.items() if needs in workload["steps"]}
    rows = [
        [tool]
        + [_spread(figure(cycle) for cycle in cycles if _has(cycle, head)) for head, figure in columns.items()]
        + [f"{max(sample['peak_mib'] for cycle in cycles for sample in _samples(cycle)):.0f}"]
        + [f"{_median(c['stored_first'] / c['bytes_first'] for c in cycles):.3f}"]
        + [f"{_median(c['objects'] for c in cycles):.0f}"]
        for tool, cycles in tools.items()
    ]
    head = ["", *(column.strip() for column in columns), "peak MiB", "stored / first", "objects"]
    noise = _median(sample["others_cpu"] for cycles in tools.values() for c in cycles for sample in _samples(c))
    apart = "" if workload["date"] == results["date"] else f" Measured in a run of its own, {workload['date']}."
    count = max(len(cycles) for cycles in tools.values())
    return "\n\n".join(
        [
            f"## {name}: {workload['what']} ({sizes}{where})",
            _table(head, rows),
            *_ratios(results, name, tools),
            f"Cycles: {count}. Others kept {noise:.2f} cores busy meanwhile (median).{apart}",
        ]
    )


def _samples(cycle: Cycle) -> list[dict[str, float]]:
    return [cycle[name] for name in STEPS if name in cycle]


def _has(cycle: Cycle, head: str) -> bool:
    """Not every tool restores a part."""
    return _COLUMNS[head][0] in cycle


_COLUMNS: dict[str, tuple[str, Callable[[Cycle], float]]] = {
    "first, MiB/s": ("first", lambda c: c["bytes_first"] / MIB / c["first"]["wall_s"]),
    "CPU s": ("first", step("first", "cpu_s")),
    "second, s": ("again", step("again")),
    "CPU s ": ("again", step("again", "cpu_s")),
    "stored for it, MiB": ("again", lambda c: later(c) / MIB),
    "no change, s": ("unchanged", step("unchanged")),
    "CPU s  ": ("unchanged", step("unchanged", "cpu_s")),
    "restore, MiB/s": ("restore", lambda c: c["bytes"] / MIB / c["restore"]["wall_s"]),
    "CPU s   ": ("restore", step("restore", "cpu_s")),
    "newest alone, s": ("part", step("part")),
}
"""Heads (told apart by their blanks) with the step that each needs."""


def _ratios(results: Results, name: str, tools: dict[str, list[Cycle]]) -> list[str]:
    """Every peer's seconds as a multiple of those of each way to start SpotWarp."""
    peers, ours = [tool for tool in tools if tool not in OURS], [tool for tool in tools if tool in OURS]
    rows = [
        [f"{words}, {own}", *(_spread(paired(results, name, peer, own, step(key))) for peer in peers)]
        for key, words in STEPS.items()
        for own in ours
        if all(key in cycle for tool in (own, *peers) for cycle in tools[tool])
    ]
    return [_table(["time as a multiple of SpotWarp's", *peers], rows)] if peers and rows else []


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


def _daemon(measured: dict[str, Any]) -> str:
    return "\n\n".join(
        [
            f"## daemon: a sync without a change in a run at work, {measured['files']} files",
            f"Seconds: {_spread(measured['seconds'])}; CPU seconds of the agent: {_spread(measured['cpu_s'])}.",
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


_METHOD = """## How it is measured

- Each command is run as a user types it, in a process of its own, Python's start included; where nothing else is said,
  to a directory on the same disk as the workspace. Ratios are taken cycle by cycle; restic does most nearly the same.
- The tools take turns, another one first in each cycle. All see the same files, moved by rename, never copied (in
  memory: copied); what a step reads is in the page cache before it starts; nothing is left to be written back; free
  memory is host-backed.
- Every restore is compared with the workspace, byte by byte; for all but mirrors also modes and times.
- Directories are new in each cycle; those with many files are deleted after the last: ext4 is slow beside freshly
  deleted trees.
- restic encrypts; of SpotWarp only the row that says so. Both wait until a backup is on the disk. SpotWarp's restore
  does too, the others' do not. A SpotWarp backup here is a whole life: it claims the run, stores, reads back what it
  stored, seals.
- A mirror's `stored for it` is its growth: it keeps no history.
- Bytes and objects are the same on a busy machine and a quiet one, CPU seconds nearly, seconds are not."""
