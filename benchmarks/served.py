"""What a run asks of a real S3 server: how many requests an idle hour makes, and how long a notice needs.

Both go over loopback to SeaweedFS, through a counting proxy or a slow link. Every byte that is moved is random: nothing
is gained by compression.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.link import slow_link
from benchmarks.tools import Place
from benchmarks.workloads import generate
from spotwarp.testing.faultproxy import Seen, fault_proxy
from spotwarp.testing.seaweed import Seaweed, seaweed

MIB = 1 << 20
_KINDS = re.compile(r"/(log|beats|packs|manifests|telemetry|hint|config|names)(?:/|$)")
_WAIT = "trap 'exit 0' TERM; while true; do sleep 0.1; done"


@dataclass(frozen=True, slots=True)
class Idle:
    """How long to count, in seconds, and how many files lie there."""

    seconds: float = 120
    files: int = 10_000


@dataclass(frozen=True, slots=True)
class Notices:
    """Sizes to move (MiB) over links of so many MiB a second."""

    sizes: tuple[int, ...] = (4, 32, 128, 512)
    rates: tuple[int, ...] = (25, 100)


def requests(work: Path, idle: Idle) -> dict[str, Any]:
    """Requests in an idle hour at defaults, by kind, reckoned from a window after everything is stored."""
    with _server(work) as server:
        at = _place(work / "idle", server, "idle")
        for number in range(idle.files):
            path = at.source / f"data/{number % 100}/{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{number}\n")
        with fault_proxy(server.port) as proxy:
            run = _Run(at, server.env(endpoint=proxy.endpoint), "--command", _WAIT)
            run.wait_for(lambda: any(_kind(seen) == "PUT telemetry" for seen in proxy.seen))
            proxy.forget()
            cpu_s = -run.cpu_s()
            time.sleep(idle.seconds)
            seen, cpu_s = proxy.seen, cpu_s + run.cpu_s()
            run.end()
    hour = {kind: count * 3600 / idle.seconds for kind, count in sorted(Counter(map(_kind, seen)).items())}
    return {"seconds": idle.seconds, "files": idle.files, "hour": hour, "cpu_s_hour": cpu_s * 3600 / idle.seconds}


def daemon(work: Path, files: int, syncs: int) -> dict[str, Any]:
    """Seconds of a sync in a run at work where nothing has changed, and what it costs the agent; to a directory."""
    from spotwarp.execution.control_socket import ask

    at = Place(*(work / name for name in ("source", "repository", "restored", "caches")))
    for folder in (at.source, at.repository, at.caches):
        folder.mkdir(parents=True)
    measure.run(at.command("spotwarp", "init", "--remote-path", at.repository), work / "log")
    generate("workspace", at.source, "--files", files)
    run = _Run(at, {}, "--interval", "1h", "--command", _WAIT)
    run.wait_for(run.stored)
    spent: list[tuple[float, float]] = []
    for _ in range(syncs + 1):  # the first one still reads what is too young to be believed
        cpu_s, started = run.cpu_s(), time.perf_counter()
        answer = ask(at.source, {"verb": "sync", "run": None})
        if answer is None or "error" in answer:
            raise measure.CommandFailed(f"sync: {answer}\n{run.said()[-2000:]}")
        spent.append((time.perf_counter() - started, run.cpu_s() - cpu_s))
        time.sleep(0.5)
    run.end()
    return {"files": files, "seconds": [s for s, _ in spent[1:]], "cpu_s": [c for _, c in spent[1:]]}


def notices(work: Path, asked: Notices) -> dict[str, Any]:
    """Seconds from a notice (SIGTERM) to the end of the agent, with everything stored and read back."""
    points: list[dict[str, float]] = []
    with _server(work) as server:
        for rate in asked.rates:
            for mib in asked.sizes:
                at = _place(work / f"{rate}-{mib}", server, f"{rate}-{mib}")
                points.append({"rate": rate, "mib": mib, "seconds": _notice(server, at, mib, rate)})
                print(f"notice     {mib} MiB at {rate} MiB/s: {points[-1]['seconds']:.2f} s", flush=True)
    fits = {str(rate): _line([(p["mib"], p["seconds"]) for p in points if p["rate"] == rate]) for rate in asked.rates}
    return {"points": points, "fits": fits}


def _notice(server: Seaweed, at: Place, mib: int, rate: int) -> float:
    with slow_link(server.port, rate * MIB) as port:
        env = server.env(endpoint=f"http://127.0.0.1:{port}")
        run = _Run(at, env, "--interval", "1h", "--grace", "10m", "--command", _WAIT)
        run.wait_for(run.stored)
        (at.source / "new.bin").write_bytes(os.urandom(mib * MIB))
        started = time.perf_counter()
        run.end(75)
        return time.perf_counter() - started


class _Run:
    """`spotwarp run` in the background, its words in a file."""

    def __init__(self, at: Place, env: dict[str, str], *words: str) -> None:
        command = at.command("spotwarp", "run", *words)
        self._at, self._log = at, at.caches / "run.log"
        self._env = {**command.env, **env}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command.argv, cwd=command.cwd, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def stored(self) -> bool:
        """Whether the first snapshot stands: the workspace then knows which one it stems from."""
        try:
            return bool(json.loads((self._at.source / ".spotwarp/state.json").read_text())["snapshot"])
        except (FileNotFoundError, KeyError):
            return False

    def cpu_s(self) -> float:
        """CPU seconds of the agent so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Until it holds; `CommandFailed` when the run ends before."""
        while not condition():
            if self._process.poll() is not None:
                raise measure.CommandFailed(self.said()[-2000:])
            time.sleep(0.05)

    def end(self, code: int = 75) -> None:
        """A notice, and the end."""
        self._process.send_signal(signal.SIGTERM)
        if self._process.wait() != code:
            raise measure.CommandFailed(self.said()[-2000:])


@contextmanager
def _server(work: Path) -> Iterator[Seaweed]:
    root = work / "seaweed"
    root.mkdir(parents=True)
    with seaweed(root) as server:
        yield server


def _place(root: Path, server: Seaweed, name: str) -> Place:
    """A new workspace, initialised."""
    at = Place(root / "source", root / "repository", root / "restored", root / "caches")
    for folder in (at.source, at.caches):
        folder.mkdir(parents=True)
    command = at.command("spotwarp", "init", "--remote-path", f"s3://spotwarp/{name}")
    command.env.update(server.env())
    measure.run(command, root / "log")
    return at


def _kind(seen: Seen) -> str:
    path, _, query = seen.path.partition("?")
    if "list-type" in query:
        return "LIST"
    found = _KINDS.search(path)
    return f"{seen.verb} {found[1] if found else 'other'}"


def _line(points: list[tuple[float, float]]) -> dict[str, float]:
    """The line of least squares: seconds = `base_s` + MiB / `mib_s`."""
    count = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    return {"base_s": mean_y - slope * mean_x, "mib_s": 1 / slope if slope > 0 else 0.0}
