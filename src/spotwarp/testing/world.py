"""A bucket and machines around it, made anew for each death, on a file system in memory where there is one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spotwarp.testing import session
from spotwarp.testing.crash import Ended, Forks
from spotwarp.testing.trees import Node, read_tree

MEMORY = Path("/dev/shm")
OWN = b".spotwarp"
Tree = dict[bytes, Node]


def tree(directory: Path) -> Tree:
    """What is there, without SpotWarp's own."""
    return {path: node for path, node in read_tree(directory).items() if path.partition(b"/")[0] != OWN}


def states(scratch: Path) -> list[Tree | None]:
    """What each state of the workspace looks like; the first is nothing at all."""
    found: list[Tree | None] = [None]
    for state in range(1, session.STATES + 1):
        session.lay(scratch / "model", state)
        found.append(tree(scratch / "model"))
    return found


class World:
    """A bucket, a workspace that is stored in it, and an auditor who only looks."""

    def __init__(self, root: Path, forks: Forks) -> None:
        self.root, self.forks = root / "world", forks
        self.template = root / "template"
        self.told = self.root / "told"
        self.workspace, self.auditor = self.root / "workspace", self.root / "auditor"
        self.output = ""
        for directory in (self.workspace, self.auditor):
            self.machine(directory)

    def machine(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        assert self.spotwarp(directory, ["init", "--remote-path", str(self.root / "bucket")]) == [0], self.output

    def keep(self) -> None:
        """`anew` comes back to this."""
        self.root.rename(self.template)

    def anew(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.template, self.root, symlinks=True)

    def spotwarp(self, directory: Path, *lines: list[str]) -> list[int]:
        ended = self.forks.run("spotwarp", directory=str(directory), lines=lines)
        assert ended.code == 0, ended.output
        self.output = ended.output
        codes: list[int] = ended.value
        return codes

    def session(self, **death: object) -> Ended:
        return self.forks.run("session", workspace=str(self.workspace), told=str(self.told), **death)

    def dying(self, line: list[str], *, calls: str, at: int = 0, after: bool = False) -> Ended:
        """One verb in the workspace, which may be its death; see `session.dying`."""
        return self.forks.run("dying", directory=str(self.workspace), line=line, calls=calls, at=at, after=after)

    def acknowledged(self) -> int:
        return len(self.told.read_bytes().splitlines()) if self.told.exists() else 0

    def audited(self) -> Tree | None:
        """What a fresh process restores elsewhere, after it has found every kept byte whole; None: nothing is kept."""
        target = self.root / "restored"
        shutil.rmtree(target, ignore_errors=True)
        whole, restored = self.spotwarp(self.auditor, ["check", "--read-data"], ["restore", "--to", str(target)])
        assert whole in (0, 10), self.output
        assert restored in (0, 10), self.output
        return tree(target) if restored == 0 else None


@contextmanager
def world() -> Iterator[World]:
    """One, and nothing of it is left."""
    with tempfile.TemporaryDirectory(prefix="spotwarp-", dir=MEMORY if MEMORY.is_dir() else None) as scratch:
        with Forks(session.__name__, Path(scratch)) as forks:
            yield World(Path(scratch), forks)
