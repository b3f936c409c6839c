"""What must hold, judged from results alone. Pure: no clock, no disk, no process."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Results = dict[str, Any]
"""What `python -m benchmarks` writes as JSON."""

OURS = "spotwarp"
PEER = "restic"


@dataclass(frozen=True, slots=True)
class Target:
    """One promise: a figure per cycle or pair, the median of which must not lie beyond the bound."""

    what: str
    bound: float
    at_least: bool
    unit: str
    figures: Callable[[Results], list[float]]


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
        if not self.figures:
            return False
        return self.median >= self.target.bound if self.target.at_least else self.median <= self.target.bound


def judge(results: Results) -> list[Verdict]:
    """Every target, met or not."""
    return [Verdict(target, tuple(target.figures(results))) for target in TARGETS]


def paired(results: Results, workload: str, step: str, over: str, under: str) -> list[float]:
    """`over`'s wall seconds of `step` as a multiple of `under`'s, cycle by cycle; empty when one is missing."""
    tools = results["workloads"].get(workload, {}).get("tools", {})
    pairs = zip(tools.get(over, ()), tools.get(under, ()), strict=False)
    return [one[step]["wall_s"] / other[step]["wall_s"] for one, other in pairs]


def _faster(workload: str, step: str) -> Callable[[Results], list[float]]:
    return lambda results: paired(results, workload, step, PEER, OURS)


def _longer(workload: str, step: str) -> Callable[[Results], list[float]]:
    return lambda results: paired(results, workload, step, OURS, PEER)


def _peaks(results: Results) -> list[float]:
    """The highest memory of each workload: one bad cycle is one too many, so it is not the median of cycles."""
    return [
        max(sample["peak_mib"] for cycle in workload["tools"][OURS] for sample in cycle.values() if _is_sample(sample))
        for workload in results["workloads"].values()
        if workload["tools"].get(OURS)
    ]


def _peak(results: Results) -> list[float]:
    return [max(peaks)] if (peaks := _peaks(results)) else []


def _is_sample(value: object) -> bool:
    return isinstance(value, dict) and "peak_mib" in value


def _slowdown(results: Results) -> list[float]:
    pairs = results.get("slowdown", {}).get("pairs", ())
    return [100 * (pair["with"]["seconds"] / pair["bare"]["seconds"] - 1) for pair in pairs]


def _data_requests(results: Results) -> list[float]:
    hour = results.get("requests", {}).get("hour")
    return [] if hour is None else [sum(count for kind, count in hour.items() if kind not in _IDLE)]


def _heartbeats(results: Results) -> list[float]:
    hour = results.get("requests", {}).get("hour")
    return [] if hour is None else [hour.get("PUT beats", 0.0)]


_IDLE = ("PUT beats", "GET log")

TARGETS = (
    Target("first backup, full50: rate, times restic's", 2.5, True, "x", _faster("full50", "first")),
    Target(
        "backup without a change, 20,000 files: time, times restic's",
        1.0,
        False,
        "x",
        _longer("workspace", "unchanged"),
    ),
    Target("restore, full50: rate, times restic's", 1.5, True, "x", _faster("full50", "restore")),
    Target("restore, 20,000 files: rate, times restic's", 1.5, True, "x", _faster("workspace", "restore")),
    Target("peak memory of any step", 250, False, "MiB", _peak),
    Target("a one-core trainer's loss to `spotwarp run`", 2, False, "%", _slowdown),
    Target("requests of an idle hour besides heartbeats and looks at the log's end", 0, False, "", _data_requests),
    Target("heartbeats of an idle hour", 720, False, "", _heartbeats),
)
