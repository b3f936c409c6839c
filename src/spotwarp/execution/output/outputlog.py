"""The command's output on this disk: a log of bounded size, written by one, read by anybody, and what is not yet sent.

Owns the names of the log's parts. A *position* counts the command's output from its first byte, whatever was dropped
since: it joins the parts on the disk, those in a snapshot and the telemetry segments. Must never raise at the writer: a
full disk costs the log, not the command.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path

RECENT_BYTES = 256 << 10
"""Of the output of about a minute, at most this much goes into a telemetry segment."""
_FIRST = ".first"


def log_path(runtime: Path, generation: int) -> Path:
    """The output log of an attempt, below the directory of SpotWarp's own files."""
    return runtime / "log" / f"output-{generation:04d}.log"


@dataclass(frozen=True, slots=True)
class Part:
    """A file of the log: where its first byte stands in the output, and how many it has."""

    path: Path
    start: int
    size: int

    @property
    def end(self) -> int:
        """The position after its last byte."""
        return self.start + self.size


class OutputLog:
    """Three parts of a third of the limit each: the first ever written, the one before last, the last."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._path = path
        self._part = max(1, limit_bytes // 3)
        self._fd: int | None = None
        self._size = 0
        self._closed = False
        self.fault: OSError | None = None
        """Why output is missing from the log; None while none is."""

    def write(self, data: bytes) -> None:
        """Append; on a fault remember it and go on: the next write tries anew."""
        rest = memoryview(data)
        try:
            while rest and not self._closed:
                if self._fd is None:
                    self._open()
                elif self._size >= self._part:
                    self._rotate()
                else:
                    written = os.write(self._fd, rest[: self._part - self._size])
                    self._size += written
                    rest = rest[written:]
        except OSError as error:
            self.fault = error

    def close(self) -> None:
        """Write nothing any more."""
        self._closed = True
        self._drop()

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        """The full part gets its number as its name (the first one keeps a name of its own); the one before it goes."""
        self._drop()
        if not _named(self._path, _FIRST).exists():
            self._path.replace(_named(self._path, _FIRST))
            return
        number = max(_numbers(self._path), default=0)
        self._path.replace(_named(self._path, f".{number + 1}"))
        if number:
            _named(self._path, f".{number}").unlink(missing_ok=True)

    def _drop(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class Recent:
    """The newest output that no telemetry segment holds yet. May be shared by threads."""

    def __init__(self, most_bytes: int = RECENT_BYTES) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._data = bytearray()
        self._end = 0

    def add(self, data: bytes) -> None:
        """Take in output; what is older goes when it becomes too much."""
        with self._lock:
            self._data += data
            self._end += len(data)
            del self._data[: -self._most]

    def take(self) -> tuple[int, bytes] | None:
        """The position and the bytes of what is new since the last call; None when nothing is."""
        with self._lock:
            if not self._data:
                return None
            taken = bytes(self._data)
            self._data.clear()
            return self._end - len(taken), taken


def parts(log: Path) -> list[Part]:
    """The log's files in order, with their positions; what was dropped is between the first two."""
    first = _named(log, _FIRST)
    full = _size(first)
    if full is None:
        size = _size(log)
        return [] if size is None else [Part(log, 0, size)]
    found = [Part(first, 0, full)]
    number = max(_numbers(log), default=0)
    if number and (size := _size(_named(log, f".{number}"))) is not None:
        found.append(Part(_named(log, f".{number}"), number * full, size))
    if (size := _size(log)) is not None:
        found.append(Part(log, (number + 1) * full, size))
    return found


def read(log: Path, at: int, most: int = 1 << 20) -> tuple[int, bytes]:
    """At most `most` bytes from position `at` on, or from where the log goes on after it; where, and the bytes.

    Nothing new is `(at, b"")`. The log may be written and rotated meanwhile.
    """
    while True:
        known = parts(log)
        part = next((one for one in known if one.end > at), None)
        if part is None:
            return at, b""
        start = max(at, part.start)
        data = b""
        with contextlib.suppress(OSError), part.path.open("rb") as file:
            file.seek(start - part.start)
            data = file.read(min(most, part.end - start))
        if [(one.path, one.start) for one in parts(log)] == [(one.path, one.start) for one in known]:
            return start, data  # not rotated in between: the file had the name that it had


def _named(log: Path, suffix: str) -> Path:
    return log.with_name(log.name + suffix)


def _numbers(log: Path) -> list[int]:
    tails = [path.name[len(log.name) + 1 :] for path in log.parent.glob(f"{log.name}.*")]
    return [int(tail) for tail in tails if tail.isdecimal() and tail.isascii()]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
