"""A small part of a chunk that speaks for the whole."""

from __future__ import annotations

import numpy as np

from spotwarp.persistence.codec.scratch import Bytes, scratch

SIZE = 64 << 10
_PLACES = 4
"""Start, end and two between: a header, or rows of zeros, do not stand for everything."""


def sample(data: Bytes, name: str) -> Bytes:
    """64 KiB of `data` from four places, or all of it when it has no more; at multiples of 8 of what it was.

    It lies in this thread's scratch `name`.
    """
    if data.nbytes <= SIZE:
        return data
    part = SIZE // _PLACES
    found = scratch(name, SIZE)
    for number in range(_PLACES):
        at = (data.nbytes - part) * number // (_PLACES - 1) & ~7
        np.copyto(found[number * part : (number + 1) * part], data[at : at + part])
    return found
