"""What a run costs at its store: for what lies there, for the requests so far, for one restore.

An estimate from a listing, the heartbeats of all attempts and a price list; the vendor's bill is the truth. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from spotwarp.persistence import layout
from spotwarp.persistence.manifest import Manifest
from spotwarp.persistence.reads import READ_SIZE
from spotwarp.persistence.runlog.lease import Beat, read_beat
from spotwarp.persistence.store.api import ObjectMeta, Store
from spotwarp.persistence.store.metered import CHARGED, Used
from spotwarp.persistence.store.prices import PriceList

_MOST_LIVES: Final = 200
_LEAST_S: Final = 60.0
"""A shorter life says nothing of a day."""
_DAY_S: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Stored:
    """What lies in the store of one run: bytes by kind, and objects."""

    packs: int = 0
    manifests: int = 0
    log: int = 0
    other: int = 0
    objects: int = 0

    @property
    def bytes(self) -> int:
        """All together."""
        return self.packs + self.manifests + self.log + self.other


@dataclass(frozen=True, slots=True)
class Restore:
    """What fetching one snapshot takes: bytes, and about so many requests."""

    bytes: int
    gets: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Dollars; None where a price or a number is not known."""

    month: float | None
    """For what lies there now."""
    requests: float | None
    """So far, of all attempts."""
    day: float | None
    """Requests of a day, at the pace of the present or last attempt."""
    restore: float | None
    """One, out of the vendor's network."""


def estimate(prices: PriceList, stored: Stored, used: Used, day: Used | None, restore: Restore | None) -> Cost:
    """The bill, as far as it can be told. Pure."""
    return Cost(
        month=_sum((prices.storage, stored.bytes / prices.gb)),
        requests=_requests(prices, used),
        day=_requests(prices, day) if day is not None else None,
        restore=_restore(prices, restore) if restore is not None else None,
    )


def _restore(prices: PriceList, restore: Restore) -> float | None:
    return _sum((prices.egress, restore.bytes / prices.gb), (prices.get, restore.gets / 1000))


def _requests(prices: PriceList, used: Used) -> float | None:
    return _sum((prices.put, used.puts / 1000), (prices.get, used.gets / 1000), (prices.listing, used.lists / 1000))


def _sum(*parts: tuple[float | None, float]) -> float | None:
    """The parts' prices times amounts; None where a price is missing that is needed."""
    total = 0.0
    for price, amount in parts:
        if price is None and amount:
            return None
        total += (price or 0.0) * amount
    return total


def stored(objects: Iterable[ObjectMeta], run: str) -> Stored:
    """What a listing of the run comes to. Pure."""
    found = Stored()
    kinds = {
        layout.packs_prefix(run): "packs",
        layout.manifests_prefix(run): "manifests",
        layout.log_prefix(run): "log",
    }
    for meta in objects:
        kind = kinds.get(meta.key.rpartition("/")[0], "other")
        found = replace(found, **{kind: getattr(found, kind) + meta.size}, objects=found.objects + 1)
    return found


def requests(store: Store, run: str, objects: Iterable[ObjectMeta]) -> Used:
    """What all attempts asked for, as their last heartbeats say; of the latest two hundred of them.

    At least what lies there was put.
    """
    objects = tuple(objects)
    prefix = layout.beats_prefix(run) + "/"
    lives = sorted((m for m in objects if m.key.startswith(prefix)), key=lambda meta: meta.modified)[-_MOST_LIVES:]
    total = Used()
    for meta in lives:
        total += told(read_beat(store, run, meta.key.removeprefix(prefix)))
    return replace(total, puts=max(total.puts, len(objects)))


def told(beat: Beat | None) -> Used:
    """What a heartbeat says of the requests of its life."""
    facts = beat.facts if beat is not None else {}
    numbers = {name: facts.get(name) for name in CHARGED}
    return Used(**{name: value for name, value in numbers.items() if isinstance(value, int)})


def a_day(beat: Beat | None, since: str) -> Used | None:
    """What a day takes at the pace of the life that began at `since` (ISO 8601); None where that was too short."""
    used = told(beat)
    try:
        lasted_s = (datetime.fromisoformat(beat.wall) - datetime.fromisoformat(since)).total_seconds() if beat else 0.0
    except (ValueError, TypeError):
        return None
    if lasted_s < _LEAST_S:
        return None
    return Used(**{name: round(getattr(used, name) * _DAY_S / lasted_s) for name in CHARGED})


def restoring(manifest: Manifest) -> Restore:
    """What fetching all of a snapshot takes. Pure."""
    size = sum(blob.stored for blob in manifest.blobs)
    return Restore(size, len(manifest.packs) + size // READ_SIZE)
