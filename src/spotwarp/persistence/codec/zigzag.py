"""Differences of numbers as small unsigned ones: modulo 2^n, then 0, -1, 1, -2 … become 0, 1, 2, 3 …

Floats are subtracted as the integers that their bits are: near ones have near bits, and nothing is rounded. (XOR in
place of it turns a carry into a row of ones.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spotwarp.persistence.codec.scratch import scratch

Numbers = NDArray[np.unsignedinteger[Any]]


def differences(numbers: Numbers, base: Numbers, out: Numbers) -> Numbers:
    """What `numbers` are more or less than `base`, into `out`."""
    bits = numbers.itemsize * 8
    np.subtract(numbers, base, out=out)
    signs = _aside(out)
    np.right_shift(out.view(f"<i{out.itemsize}"), bits - 1, out=signs.view(f"<i{out.itemsize}"))
    np.left_shift(out, 1, out=out)
    return np.bitwise_xor(out, signs, out=out)


def sums(differences: Numbers, base: Numbers, out: Numbers) -> None:
    """What `differences` to `base` stand for, into `out`, which may be `base`. `differences` are used up."""
    signs = _aside(differences)
    np.bitwise_and(differences, 1, out=signs)
    np.negative(signs, out=signs)
    np.right_shift(differences, 1, out=differences)
    np.bitwise_xor(differences, signs, out=differences)
    np.add(differences, base, out=out)


def _aside(like: Numbers) -> Numbers:
    return scratch("signs", like.nbytes).view(like.dtype)
