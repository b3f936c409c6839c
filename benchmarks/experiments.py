"""Which tools meet which workload, where, and in which steps. Data, and the one cycle that they all go through."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import measure, trees, workloads
from benchmarks.tools import TOOLS, Bucket, Place, Tool
from benchmarks.workloads import Data, Workload

_RAM = Path("/dev/shm")
_MEMORY = {"ram": 1 << 30, "workspace": 3 << 29, "lora": 1 << 30, "logs": 1 << 28}
"""Bytes of free memory to be had before each step; 3 GiB where nothing is said."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One workload, the tools that store it, and what is done with it."""

    name: str
    make: Callable[[Data], Workload]
    tools: tuple[str, ...]
    steps: tuple[str, ...]
    cycles: int = 5
    """How often, unless told otherwise; once is enough where only bytes count."""
    where: str = "disk"
    """`disk`, `ram` (source and repository) or `s3` (a server on this machine)."""


EXPERIMENTS = {
    one.name: one
    for one in (
        Experiment(
            *("full50", lambda data: workloads.full(data, steps=50)),
            ("raw", "planes", "delta", "restic", "rclone", "cp"),
            ("first", "again", "unchanged", "restore", "part"),
        ),
        Experiment(
            *("ram", lambda data: workloads.full(data, steps=50)),
            tools=("raw", "planes-1", "planes-2", "encrypted", "restic", "rclone"),
            steps=("first",),
            where="ram",
        ),
        Experiment(
            *("full", lambda data: workloads.full(data, steps=1), ("planes", "delta", "restic", "hf-xet")),
            steps=("first", "again"),
            cycles=1,
        ),
        Experiment(
            *("lora", workloads.lora, ("planes", "delta", "restic", "hf-xet")),
            steps=("first", "again", "restore"),
        ),
        Experiment(*("inplace", workloads.in_place, ("spotwarp", "restic")), steps=("first", "again", "restore")),
        Experiment(*("logs", workloads.logs, ("spotwarp", "restic")), steps=("first", "again", "restore"), cycles=1),
        Experiment(
            *("workspace", workloads.small_files, ("spotwarp", "restic", "rclone", "cp")),
            steps=("first", "again", "unchanged", "restore"),
        ),
        Experiment(*("s3-lora", workloads.lora, ("planes", "s5cmd", "restic")), steps=("first", "restore"), where="s3"),
        Experiment(
            *("s3-full50", lambda data: workloads.full(data, steps=50), ("planes", "s5cmd", "restic")),
            steps=("first", "restore"),
            where="s3",
        ),
    )
}


def compare(experiment: Experiment, run: Path, data: Data, cycles: int) -> dict[str, Any]:
    """All cycles of all tools, in turn, another one first each time; results as JSON. Raises `CommandFailed`."""
    workload = experiment.make(data)
    tools = [TOOLS[name] for name in experiment.tools]
    found: dict[str, list[dict[str, Any]]] = {tool.name: [] for tool in tools}
    for cycle in range(cycles):
        first = cycle % len(tools)
        for turn, tool in enumerate(tools[first:] + tools[:first], cycle * len(tools) + 1):
            label = f"{experiment.name}-{cycle}-{tool.name}"
            with _place(experiment, run, label) as at:
                measured = _Cycle(experiment, workload, tool, at, turn, quick=data.quick).run()
            found[tool.name].append(measured)
            steps = "  ".join(
                f"{step} {measured[step]['wall_s']:.2f} s" for step in experiment.steps if step in measured
            )
            print(f"{experiment.name:10} cycle {cycle + 1}  {tool.name:9} {steps}", flush=True)
    return {"what": workload.what, "where": experiment.where, "steps": experiment.steps, "tools": found}


@contextmanager
def _place(experiment: Experiment, run: Path, label: str) -> Iterator[Place]:
    """A place for one cycle. Few big files are deleted after it, since their room is needed."""
    root = (_RAM / f"bench-{os.getpid()}" if experiment.where == "ram" else run) / label
    folders = [root / name for name in ("source", "repository", "restored", "caches")]
    for folder in folders:
        folder.mkdir(parents=True)
    at = Place(*folders)
    try:
        if experiment.where == "s3":
            from spotwarp.testing.seaweed import seaweed

            (root / "seaweed").mkdir()
            with seaweed(root / "seaweed") as server:
                bucket = Bucket(server.endpoint, "spotwarp", "bench", {**server.env(), "AWS_REGION": "us-east-1"})
                yield Place(*folders, bucket)
        else:
            yield at
    finally:
        if experiment.name != "workspace":
            shutil.rmtree(root, ignore_errors=True)
        if experiment.where == "ram":
            root.parent.rmdir()


@dataclass(frozen=True, slots=True)
class _Cycle:
    """One tool's life with one workload."""

    experiment: Experiment
    workload: Workload
    tool: Tool
    at: Place
    turn: int
    quick: bool

    def run(self) -> dict[str, Any]:
        """The steps measured, and what was stored."""
        at, tool, workload = self.at, self.tool, self.workload
        workload.begin(at.source, self.turn)
        try:
            for command in tool.prepare(at):
                measure.run(command, self._log)
            facts: dict[str, Any] = {"bytes_first": trees.measured(at.source)[0]}
            facts["first"] = self._timed(tool.store(at), at.source)
            facts["stored_first"], facts["objects_first"] = at.stored()
            if "again" in self.steps:
                workload.change(at.source, self.turn)
                facts["again"] = self._timed(tool.store(at), at.source)
            facts["bytes"], facts["files"] = trees.measured(at.source)
            facts["stored"], facts["objects"] = at.stored()
            if "unchanged" in self.steps:
                facts["unchanged"] = self._timed(tool.store(at), at.source)
            if "restore" in self.steps:
                facts["restore"] = self._timed(tool.restore(at), at.repository)
                if wrong := trees.differences(at.source, at.restored, exact=tool.exact):
                    raise measure.CommandFailed(f"{tool.name} did not restore {len(wrong)} paths, such as {wrong[:3]}")
            if "part" in self.steps and tool.part is not None:
                facts["part"] = self._timed(tool.part(at, workload.newest), at.repository)
                facts["part_bytes"] = trees.measured(at.source / workload.newest)[0]
                shutil.rmtree(f"{at.restored}.part", ignore_errors=True)
            return facts
        finally:
            workload.end(at.source, self.turn)

    @property
    def steps(self) -> Sequence[str]:
        return self.experiment.steps

    @property
    def _log(self) -> Path:
        return self.at.source.parent / "log"

    def _timed(self, command: measure.Command, reads: Path) -> dict[str, float]:
        trees.read(reads)
        measure.settle(1 << 28 if self.quick else _MEMORY.get(self.experiment.name, 3 << 30))
        return asdict(measure.run(command, self._log))
