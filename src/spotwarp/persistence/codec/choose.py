"""Which codec a chunk gets, and with which plan: decided on samples of 64 KiB, by what each would come to."""

from __future__ import annotations

from typing import Final

from spotwarp.persistence.codec import planes, zigzag, zstd
from spotwarp.persistence.codec.numbers import DELTA, PLANES, RAW, ZSTD
from spotwarp.persistence.codec.planes import WIDTHS, Plan
from spotwarp.persistence.codec.sample import sample
from spotwarp.persistence.codec.scratch import Bytes, scratch

_CLEARLY: Final = 0.98
"""What is slower, a wider element or a search for repetitions, must be better by more than chance."""
_NEXT_TO_NOTHING: Final = 0.01
"""Zeros, a constant: zstd makes as little of it in one step, and it needs no base."""
_DELTA_WORTH: Final = 0.95
"""Differences must save 5 % over the planes: their base is read and decoded as well at a restore."""


def choose(data: Bytes, *, level: int, width: int, base: Bytes | None) -> tuple[int, Plan | None]:
    """The codec for `data`, and the plan for `PLANES` and `DELTA`. Arguments as in `encode`."""
    part = sample(data, "sample")
    widths = (width,) if width in WIDTHS else WIDTHS
    best = _best(part, widths)
    if best.ratio < _NEXT_TO_NOTHING:
        return ZSTD, None
    # Text has elements of one byte, if any; a tensor of wider ones need not pay for the trial.
    as_text = len(zstd.compressor(level).compress(part.data)) / part.nbytes if 1 in widths else 1.0
    if base is not None:
        delta = min((_differences(part, base, each) for each in widths), key=lambda plan: plan.ratio)
        if delta.ratio <= min(best.ratio, as_text, 1.0) * _DELTA_WORTH:
            return DELTA, delta
    if min(best.ratio, as_text) > zstd.WORTH:
        return RAW, None
    return (ZSTD, None) if as_text < best.ratio * _CLEARLY else (PLANES, best)


def _best(part: Bytes, widths: tuple[int, ...]) -> Plan:
    best = planes.plan(part, widths[0])
    for width in widths[1:]:
        other = planes.plan(part, width)
        if other.ratio < best.ratio * _CLEARLY:
            best = other
    return best


def _differences(part: Bytes, base: Bytes, width: int) -> Plan:
    other = sample(base, "base sample")
    end = part.nbytes // width * width
    bits = f"<u{width}"
    found = zigzag.differences(
        part[:end].view(bits), other[:end].view(bits), scratch("difference sample", end).view(bits)
    )
    return planes.plan(found.view("u1"), width)
