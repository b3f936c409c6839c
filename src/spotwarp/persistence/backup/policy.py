"""How what changes is coded: raw, planes or delta, by what was measured. Pure.

A mode is worth its processor time when it brings the snapshot to the store sooner. So the question is what the slower
of two streams takes, coding or uploading, for what a save changes; and how soon that must be over: before the next
save, and before the end that a notice leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from spotwarp.model import human_bytes, human_seconds
from spotwarp.persistence.backup.coding import Mode

MODES: Final[tuple[Mode, ...]] = ("raw", "planes", "delta")
"""Cheapest first."""
GAIN: Final = 0.95
"""A dearer mode must take at most this part of the cheaper one's time: it costs the trainer processor time as well."""
STAY: Final = 0.05
"""What is in force is kept unless the other is better by so much more: noise shall not change it at each save."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What a mode does: raw bytes a second that one core reads, hashes and codes, and coded bytes for each raw one."""

    bytes_s: float
    ratio: float


UNMEASURED: Final[Mapping[Mode, Speed]] = {
    "raw": Speed(1800e6, 1.0),
    "planes": Speed(600e6, 0.80),
    "delta": Speed(350e6, 0.65),
}
"""Of a full fine-tune (bf16 weights, fp32 optimizer), on one core of a server of 2024."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known when a backup begins. Rates in bytes a second; None or 0 where nothing is known yet."""

    up_bytes_s: float | None = None
    """What the link took."""
    cores: float = 1.0
    """That may be used."""
    changed_bytes: int = 0
    """What a save changes."""
    interval_s: float | None = None
    """Between two saves."""
    notice_s: float | None = None
    """What a notice leaves for storing."""
    local: bool = False
    """The store is a directory."""
    speeds: Mapping[Mode, Speed] = field(default_factory=dict)

    def speed(self, mode: Mode) -> Speed:
        """As it was measured here, else what is usual."""
        return self.speeds.get(mode) or UNMEASURED[mode]

    def seconds(self, mode: Mode) -> float:
        """What storing the change takes, coding beside uploading."""
        speed, size = self.speed(mode), self.changed_bytes or 1
        up_s = size * speed.ratio / self.up_bytes_s if self.up_bytes_s else 0.0
        return max(size / (speed.bytes_s * max(self.cores, 0.01)), up_s)


@dataclass(frozen=True, slots=True)
class Choice:
    """A mode, and why."""

    mode: Mode
    why: str


def choose(seen: Measured, *, told: Mode | None = None, before: Mode | None = None) -> Choice:
    """The mode for the next backup. `told` is the user's own; `before` what was in force."""
    if told is not None:
        return Choice(told, "as told")
    if seen.local:
        return Choice("raw", "the store is a directory: writing is faster than coding")
    if not seen.up_bytes_s:
        return Choice("planes", "no upload was measured yet")
    link = f"{human_bytes(seen.up_bytes_s)}/s up"
    if not _pays(seen, "raw", "planes", before):
        return Choice("raw", f"{link}: faster than {_cores(seen)} can code")
    if not seen.changed_bytes:
        return Choice("planes", f"{link}: slower than coding; not yet known what a save changes")
    takes = f"{human_bytes(seen.changed_bytes)} a save: {human_seconds(seen.seconds('planes'))} by planes"
    limit = _limit(seen)
    if limit is None:
        return Choice("planes", f"{link}, {takes}")
    limit_s, name = limit
    slack = 1 - 2 * STAY if before == "delta" else 1.0
    if seen.seconds("planes") <= limit_s * slack:
        return Choice("planes", f"{link}, {takes}, within {name} ({human_seconds(limit_s)})")
    longer = f"{link}, {takes}, longer than {name} ({human_seconds(limit_s)})"
    if not _pays(seen, "planes", "delta", before):
        return Choice("planes", f"{longer}; delta is not faster")
    return Choice("delta", f"{longer}; {human_seconds(seen.seconds('delta'))} by delta")


def _pays(seen: Measured, cheap: Mode, dear: Mode, before: Mode | None) -> bool:
    """Whether the dearer mode stores so much sooner that it is worth its processor time."""
    kept = 0.0 if before is None else STAY if MODES.index(before) >= MODES.index(dear) else -STAY
    return seen.seconds(dear) < seen.seconds(cheap) * (GAIN + kept)


def _limit(seen: Measured) -> tuple[float, str] | None:
    """The shorter of the two times that a save should be stored in, and its name."""
    limits = [(seen.interval_s, "the time between saves"), (seen.notice_s, "what a notice leaves")]
    known = [(seconds, name) for seconds, name in limits if seconds]
    return min(known) if known else None


def _cores(seen: Measured) -> str:
    return f"{seen.cores:g} core" + ("" if seen.cores == 1 else "s")
