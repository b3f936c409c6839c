"""Where a large file is cut into pieces: along its tensors where they can be found, else every 4 MiB.

Reads headers only, of the formats that checkpoints are made of, and judges nothing: whatever cannot be read as one of
them, for being torn, damaged, huge or something else, is cut every 4 MiB and just as safe. Nothing is unpickled.
"""

from __future__ import annotations

from spotwarp.persistence.cuts.covering import CHUNK, Cuts, Tensor, cover, grid, lined_up
from spotwarp.persistence.cuts.reading import read

__all__ = ["CHUNK", "Cuts", "cuts", "grid", "lined_up"]

_HEAD = 16
_MOST = 2 << 40
"""Bytes. A larger file is cut every 4 MiB, which costs nothing: its size may be holes, and its header lie."""


def cuts(fd: int, size: int) -> Cuts:
    """The pieces of the file `fd`, of `size` bytes. Raises nothing, whatever the file holds or becomes meanwhile."""
    if size > _MOST:
        return grid(size)
    try:
        tensors = _tensors(fd, size)
        return grid(size) if tensors is None else cover(size, tensors)
    except (ValueError, LookupError, OSError, OverflowError, RecursionError, MemoryError):
        return grid(size)  # a disk that cannot be read will say so when its content is


def _tensors(fd: int, size: int) -> list[Tensor] | None:
    """Those of a file of a known format; raises when it is damaged."""
    from spotwarp.persistence.cuts import archive, npy, safetensors  # here: who only looks pays for no parser

    head = read(fd, 0, min(size, _HEAD))
    if head.startswith(archive.MAGIC):
        return archive.tensors(fd, size)
    if head.startswith(npy.MAGIC):
        return npy.tensors(fd, size)
    return safetensors.tensors(fd, size) if safetensors.looks_like(head) else None
