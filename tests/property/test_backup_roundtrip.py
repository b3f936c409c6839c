"""Whatever is done to a workspace between two backups, each restores to what the workspace was, byte for byte."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spotwarp.persistence.backup import BackupOptions
from spotwarp.persistence.statcache import StatCache
from spotwarp.testing.backups import Backups
from spotwarp.testing.trees import read_tree

KIB = 1 << 10

names = st.sampled_from([b"a", b"b", b"checkpoint-1", b"caf\xe9", b"x\ny", b"a.txt", b"model.bin"])
directories = st.lists(names, max_size=2).map(b"/".join)
sizes = st.sampled_from([0, 1, 100, 5000, 256 * KIB - 1, 256 * KIB, 4096 * KIB, 4096 * KIB + 1, 9000 * KIB])
seeds = st.integers(0, 3)


def content(size: int, seed: int) -> bytes:
    """Zeros, text or noise; the same seed gives the same beginning."""
    if seed == 0:
        return bytes(size)
    if seed == 1:
        return (b"step 1 loss 0.5\n" * (size // 16 + 1))[:size]
    import random

    return random.Random(seed).randbytes(size)


class Workspace(RuleBasedStateMachine):
    """A person and a trainer at work, and backups in between."""

    @initialize()
    def begin(self) -> None:
        self.home = Path(tempfile.mkdtemp())
        self.root = os.fsencode(self.home / "w")
        os.mkdir(self.root)  # noqa: PTH102 - bytes
        self.backups = Backups(self.home / "w", options=BackupOptions(workers=2, pack_size=6 << 20))
        self.restores = 0

    def teardown(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    def _attempt(self, act: Callable[[], object]) -> None:
        """What the file system refuses (a file where a directory must be) is simply not done."""
        try:
            act()
        except OSError:
            return

    @rule(directory=directories, name=names, size=sizes, seed=seeds)
    def write(self, directory: bytes, name: bytes, size: int, seed: int) -> None:
        def act() -> None:
            os.makedirs(self.root + b"/" + directory, exist_ok=True)  # noqa: PTH103 - bytes
            with open(self.root + b"/" + directory + b"/" + name, "wb") as file:  # noqa: PTH123 - bytes
                file.write(content(size, seed))

        self._attempt(act)

    @rule(directory=directories, name=names, at=sizes, seed=seeds)
    def edit(self, directory: bytes, name: bytes, at: int, seed: int) -> None:
        """In place; beyond the end it leaves a hole."""

        def act() -> None:
            with open(self.root + b"/" + directory + b"/" + name, "r+b") as file:  # noqa: PTH123 - bytes
                file.seek(at)
                file.write(content(10, seed + 1))

        self._attempt(act)

    @rule(directory=directories, name=names, size=sizes)
    def truncate(self, directory: bytes, name: bytes, size: int) -> None:
        self._attempt(lambda: os.truncate(self.root + b"/" + directory + b"/" + name, size))

    @rule(old=directories, new=directories)
    def rename(self, old: bytes, new: bytes) -> None:
        self._attempt(lambda: os.rename(self.root + b"/" + old, self.root + b"/" + new))  # noqa: PTH104 - bytes

    @rule(directory=directories, name=names, to=names)
    def link(self, directory: bytes, name: bytes, to: bytes) -> None:
        self._attempt(lambda: os.symlink(to, self.root + b"/" + directory + b"/" + name))  # noqa: PTH211 - bytes

    @rule(path=directories.filter(bool))
    def remove(self, path: bytes) -> None:
        where = self.root + b"/" + path
        self._attempt(lambda: shutil.rmtree(where))
        self._attempt(lambda: os.unlink(where))  # noqa: PTH108 - bytes

    @rule(path=directories.filter(bool), mode=st.sampled_from([0o600, 0o644, 0o755, 0o500, 0o1777]))
    def chmod(self, path: bytes, mode: int) -> None:
        where = Path(os.fsdecode(self.root + b"/" + path))
        if not where.is_symlink():
            self._attempt(lambda: where.chmod(mode))

    @rule()
    def lose_the_cache(self) -> None:
        self.backups.cache = StatCache()

    @rule()
    def save_and_load_the_cache(self) -> None:
        path = self.home / "cache"
        assert self.backups.cache.save(path, self.home / "w")
        size = len(self.backups.cache)
        self.backups.cache = StatCache.load(path, self.home / "w")
        assert len(self.backups.cache) == size

    @rule()
    def back_up(self) -> None:
        self.backups.take(always=True)
        self.restores += 1
        into = self.home / f"r{self.restores}"
        assert self.backups.restored(into) == read_tree(self.home / "w")
        shutil.rmtree(into)

    @precondition(lambda self: self.restores > 0)
    @rule()
    def back_up_twice(self) -> None:
        self.back_up()
        puts = self.backups.calls.count("put")
        assert self.backups.take().unchanged
        assert self.backups.calls.count("put") == puts

    @invariant()
    def only_what_was_given_is_in_the_store(self) -> None:
        if hasattr(self, "backups"):
            assert all("/packs/" in call.key or "/manifests/" in call.key for call in self.backups.calls.calls)


TestWorkspace = Workspace.TestCase
TestWorkspace.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
