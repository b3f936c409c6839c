"""Headers, read from a descriptor without moving its position."""

from __future__ import annotations

import os


def read(fd: int, offset: int, length: int) -> bytes:
    """Exactly `length` bytes at `offset`. Raises `ValueError` when the file has no such bytes, or `OSError`."""
    parts = []
    while length > 0:
        part = os.pread(fd, length, offset)
        if not part:
            raise ValueError("the file ends too early")
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return b"".join(parts)
