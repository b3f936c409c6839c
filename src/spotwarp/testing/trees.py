"""What a directory holds, as a value that two directories can be compared by: the oracle of every round trip.

Walks by descriptors, so paths of any length and any bytes are seen. Never follows a link.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import NamedTuple


class Node(NamedTuple):
    """What is at one path: its type bits, permission bits, mtime in ns, content (its hash, or the link's target)."""

    kind: int
    mode: int
    mtime_ns: int
    content: bytes


def read_tree(root: Path) -> dict[bytes, Node]:
    """Everything beneath `root`, by path. A link's mode means nothing and is 0."""
    found: dict[bytes, Node] = {}
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    waiting: list[tuple[bytes, int]] = [(b"", fd)]
    while waiting:
        above, fd = waiting.pop()
        try:
            for name in (os.fsencode(item) for item in sorted(os.listdir(fd))):  # noqa: PTH208 - by descriptor
                path = above + b"/" + name if above else name
                about = os.stat(name, dir_fd=fd, follow_symlinks=False)
                mode = 0 if stat.S_ISLNK(about.st_mode) else stat.S_IMODE(about.st_mode)
                found[path] = Node(stat.S_IFMT(about.st_mode), mode, about.st_mtime_ns, _content(fd, name, about))
                if stat.S_ISDIR(about.st_mode):
                    waiting.append((path, os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)))
        finally:
            os.close(fd)
    return found


def _content(directory: int, name: bytes, about: os.stat_result) -> bytes:
    if stat.S_ISLNK(about.st_mode):
        return os.readlink(name, dir_fd=directory)
    if not stat.S_ISREG(about.st_mode):
        return b""
    hashed = hashlib.sha256(b"%d:" % about.st_size)
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory), "rb") as file:
        at = 0
        while (at := _next_data(file.fileno(), at)) < about.st_size:
            part = os.pread(file.fileno(), 1 << 20, at)
            if part.strip(b"\0"):  # a hole and a run of zeros are the same content
                hashed.update(b"%d:" % at + part)
            at += len(part)
    return hashed.digest()


def _next_data(fd: int, at: int) -> int:
    """Where the next 1 MiB-aligned piece begins that is not all hole; beyond the end when there is none."""
    try:
        data = os.lseek(fd, at, os.SEEK_DATA)
    except OSError:
        return 1 << 62
    return max(at, data >> 20 << 20)
