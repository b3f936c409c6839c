"""What must hold, judged from results alone: one table. Pure: no clock, no disk, no process.

A figure is measured once for each cycle, tools against each other within it. Where two tools take about the same time,
CPU seconds and bytes are judged, which a busy machine does not change.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Results = dict[str, Any]
"""What `python -m benchmarks` writes as JSON."""
Figures = Callable[[Results], list[float]]
"""One for each cycle; empty when something for it was not measured."""
Value = Callable[[dict[str, Any]], float]
"""Of one tool's cycle."""

OURS = ("spotwarp", "raw", "planes", "delta", "planes-1", "planes-2", "encrypted")
"""SpotWarp, as a user starts it in one way or another."""
_IDLE = ("PUT beats", "GET log")


@dataclass(frozen=True, slots=True)
class Target:
    """One promise: the median of its figures must not lie beyond the bound. The goal is what is aimed at."""

    number: str
    what: str
    bound: float
    at_least: bool
    figures: Figures
    goal: float | None = None
    unit: str = "×"
    needs: tuple[str, ...] = ()
    """The experiments that it is judged by."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what was measured; no figures when it was not."""

    target: Target
    figures: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of the figures."""
        return statistics.median(self.figures)

    @property
    def met(self) -> bool:
        """Whether it was measured and holds."""
        return bool(self.figures) and self.lacks <= 0

    @property
    def lacks(self) -> float:
        """By which part of the bound it is missed; negative when it holds with room to spare."""
        beyond = self.target.bound - self.median if self.target.at_least else self.median - self.target.bound
        return beyond / self.target.bound if self.target.bound else beyond


def judge(results: Results) -> list[Verdict]:
    """Every target, met or not."""
    return [Verdict(target, tuple(target.figures(results))) for target in TARGETS]


def needs(number: str) -> list[str]:
    """The experiments behind all targets of a number."""
    return [name for target in TARGETS if target.number == number for name in target.needs]


def cycles(results: Results, experiment: str, tool: str) -> list[dict[str, Any]]:
    """What was measured of a tool; empty when nothing was."""
    found: list[dict[str, Any]] = results["workloads"].get(experiment, {}).get("tools", {}).get(tool, [])
    return found


def paired(results: Results, experiment: str, over: str, under: str, value: Value) -> list[float]:
    """`value` of `over` as a multiple of `under`'s, cycle by cycle."""
    both = zip(cycles(results, experiment, over), cycles(results, experiment, under), strict=False)
    return [value(one) / value(two) for one, two in both]


def step(name: str, key: str = "wall_s") -> Value:
    """A figure of a step: seconds, CPU seconds (`cpu_s`), memory (`peak_mib`)."""
    return lambda cycle: float(cycle[name][key])


def later(cycle: dict[str, Any]) -> float:
    """Bytes stored by the second backup."""
    return float(cycle["stored"] - cycle["stored_first"])


def _times(experiment: str, over: str, under: str, value: Value) -> Figures:
    return lambda results: paired(results, experiment, over, under, value)


def _appended(results: Results) -> list[float]:
    """Bytes stored for each byte that the logs grew."""
    found = cycles(results, "logs", "spotwarp")
    return [later(cycle) / (cycle["bytes"] - cycle["bytes_first"]) for cycle in found]


def _part(results: Results) -> list[float]:
    """The newest checkpoint's share of a restore's time, as a multiple of its share of the bytes."""
    found = [cycle for cycle in cycles(results, "full50", "planes") if "part" in cycle]
    return [
        cycle["part"]["wall_s"] / cycle["restore"]["wall_s"] * cycle["bytes"] / cycle["part_bytes"] for cycle in found
    ]


def _peak(experiment: str, tool: str) -> Figures:
    """The tool's highest memory as a multiple of restic's."""

    def peak(cycle: dict[str, Any]) -> float:
        return max(sample["peak_mib"] for sample in cycle.values() if isinstance(sample, dict))

    return _times(experiment, tool, "restic", peak)


def _extra_cpu(results: Results) -> list[float]:
    """CPU seconds that encryption adds to a coded backup, in percent."""
    return [100 * (ratio - 1) for ratio in paired(results, "ram", "encrypted", "planes-2", step("first", "cpu_s"))]


def _best_of_workers(results: Results) -> list[float]:
    """What two coding threads bring: the best pair, since the machine's noise only ever takes away."""
    ratios = paired(results, "ram", "planes-1", "planes-2", step("first"))
    return [max(ratios)] if ratios else []


def _slowdown(results: Results) -> list[float]:
    pairs = results.get("slowdown", {}).get("pairs", ())
    return [100 * (pair["with"]["seconds"] / pair["bare"]["seconds"] - 1) for pair in pairs]


def _in_the_daemon(results: Results) -> list[float]:
    """Seconds of a sync without a change in a run at work, as a multiple of restic's whole command."""
    own = results.get("daemon", {}).get("seconds", ())
    theirs = [cycle["unchanged"]["wall_s"] for cycle in cycles(results, "workspace", "restic")]
    return [statistics.median(own) / statistics.median(theirs)] if own and theirs else []


def _hour(count: Callable[[dict[str, float]], float]) -> Figures:
    def figures(results: Results) -> list[float]:
        hour = results.get("requests", {}).get("hour")
        return [] if hour is None else [count(hour)]

    return figures


def _least(number: str, what: str, bound: float, pair: str, value: Value, goal: float | None = None) -> Target:
    """The first of a `pair` (experiment, tool, tool) has at least `bound` times the second's value."""
    return Target(number, what, bound, True, _times(*pair.split(), value), goal, needs=(pair.split()[0],))


def _most(number: str, what: str, bound: float, pair: str, value: Value) -> Target:
    """As `_least`, but at most."""
    return Target(number, what, bound, False, _times(*pair.split(), value), needs=(pair.split()[0],))


def _stored(cycle: dict[str, Any]) -> float:
    return float(cycle["stored"])


def _objects(cycle: dict[str, Any]) -> float:
    return float(cycle["objects"])


def _more_than_idle(hour: dict[str, float]) -> float:
    return sum(count for kind, count in hour.items() if kind not in _IDLE)


_FIRST, _AGAIN, _SAME, _RESTORE = (step(name) for name in ("first", "again", "unchanged", "restore"))

TARGETS = (
    _least("T1", "first backup, coded, full50: restic's time", 4.5, "full50 restic planes", _FIRST, 6),
    _least("T1", "… restic's CPU seconds", 5, "full50 restic planes", step("first", "cpu_s"), 6),
    _least("T2", "first backup, raw, full50, fsync: restic's time", 5, "full50 restic raw", _FIRST),
    _least("T2", "… in memory: restic's time", 8, "ram restic raw", _FIRST),
    _least("T2", "… in memory: rclone's time", 2.5, "ram rclone raw", _FIRST),
    _most("T3", "bytes of a later checkpoint, delta, full50: of restic's", 0.65, "full50 delta restic", later),
    _most("T3", "… full, one step apart", 0.56, "full delta restic", later),
    _most("T3", "… lora", 0.78, "lora delta restic", later),
    _most("T3", "… planes, full50", 0.80, "full50 planes restic", later),
    _most("T3", "… planes, full", 0.80, "full planes restic", later),
    _most("T3", "… planes, lora", 0.84, "lora planes restic", later),
    _least("T4", "1 % of 1 GiB rewritten: restic's bytes", 40, "inplace restic spotwarp", later),
    _least("T4", "… restic's time", 8, "inplace restic spotwarp", _AGAIN),
    Target("T5", "appended logs: bytes stored for a byte appended", 0.3, False, _appended, needs=("logs",)),
    _least("T6", "20,000 files, first backup: restic's time", 5.5, "workspace restic spotwarp", _FIRST, 6),
    _least("T6", "… rclone's time", 3.8, "workspace rclone spotwarp", _FIRST, 4),
    _least("T7", "20,000 files, no change: restic's time", 6, "workspace restic spotwarp", _SAME, 8),
    _least("T7", "… rclone's time", 2, "workspace rclone spotwarp", _SAME, 2.5),
    Target("T7", "… in a run at work: of restic's time", 0.12, False, _in_the_daemon, needs=("workspace", "daemon")),
    _least("T8", "20,000 files, restore: restic's time", 5, "workspace restic spotwarp", _RESTORE),
    _least("T8", "… cp's CPU seconds", 1, "workspace cp spotwarp", step("restore", "cpu_s")),
    _least("T9", "restore, coded, full50: restic's time", 2.5, "full50 restic planes", _RESTORE),
    _least("T9", "… rclone's time", 1.8, "full50 rclone planes", _RESTORE),
    Target("T10", "the newest checkpoint restored: of its share of the bytes", 1, False, _part, needs=("full50",)),
    Target(
        "T11",
        "peak memory, full50: of restic's",
        0.7,
        False,
        _peak("full50", "planes"),
        needs=("full50",),
    ),
    Target("T11", "… to S3: of restic's", 2, False, _peak("s3-full50", "planes"), needs=("s3-full50",)),
    _most("T12", "objects of two saves, full50: of restic's", 0.25, "full50 planes restic", _objects),
    _least("T13", "to SeaweedFS, lora: s5cmd's time", 1, "s3-lora s5cmd planes", _FIRST),
    _least("T13", "… full50", 1, "s3-full50 s5cmd planes", _FIRST),
    _most("T13", "… bytes, lora: of s5cmd's", 0.84, "s3-lora planes s5cmd", _stored),
    _most("T13", "… bytes, full50: of s5cmd's", 0.84, "s3-full50 planes s5cmd", _stored),
    _least("T13", "from SeaweedFS, lora: restic's time", 1.5, "s3-lora restic planes", _RESTORE),
    _least("T13", "… full50", 1.5, "s3-full50 restic planes", _RESTORE),
    Target("", "CPU seconds that encryption adds, full50, coded", 10, False, _extra_cpu, unit="%", needs=("ram",)),
    Target("", "two coding threads: one's time", 1.8, True, _best_of_workers, needs=("ram",)),
    Target("", "a one-core trainer's loss to `spotwarp run`", 2, False, _slowdown, unit="%", needs=("slowdown",)),
    Target("", "requests of an idle hour but heartbeats and looks", 0, False, _hour(_more_than_idle), unit=""),
    Target("", "heartbeats of an idle hour", 720, False, _hour(lambda hour: hour.get("PUT beats", 0.0)), unit=""),
)
"""In the words of the table: `X's time` is how many times ours it is, `of X's` is ours as a part of it."""
