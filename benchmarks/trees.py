"""What lies beneath a directory: sizes, counts, and whether two of them hold the same."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

_PIECE = 1 << 20


def files(root: Path) -> Iterator[Path]:
    """Every file and link beneath `root`, nothing of SpotWarp's own directory."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != ".spotwarp"]
        yield from (Path(folder, name) for name in names)


def measured(root: Path) -> tuple[int, int]:
    """Bytes in files beneath `root`, and how many files."""
    sizes = [path.lstat().st_size for path in files(root)]
    return sum(sizes), len(sizes)


def read(root: Path) -> None:
    """Have the content of everything beneath `root` in the page cache."""
    buffer = bytearray(_PIECE)
    for path in files(root):
        if not path.is_symlink():
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def differences(left: Path, right: Path, *, exact: bool) -> list[str]:
    """Paths that are not the same in both: content, and with `exact` also modes and times. Empty when they are."""
    here = {str(path.relative_to(left)) for path in files(left)}
    there = {str(path.relative_to(right)) for path in files(right)}
    found = [f"only in one: {path}" for path in sorted(here ^ there)]
    return found + [path for path in sorted(here & there) if not _same(left / path, right / path, exact=exact)]


def _same(left: Path, right: Path, *, exact: bool) -> bool:
    one, other = left.lstat(), right.lstat()
    if stat.S_IFMT(one.st_mode) != stat.S_IFMT(other.st_mode) or one.st_size != other.st_size:
        return False
    if exact and (one.st_mode, one.st_mtime_ns) != (other.st_mode, other.st_mtime_ns):
        return False
    if stat.S_ISLNK(one.st_mode):
        return left.readlink() == right.readlink()
    with left.open("rb", buffering=0) as a, right.open("rb", buffering=0) as b:
        while piece := a.read(_PIECE):
            if piece != b.read(_PIECE):
                return False
    return True
