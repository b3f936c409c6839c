"""A workspace in which somebody writes, truncates, deletes, replaces and renames all the time while it is backed up.

Every content that ever existed is on record, with a number of its own in front, so that it is known wherever it turns
up: each restored file must be one version of what existed, or the beginning of one; and nothing that is still there
at the end may be missing from the last backup.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.persistence.backup import BackupOptions
from spotwarp.testing.backups import Backups
from spotwarp.testing.trees import read_tree

KIB, MIB = 1 << 10, 1 << 20
OPTIONS = BackupOptions(workers=2, pack_size=6 << 20)


class Mutator(threading.Thread):
    """Changes files beneath `root` until told to stop, and whenever it is poked; the seed says what comes when."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(daemon=True)
        self._turn = threading.Lock()
        self.root, self.stop, self.rounds = root, threading.Event(), 0
        self.error: BaseException | None = None
        self._chance = random.Random(seed)
        self._count = 0
        self.versions: dict[bytes, list[bytes]] = {}
        """By number: the longest content of a file, once for each time it began anew."""
        self._acts: list[Callable[[], None]] = [
            self.append, self.append, self.append, self.truncate, self.replace, self.create, self.delete,
            self.rename, self.rename_directory, self.swap, self.rewrite, self.rewrite,
        ]  # fmt: skip

    def begin(self) -> None:
        for directory in ("a", "a/b", "c"):
            (self.root / directory).mkdir(parents=True)
        self.create()
        self.rounds = 1
        for _ in range(12):
            self.create()

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self.poke()
                self.stop.wait(0.004)
        except BaseException as error:
            self.error = error
            raise

    def poke(self) -> None:
        """Do one thing more."""
        with self._turn:
            self._chance.choice(self._acts)()
            self.rounds += 1

    def _make(self, path: Path, size: int) -> None:
        self._count += 1
        number = b"%06d:" % self._count
        content = number + self._chance.randbytes(size)
        self.versions[number] = [content]
        path.write_bytes(content)

    def _files(self) -> list[Path]:
        return sorted(p for p in self.root.rglob("*") if p.is_file() and p.name != "new")

    def _biggest(self) -> Path:
        """It is read for the longest time."""
        return max(self._files(), key=lambda path: path.stat().st_size)

    def _place(self) -> Path:
        return self._chance.choice(sorted([self.root, *(p for p in self.root.rglob("*") if p.is_dir())]))

    def _free(self) -> Path:
        self._count += 1
        return self._place() / f"f{self._count}"

    def create(self) -> None:
        small = self.rounds and self._biggest().stat().st_size > 4 * MIB
        self._make(self._free(), self._chance.choice([0, 10, 5000, 255 * KIB, 300 * KIB]) if small else 5 * MIB)

    def append(self) -> None:
        """Grows by a piece; the record first, since the file may be read at any moment."""
        path = self._chance.choice(self._files())
        old = path.read_bytes()
        if len(old) < 7 or len(old) > 12 * MIB:
            return
        new = old + self._chance.randbytes(self._chance.choice([1, 4000, 70_000]))
        self.versions[old[:7]].append(new)
        with path.open("ab") as file:
            file.write(new[len(old) :])

    def truncate(self) -> None:
        path = self._chance.choice([*self._files(), self._biggest()])
        size = path.stat().st_size
        if size > 7:
            os.truncate(path, self._chance.randrange(max(7, size - 3 * MIB), size))

    def rewrite(self) -> None:
        """Another content of the same length, in place."""
        path = self._biggest()
        size = path.stat().st_size
        if size > 7:
            self._count += 1
            number = b"%06d:" % self._count
            self.versions[number] = [number + self._chance.randbytes(size - 7)]
            with path.open("r+b", buffering=0) as file:
                file.write(self.versions[number][0])

    def replace(self) -> None:
        """As careful programs write: another file, moved over the old one."""
        path = self._chance.choice(self._files())
        self._make(self.root / "new", self._chance.choice([100, 20_000, 400 * KIB]))
        (self.root / "new").rename(path)

    def delete(self) -> None:
        files = self._files()
        if len(files) > 8:
            self._chance.choice(files).unlink()

    def rename(self) -> None:
        self._chance.choice(self._files()).rename(self._free())

    def swap(self) -> None:
        """Two files change places."""
        one, two = self._chance.choice(self._files()), self._chance.choice(self._files())
        if one != two:
            one.rename(self.root / "new")
            two.rename(one)
            (self.root / "new").rename(two)

    def rename_directory(self) -> None:
        directories = sorted(p for p in self.root.iterdir() if p.is_dir())
        self._count += 1
        self._chance.choice(directories).rename(self.root / f"d{self._count}")


def disturb(monkeypatch: pytest.MonkeyPatch, mutator: Mutator) -> None:
    """Let every read be a short one, and now and then have something happen after it."""
    reads = iter(range(1 << 30))
    readv, read = os.preadv, os.pread

    def happen() -> None:
        if next(reads) % 3 == 0 and not mutator.stop.is_set():
            mutator.poke()

    def preadv(fd: int, views: list[memoryview], offset: int) -> int:
        [view] = views
        with view[: 1 << 20] as part:
            got = readv(fd, [part], offset)
        happen()
        return got

    def pread(fd: int, length: int, offset: int) -> bytes:
        data = read(fd, min(length, 100_000), offset)
        happen()
        return data

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(os, "pread", pread)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(2, 12))])
def test_each_file_is_a_version_of_what_existed(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "w"
    mutator = Mutator(work, seed)
    mutator.begin()
    backups = Backups(work, options=OPTIONS)
    mutator.start()
    try:
        for cycle in range(3):
            with monkeypatch.context() as patch:
                disturb(patch, mutator)
                uploaded = backups.take()
            restored = tmp_path / f"r{cycle}"
            backups.restored(restored)
            unstable = set(uploaded.unstable)
            for path in restored.rglob("*"):
                if not path.is_file() or os.fsencode(path.relative_to(restored)) in unstable:
                    continue
                content = path.read_bytes()
                versions = mutator.versions.get(content[:7], [])
                known = len(content) < 7 or any(version.startswith(content) for version in versions)
                assert known, f"{path.name}: {len(content)} bytes, {content[:7]!r}"
    finally:
        mutator.stop.set()
        mutator.join(60)
    assert mutator.error is None
    assert mutator.rounds > 10
    backups.take(always=True)
    assert backups.restored(tmp_path / "end") == read_tree(work)
