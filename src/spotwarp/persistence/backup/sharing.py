"""Which parts of a large manifest are put where later snapshots find them again.

A workspace of a million files has a manifest of tens of megabytes, and most of it says what the one before said. So its
segments lie in packs, named by their digests, and a snapshot refers to those that are still true. What is new lies in
the manifest itself until that is a good part of the whole: then it goes into a pack. A manifest of common size has all
its segments in itself: one request gets it. Puts packs and nothing else (P1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from spotwarp.clock import Rng
from spotwarp.persistence import codec
from spotwarp.persistence.encryption.sealed import box_for
from spotwarp.persistence.envelope import digest
from spotwarp.persistence.layout import new_object_id, pack_key
from spotwarp.persistence.manifest import Manifest, PackRef, Records, Shared
from spotwarp.persistence.pack import PackBuilder, PackedBlob
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.table import Segment, Table

_LARGE: Final = 1 << 20
"""Bytes of segments in a manifest that shares none."""
_NEW: Final = 4
"""So large a part of all (one in so many) may be new and in the manifest itself, beyond `_LARGE`."""
_MOST_PACKS: Final = 16
"""Packs that one manifest's segments lie in, at most: a restore asks each for its part."""


class Packs:
    """The packs that a manifest's segments are put into, one after the other."""

    def __init__(self, store: Store, run: str, generation: int, rng: Rng) -> None:
        self._store, self._run, self._generation, self._rng = store, run, generation, rng
        self._name = ""
        self._builder: PackBuilder | None = None
        self.put: list[PackRef] = []
        """Those that are in the store."""

    def begin(self) -> PackBuilder:
        """An empty pack; the one before it must have ended."""
        self._name = new_object_id(self._generation, self._rng)
        self._builder = self._builder or PackBuilder()
        self._builder.reset(box_for(self._store, pack_key(self._run, self._name)))
        return self._builder

    def end(self) -> PackRef:
        """Put the pack that was begun last."""
        with (self._builder or self.begin()).seal() as data:
            self._store.put(pack_key(self._run, self._name), data)
            self.put.append(PackRef(self._run, self._name, data.nbytes))
        return self.put[-1]


@dataclass(frozen=True, slots=True)
class _Known:
    """The segments of a manifest, and where the base has those that it shares."""

    segments: Sequence[Segment]
    shared: Sequence[Shared | None]

    @property
    def new(self) -> list[Segment]:
        return [segment for segment, one in zip(self.segments, self.shared, strict=True) if one is None]


def own_size(manifest: Manifest) -> int:
    """About how many bytes of its entries `manifest` has in itself: what the next one on top of it has at least."""
    segments = manifest.entries.segments if isinstance(manifest.entries, Table) else ()
    return max(0, _size(segments) - sum(one.stored for one in manifest.shared))


def shared_out(manifest: Manifest, base: Manifest | None, packs: Packs, *, hurried: bool = False) -> Manifest:
    """`manifest` with its segments in packs where that pays; `hurried` puts none: that it pays later is no use now."""
    entries = manifest.entries
    if not isinstance(entries, Records) or _size(entries.segments) <= _LARGE:
        return manifest
    known = _known(entries.segments, base)
    much = not _few_packs(known) or _size(known.new) > max(_LARGE, _size(entries.segments) // _NEW)
    if much and not hurried:
        shared = _stored(known if _few_packs(known) else _known(entries.segments, None), packs)
    else:
        shared = [one for one in known.shared if one is not None]
    named = dict.fromkeys([*manifest.packs, *(one.pack for one in shared)])
    return replace(manifest, packs=tuple(named), shared=tuple(shared))


def _known(segments: Sequence[Segment], base: Manifest | None) -> _Known:
    before = {one.first: one for one in base.shared} if base is not None else {}
    found: list[Shared | None] = []
    for segment in segments:
        one = before.get(segment.first)
        found.append(one if one is not None and one.digest == digest(segment.data) else None)
    return _Known(segments, found)


def _few_packs(known: _Known) -> bool:
    return len({one.pack for one in known.shared if one is not None}) < _MOST_PACKS


def _stored(known: _Known, packs: Packs) -> list[Shared]:
    """Put the new segments into packs; gives where all are."""
    made = packs.begin()
    waiting: list[tuple[Segment, PackedBlob]] = []
    where: dict[bytes, Shared] = {}

    def flush() -> None:
        pack = packs.end()
        for segment, row in waiting:
            where[segment.first] = Shared(segment.first, pack, row.offset, row.stored, row.digest)
        waiting.clear()

    for segment in known.new:
        size = len(segment.data)
        if waiting and not made.fits(size):
            flush()
            made = packs.begin()
        waiting.append((segment, made.add(digest(segment.data), codec.RAW, size, segment.data)))
    flush()
    pairs = zip(known.segments, known.shared, strict=True)
    return [where[segment.first] if one is None else one for segment, one in pairs]


def _size(segments: Sequence[Segment]) -> int:
    return sum(len(segment.data) for segment in segments)
