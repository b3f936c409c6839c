"""Telemetry segments: what a lost machine leaves of its curves. Create-once, at most one a minute, one owner.

They live beside the log and never decide anything.
"""

from __future__ import annotations

import msgspec

from spotwarp.clock import Clock
from spotwarp.errors import AlreadyExists, CorruptObject, ObjectMissing, SpotWarpError, UnsupportedFormat
from spotwarp.persistence import layout
from spotwarp.persistence.envelope import FORMAT_VERSION, Kind, seal, unseal
from spotwarp.persistence.store.api import Store

SEGMENT_S = 60.0
MOST_SAMPLES = 600
"""Kept while the store cannot be reached; the oldest go first."""


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One moment. Seconds and bytes."""

    wall: str
    at_risk_s: float = 0.0
    at_risk_bytes: int = 0
    step: int | None = None
    loss: float | None = None
    read_bytes: int = 0
    stored_bytes: int = 0
    error: str = ""


class Segment(msgspec.Struct, frozen=True):
    """The samples of about a minute."""

    v: int
    generation: int
    samples: tuple[Sample, ...]


_decoder = msgspec.json.Decoder(Segment)


class TelemetryWriter:
    """Collects samples of one generation and writes a segment when a minute is full."""

    def __init__(self, store: Store, run: str, generation: int, clock: Clock) -> None:
        self._store = store
        self._run = run
        self._generation = generation
        self._clock = clock
        self._next = 0
        self._samples: list[Sample] = []
        self._sent = 0
        """How many of the samples went with a try that was not answered."""
        self._since = clock.monotonic()

    def add(self, sample: Sample) -> None:
        """Take in a sample; writes at most once a minute. Store trouble keeps the samples for the next try."""
        self._samples.append(sample)
        excess = max(0, len(self._samples) - MOST_SAMPLES)
        del self._samples[self._sent : self._sent + excess]  # a segment under way stays as it was sent
        if self._clock.monotonic() - self._since >= SEGMENT_S:
            self.flush()

    def flush(self) -> None:
        """Write what was collected. Never raises: telemetry must not disturb training."""
        if not self._samples:
            return
        self._since = self._clock.monotonic()
        count = self._sent or len(self._samples)  # the same segment again: an earlier try may have landed
        segment = Segment(FORMAT_VERSION, self._generation, tuple(self._samples[:count]))
        try:
            self._store.put_new(
                layout.telemetry_key(self._run, self._generation, self._next),
                seal(Kind.TELEMETRY, msgspec.json.encode(segment)),
            )
        except AlreadyExists:
            pass  # our own earlier try, whose reply was lost
        except SpotWarpError:
            self._sent = count
            return
        self._next += 1
        self._sent = 0
        del self._samples[:count]


def read_latest(store: Store, run: str, *, at_most: int = 4) -> list[Segment]:
    """The last few readable segments, oldest first: as many as it takes to find a step, at most `at_most`."""
    found: list[Segment] = []
    for key in reversed([meta.key for meta in store.list(layout.telemetry_prefix(run))][-at_most:]):
        try:
            found.append(_decoder.decode(unseal(store.get(key), Kind.TELEMETRY, key)))
        except (CorruptObject, ObjectMissing, UnsupportedFormat, msgspec.DecodeError):
            continue
        if any(sample.step is not None for sample in found[-1].samples):
            break
    return found[::-1]


def read_all(store: Store, run: str) -> list[Segment]:
    """All readable segments of a run, in order of generation and time."""
    found = []
    for meta in store.list(layout.telemetry_prefix(run)):
        try:
            found.append(_decoder.decode(unseal(store.get(meta.key), Kind.TELEMETRY, meta.key)))
        except (CorruptObject, ObjectMissing, msgspec.DecodeError):
            continue
    return found
