"""A bucket and machines around it, made anew for each death, on a file system in memory where there is one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from spotwarp.testing import session
from spotwarp.testing.crash import Ended, Forks
from spotwarp.testing.trees import Node, read_tree

MEMORY = Path("/dev/shm")  # noqa: S108 - made unique below
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
    """A repository (in a directory, unless `remote` names another place), a workspace that is stored in it, and an
    auditor who only looks. `env` is added to the environment of everything that is called."""

    def __init__(
        self, root: Path, forks: Forks, *, remote: str | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.root, self.template = root / "world", root / "template"
        self.workspace, self.auditor = self.root / "workspace", self.root / "auditor"
        self.output = ""
        self._forks, self._env, self._told = forks, dict(env or {}), self.root / "told"
        for directory in (self.workspace, self.auditor):
            directory.mkdir(parents=True)
            made = self.spotwarp(directory, ["init", "--remote-path", remote or str(self.root / "bucket")])
            assert made == [0], self.output

    def keep(self) -> None:
        """Let `anew` come back to this."""
        self.root.rename(self.template)

    def anew(self) -> None:
        """Go back to what was kept."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.template, self.root, symlinks=True)

    def spotwarp(self, directory: Path, *lines: list[str]) -> list[int]:
        """The command line in `directory`, once for each of `lines`; the exit codes. `output` is what was said."""
        ended = self._forks.run("spotwarp", directory=str(directory), lines=lines, env=self._env)
        assert ended.code == 0, ended.output
        self.output = ended.output
        codes: list[int] = ended.value
        return codes

    def session(self, **death: object) -> Ended:
        """A session of several syncs in the workspace, which may be its death; see `session.session`."""
        return self._forks.run("session", workspace=str(self.workspace), told=str(self._told), env=self._env, **death)

    def dying(self, line: list[str], *, calls: str, at: int = 0, after: bool = False) -> Ended:
        """One verb in the workspace, which may be its death; see `session.dying`."""
        return self._forks.run("dying", directory=str(self.workspace), line=line, calls=calls, at=at, after=after)

    def acknowledged(self) -> int:
        """How many snapshots of the session were acknowledged."""
        return len(self._told.read_bytes().splitlines()) if self._told.exists() else 0

    def audited(self) -> Tree | None:
        """What a fresh process restores elsewhere, after it has found every kept byte whole; None: nothing is kept."""
        target = self.root / "restored"
        shutil.rmtree(target, ignore_errors=True)
        whole, restored = self.spotwarp(self.auditor, ["check", "--read-data"], ["restore", "--to", str(target)])
        assert whole in (0, 10), self.output
        assert restored in (0, 10), self.output
        return tree(target) if restored == 0 else None


@contextmanager
def forks() -> Iterator[tuple[Path, Forks]]:
    """A directory for worlds, in memory where that is possible, and who works in them. Nothing of it is left."""
    memory = MEMORY if MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="spotwarp-", dir=memory) as scratch,
        Forks(session.__name__, Path(scratch)) as made,
    ):
        yield Path(scratch), made
