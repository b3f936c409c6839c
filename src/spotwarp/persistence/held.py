"""Which files somebody may be writing without their time stamps telling: held open for writing, or mapped so.

A page of a shared mapping moves the times when it is first written to; the writes after that move nothing until the
page has reached the disk. One write(2) moves them once, at its start, however long it takes. So what was read of a file
while somebody held it says nothing about what it will be, whatever its times are. Reads /proc and nothing else; sees
the processes that this one may look into, and of a network file system those of this machine only.

A record of a file is sound when this looked *before* the file was read and after the time that the record is judged by
(`statcache.Record.trusted`): a writer that the times will not show has made its page or its write ready before that
time, so it held the file all the while, and is seen. Whoever comes later moves the times.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

Identity = tuple[int, int]
"""Device and inode."""

_PROC: Final = Path("/proc")
_MAPPED: Final = re.compile(rb"^\S+ .w.s \S+ ([0-9a-f]+):([0-9a-f]+) ([0-9]+) *(.*)$", re.MULTILINE)
_MARKS: Final = (b" rw-s ", b" rwxs ", b" -w-s ", b" -wxs ")
_FLAGS: Final = re.compile(rb"^flags:\s*([0-7]+)", re.MULTILINE)
_SILENT: Final = frozenset({b"tmpfs", b"ramfs", b"hugetlbfs"})
"""Here a page that was read through a mapping before it is written to never moves the times."""


@dataclass(frozen=True, slots=True)
class Held:
    """The files that were held at one moment, asked with `in` by their identity."""

    files: frozenset[Identity] = frozenset()
    silent: frozenset[int] = frozenset()
    """Devices on which every file counts as held."""
    known: bool = True
    """False: it could not be seen, and every file counts as held."""

    def __contains__(self, identity: Identity) -> bool:
        """Whether the file may be written without its times moving."""
        return not self.known or identity in self.files or identity[0] in self.silent


def look(root: Path, *, proc: Path = _PROC) -> Held:
    """What is held now. `root` is the workspace: what lies beneath it is recognised by its path as well.

    Some file systems (btrfs, overlays) show another device in a process's mappings than `stat` does.
    """
    try:
        pids = [name for name in os.listdir(proc) if name.isdigit()]  # noqa: PTH208 - names only, often
    except OSError:
        pids = []
    if not pids:
        return Held(known=False)
    below = os.fsencode(os.path.realpath(root)) + b"/"
    files: set[Identity] = set()
    for pid in pids:
        # Ended meanwhile, or another user's and not ours to see.
        with contextlib.suppress(OSError):
            files.update(_mapped(_read(f"{proc}/{pid}/maps"), below))
        with contextlib.suppress(OSError):
            files.update(_open(f"{proc}/{pid}"))
    return Held(frozenset(files), _silent(proc))


def _mapped(maps: bytes, below: bytes) -> Iterator[Identity]:
    """The files that a process has mapped shared and writable."""
    if not any(mark in maps for mark in _MARKS):
        return  # nearly always, and ten times as fast
    for major, minor, inode, name in _MAPPED.findall(maps):
        if inode == b"0":
            continue
        yield os.makedev(int(major, 16), int(minor, 16)), int(inode)
        if name.startswith(below):
            with contextlib.suppress(OSError):
                about = os.lstat(name.replace(b"\\012", b"\n"))
                if about.st_ino == int(inode):
                    yield about.st_dev, about.st_ino


def _open(process: str) -> Iterator[Identity]:
    """The regular files that a process has open for writing."""
    for number in os.listdir(f"{process}/fd"):  # noqa: PTH208 - names only, often
        with contextlib.suppress(OSError):
            about = os.stat(f"{process}/fd/{number}")  # noqa: PTH116 - often
            if stat.S_ISREG(about.st_mode) and _writable(f"{process}/fdinfo/{number}"):
                yield about.st_dev, about.st_ino


def _writable(info: str) -> bool:
    found = _FLAGS.search(_read(info))
    return found is not None and int(found[1], 8) & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - often
        return file.read()


def _silent(proc: Path) -> frozenset[int]:
    """The devices of file systems that live in memory."""
    try:
        mounts = (proc / "self/mountinfo").read_bytes().splitlines()
    except OSError:
        return frozenset()
    devices = set()
    for line in mounts:
        left, _, right = line.partition(b" - ")
        if right.split(b" ", 1)[0] in _SILENT:
            major, _, minor = left.split(b" ")[2].partition(b":")
            devices.add(os.makedev(int(major), int(minor)))
    return frozenset(devices)
