"""Memory that a thread uses again and again: fresh pages are what costs most in a coder.

What lies in it is good until the same thread asks for the same name again.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.held: dict[str, Bytes] = {}


_mine = _PerThread()


def scratch(name: str, size: int) -> Bytes:
    """`size` bytes of any content, of this thread's buffer `name`."""
    found = _mine.held.get(name)
    if found is None or found.nbytes < size:
        found = _mine.held[name] = np.empty(size, np.uint8)
    return found[:size]
