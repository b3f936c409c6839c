"""The product as its users have it: `spotwarp` as a program, in directories that stand for machines.

Owns every process that a test starts: at the end none of them is left. Looks at nothing but exit codes, output, files,
and the store where a test waits for what it is to hold: a program for each look would be most of the work.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from spotwarp import config
from spotwarp.clock import SystemClock, SystemRng
from spotwarp.persistence.encryption.secret import given
from spotwarp.persistence.repository import open_repository, retained_snapshots
from spotwarp.persistence.store.url import open_store, parse_url
from spotwarp.persistence.view import snapshot_facts

MARK = "SPOTWARP_E2E_MACHINE"
SETTINGS = {
    "SPOTWARP_LEASE": "2s",
    "SPOTWARP_INTERVAL": "1s",
    "SPOTWARP_SETTLE": "200ms",
    "SPOTWARP_PATIENCE": "2s",
    "SPOTWARP_GRACE": "10s",
    "SPOTWARP_LINGER": "2s",
}


def until(condition: Callable[[], object], what: str = "it", seconds: float = 40.0) -> None:
    """Wait for a condition, no longer than `seconds`."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"waited in vain for {what}"
        time.sleep(0.02)


@dataclass(frozen=True)
class Done:
    """A verb that ended: its exit code and what it wrote."""

    code: int
    out: bytes
    err: str

    @property
    def json(self) -> Any:
        """What it printed, read as JSON."""
        return json.loads(self.out)


class Program:
    """A verb at work; its output goes to files, so that nobody has to read it for it to go on."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process, self._out, self._err = process, out, err

    @property
    def out(self) -> bytes:
        """Its standard output so far."""
        return self._out.read_bytes()

    @property
    def err(self) -> str:
        """Its standard error so far."""
        return self._err.read_text(errors="replace")

    def send(self, number: int) -> None:
        """Send it a signal; not to its command."""
        self.process.send_signal(number)

    def until(self, condition: Callable[[], object], what: str = "it", seconds: float = 40.0) -> None:
        """As `until`, but a program that ended before is said to have."""

        def met() -> bool:
            if condition():
                return True
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.err}"
            return False

        until(met, what, seconds)

    def end(self, code: int | None = None, seconds: float = 40.0) -> Done:
        """Wait for its end; `code` is what it must have left with."""
        self.process.wait(seconds)
        done = Done(self.process.returncode, self.out, self.err)
        assert "Traceback" not in done.err, done.err
        assert code is None or done.code == code, f"{done.code}, not {code}: {done.err}"
        return done


class Machine:
    """A machine with one workspace on it. `env` goes to every program started there."""

    def __init__(self, path: Path, remote: str, env: Mapping[str, str]) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path, self.remote, self._env = path, remote, dict(env)
        self._programs: list[Program] = []
        self._count = 0

    @property
    def env(self) -> dict[str, str]:
        """The environment of its programs, for one that is started by somebody else."""
        return {**self._env, MARK: str(self.path)}

    def file(self, name: str, content: str | bytes) -> Path:
        """Write a file in the workspace."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def start(
        self,
        *words: str,
        under: Sequence[str] = (),
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Program:
        """Start `spotwarp WORDS` in a session of its own, `under` a program such as `setpriv` that becomes it."""
        self._count += 1
        logs = self.path.with_name(f"{self.path.name}.logs")
        logs.mkdir(exist_ok=True)
        out, err = logs / f"{self._count}.out", logs / f"{self._count}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [*under, sys.executable, "-m", "spotwarp", *words],
                cwd=cwd or self.path,
                env={**self._env, **(env or {}), MARK: str(self.path)},
                **{"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": stderr, "start_new_session": True, **more},
            )
        program = Program(process, out, err)
        self._programs.append(program)
        return program

    def __call__(self, *words: str, code: int | None = 0, seconds: float = 60.0, **more: Any) -> Done:
        """Run `spotwarp WORDS` to its end, which must be `code` (None: any)."""
        return self.start(*words, **more).end(code, seconds)

    def facts(self, *words: str, code: int | None = 0) -> Any:
        """What `spotwarp WORDS --json` prints."""
        return self(*words, "--json", code=code).json

    def init(self) -> Machine:
        """Make the workspace."""
        self("init", "--remote-path", self.remote)
        return self

    def snapshots(self) -> list[dict[str, Any]]:
        """The snapshots that are kept, oldest first: what `spotwarp snapshots --json` prints, without the program."""
        clock, rng = SystemClock(), SystemRng()
        settings = config.load(self.path, env=self._env)
        store = open_store(parse_url(settings.remote_path, cwd=self.path), clock=clock, rng=rng, env=self._env)
        secret = given(self._env, settings.key_file, self.path)
        repository = open_repository(store, secret)
        log = repository.log(settings.run, life="look", clock=clock, rng=rng)
        head = log.head() if settings.run in repository.runs() else log.existing_head()
        return [json.loads(json.dumps(snapshot_facts(one))) for one in retained_snapshots(log, head.state)]

    def processes(self) -> list[psutil.Process]:
        """Every living process that was started here, whatever its parent is now."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == str(self.path) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def die(self) -> None:
        """The machine is gone: SIGKILL to all of it, first frozen so that nobody sees another's end."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in self.processes():
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)
        for program in self._programs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.process.wait(10)
