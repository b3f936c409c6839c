"""Where the elements lie in numpy's array files: magic, version, length and a header that is a Python literal.

Source: numpy.lib.format. The header is searched for the element type, never evaluated.
"""

from __future__ import annotations

import re
from typing import Final

from spotwarp.persistence.cuts.covering import Tensor
from spotwarp.persistence.cuts.reading import read

MAGIC: Final = b"\x93NUMPY"
_MAX_HEADER: Final = 64 << 10
_TYPE: Final = re.compile(rb"'descr': '[<>|=]([a-zA-Z])([0-9]{1,3})'")


def tensors(fd: int, size: int) -> list[Tensor]:
    """The one array of a file. Raises `ValueError` or `OSError`."""
    before, width = header(fd, 0)
    return [Tensor(before, size - before, width, "array")]


def header(fd: int, offset: int) -> tuple[int, int]:
    """Of the array that is stored at `offset`: bytes of its header, bytes of an element (0: unknown).

    Raises `ValueError` or `OSError`.
    """
    head = read(fd, offset, 12)
    if not head.startswith(MAGIC):
        raise ValueError("no array of numpy's")
    digits = 2 if head[6] == 1 else 4
    length = int.from_bytes(head[8 : 8 + digits], "little")
    if length > _MAX_HEADER:
        raise ValueError("too long a header")
    before = 8 + digits
    return before + length, _width(read(fd, offset + before, length))


def _width(text: bytes) -> int:
    found = _TYPE.search(text)
    if found is None:
        return 0
    width = int(found[2]) // (2 if found[1] == b"c" else 1)  # a complex number is two
    return width if width in (1, 2, 4, 8) and found[1] not in b"SVO" else 0
