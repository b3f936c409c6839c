"""Telemetry segments: what a lost machine leaves of its curves and of its last output. Create-once, at most one a
minute, one owner, numbered without holes.

They live beside the log and never decide anything.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from spotwarp.clock import Clock
from spotwarp.errors import AlreadyExists, CorruptObject, ObjectMissing, SpotWarpError, UnsupportedFormat
from spotwarp.persistence import codec, layout
from spotwarp.persistence.envelope import FORMAT_VERSION, Kind, seal, unseal
from spotwarp.persistence.store.api import Store

SEGMENT_S = 60.0
FIRST_S = 10.0
"""The first segment comes this early: a machine that is lost at once leaves something."""
MOST_OUTPUT_BYTES = 1 << 20
"""No reader takes more output than this from one segment."""
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
    up_bytes_s: float | None = None
    """What uploads reach; and the requests of this attempt so far, as in `store.metered`."""
    puts: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0
    sent: int = 0
    got: int = 0


class Output(msgspec.Struct, frozen=True):
    """What the command wrote: `size` bytes from position `start` of its output on, coded."""

    start: int
    size: int
    codec: int
    data: bytes

    @classmethod
    def of(cls, start: int, data: bytes) -> Output:
        """Code `data`."""
        number, coded = codec.encode(data, level=3)
        return cls(start, len(data), number, b"".join(coded))

    @property
    def end(self) -> int:
        """The position after its last byte."""
        return self.start + self.size

    def decoded(self) -> bytes:
        """The bytes. Raises `CorruptObject`, `UnsupportedFormat`."""
        if not 0 <= self.size <= MOST_OUTPUT_BYTES or self.start < 0:
            raise CorruptObject("a telemetry segment announces more output than one can hold")
        return bytes(codec.decode(self.codec, self.data, self.size))


class Segment(msgspec.Struct, frozen=True):
    """The samples of about a minute, and what was written in it."""

    v: int
    generation: int
    samples: tuple[Sample, ...]
    output: Output | None = None


_decoder = msgspec.json.Decoder(Segment)


class TelemetryWriter:
    """Collects samples of one generation and writes a segment when a minute is full.

    `output` gives what was written since it was last asked: position and bytes.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        generation: int,
        clock: Clock,
        output: Callable[[], tuple[int, bytes] | None] = lambda: None,
    ) -> None:
        self._store = store
        self._run = run
        self._generation = generation
        self._clock = clock
        self._next = 0
        self._samples: list[Sample] = []
        self._pending: Segment | None = None
        """What went with a try that was not answered: it may have landed, so it goes again as it is."""
        self._output = output
        self._since = clock.monotonic() - (SEGMENT_S - FIRST_S)

    def add(self, sample: Sample) -> None:
        """Take in a sample; writes at most once a minute. Store trouble keeps the samples for the next try."""
        self._samples.append(sample)
        del self._samples[: max(0, len(self._samples) - MOST_SAMPLES)]
        self.flush_due()

    def flush_due(self) -> None:
        """Write what was collected if the last segment is a minute old."""
        if self._clock.monotonic() - self._since >= SEGMENT_S:
            self.flush()

    def flush(self) -> None:
        """Write what was collected. Never raises: telemetry must not disturb training."""
        self._pending = self._pending or self._collected()
        if self._pending is None:
            return
        self._since = self._clock.monotonic()
        try:
            self._store.put_new(
                layout.telemetry_key(self._run, self._generation, self._next),
                seal(Kind.TELEMETRY, msgspec.json.encode(self._pending)),
            )
        except AlreadyExists:
            pass  # our own earlier try, whose reply was lost
        except SpotWarpError:
            return
        self._next += 1
        self._pending = None

    def _collected(self) -> Segment | None:
        taken = self._output()
        if not self._samples and taken is None:
            return None
        segment = Segment(
            FORMAT_VERSION, self._generation, tuple(self._samples), Output.of(*taken) if taken is not None else None
        )
        self._samples.clear()
        return segment


def read_latest(store: Store, run: str, *, at_most: int = 4) -> list[Segment]:
    """The last few readable segments, oldest first: as many as it takes to find a step, at most `at_most`."""
    found: list[Segment] = []
    for key in reversed([meta.key for meta in store.list(layout.telemetry_prefix(run))][-at_most:]):
        try:
            found.append(_decoder.decode(unseal(store.get(key), Kind.TELEMETRY, key)))
        except (CorruptObject, ObjectMissing, UnsupportedFormat, msgspec.DecodeError, RecursionError):
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
        except (CorruptObject, ObjectMissing, UnsupportedFormat, msgspec.DecodeError, RecursionError):
            continue
    return found


def read_segment(store: Store, run: str, generation: int, k: int) -> Segment | None:
    """Segment `k` of a generation, None when there is none (yet). A damaged one is an empty one."""
    key = layout.telemetry_key(run, generation, k)
    try:
        return _decoder.decode(unseal(store.get(key), Kind.TELEMETRY, key))
    except ObjectMissing:
        return None
    except (CorruptObject, msgspec.DecodeError, RecursionError):
        return Segment(FORMAT_VERSION, generation, ())


def count_segments(store: Store, run: str, generation: int) -> int:
    """How many segments a generation has, by probing: they have no holes, and nobody lists what may be thousands."""

    def exists(k: int) -> bool:
        try:
            store.head(layout.telemetry_key(run, generation, k))
        except ObjectMissing:
            return False
        return True

    if not exists(0):
        return 0
    low, step = 0, 1
    while exists(low + step):
        low, step = low + step, step * 2
    high = low + step  # `low` is there, `high` is not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if exists(middle) else (low, middle)
    return low + 1
