"""How blobs are read out of packs: few ranged requests, every blob verified (I2).

A read is a run of neighbouring blobs in one pack. What it yields has been decoded and hashed; what fails is read a
second time by itself, since damage on the way is not damage in the store, and is then reported, never returned.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Final, TypeVar

from spotwarp.errors import CorruptObject, ObjectMissing, UnsupportedFormat
from spotwarp.persistence.encryption.cipher import BOX_EXTRA, Box
from spotwarp.persistence.encryption.sealed import box_for
from spotwarp.persistence.envelope import digest
from spotwarp.persistence.layout import pack_key
from spotwarp.persistence.manifest import NO_BASE, Blob, Entry, Manifest, PackRef
from spotwarp.persistence.pack import blob_context
from spotwarp.persistence.store.api import Buffer, Store

READ_SIZE: Final = 8 << 20
"""Neighbouring blobs are merged up to this many bytes; it bounds a thread's memory together with `MAX_RAW`."""
GAP: Final = 64 << 10
"""Unwanted bytes between two blobs that cost less to read than another request."""
BASE_RAW: Final = 8 << 20
"""Decoded bytes of blobs that others wait for, in one read: they are held until the last of these is decoded."""
_BASES_KEPT: Final = 8
MAX_RAW: Final = 256 << 20
"""A blob that says it decodes to more than this is damage, not data."""

Result = TypeVar("Result")

Unreadable = CorruptObject | UnsupportedFormat
BaseOf = Callable[[Blob], Buffer | Unreadable | None]
"""The bytes with which a blob is decoded, None when it needs none; or what is wrong with them."""


def twice(read: Callable[[], Result]) -> Result:
    """What `read` gives, if need be at the second time: damage on the way is not damage in the store.

    An answer that was cut off and announced so has the right length for HTTP; only its hash tells.
    """
    try:
        return read()
    except CorruptObject:
        return read()


@dataclass(frozen=True, slots=True)
class Read:
    """One ranged request: `length` bytes from `start` of pack number `pack`, holding `blobs` (indices, by offset).

    `after` it come those of blobs that are coded against some of these.
    """

    pack: int
    start: int
    length: int
    blobs: tuple[int, ...]
    after: tuple[Read, ...] = ()

    @property
    def bytes(self) -> int:
        """How many bytes come from the store in all."""
        return self.length + sum(read.length for read in self.after)


def merged(
    blobs: Sequence[Blob],
    indices: Iterable[int],
    *,
    rank: Callable[[int], int] = lambda _: 0,
    most: int = READ_SIZE,
) -> list[Read]:
    """The reads that fetch `indices` of `blobs`, lowest `rank` first, then by pack and offset; of `most` bytes each."""
    reads: list[Read] = []
    group: list[int] = []
    last = (0, 0, 0)
    start = end = 0
    for where, index in sorted(((rank(i), blobs[i].pack, blobs[i].offset), i) for i in indices):
        blob = blobs[index]
        new_end = max(end, blob.offset + blob.stored)
        if group and (where[:2] != last[:2] or blob.offset > end + GAP or new_end - start > most):
            reads.append(Read(last[1], start, end - start, tuple(group)))
            group = []
        if not group:
            start, new_end = blob.offset, blob.offset + blob.stored
        group.append(index)
        last, end = where, new_end
    if group:
        reads.append(Read(last[1], start, end - start, tuple(group)))
    return reads


def based(
    blobs: Sequence[Blob],
    indices: Iterable[int],
    *,
    rank: Callable[[int], int] = lambda _: 0,
    most: int = READ_SIZE,
) -> list[Read]:
    """As `merged`, but a blob that is coded against another is read right after that one, which is read once.

    The other may be none of `indices`. It is as urgent as the most urgent blob that needs it.
    """
    upon: dict[int, list[int]] = {}
    ranks: dict[int, int] = {}
    for index in indices:
        base = blobs[index].base
        root = index if base == NO_BASE else base
        ranks[root] = min(rank(index), ranks.get(root, rank(index)))
        if base != NO_BASE:
            upon.setdefault(base, []).append(index)
    reads = merged(blobs, ranks, rank=ranks.__getitem__, most=most)
    if not upon:
        return reads
    return [
        replace(part, after=tuple(merged(blobs, (after for index in part.blobs for after in upon.get(index, ())))))
        for read in reads
        for part in _bounded(read, blobs, upon, min(most, BASE_RAW))
    ]


def _bounded(read: Read, blobs: Sequence[Blob], upon: Container[int], most: int) -> Iterator[Read]:
    """`read`, in parts so small that what is held of each for others is little, however well its blobs shrink."""
    group: list[int] = []
    raw = 0
    for index in read.blobs:
        size = blobs[index].raw if index in upon else 0
        if group and raw + size > most:
            yield from merged(blobs, group)
            group, raw = [], 0
        group.append(index)
        raw += size
    yield from merged(blobs, group)


class Bases:
    """The decoded bytes of blobs that others are coded against; the last few are kept. May be shared by threads."""

    def __init__(self, store: Store, packs: Sequence[PackRef], blobs: Sequence[Blob]) -> None:
        self._store, self._packs, self._blobs = store, packs, blobs
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Buffer | Unreadable] = OrderedDict()

    def of(self, blob: Blob) -> Buffer | Unreadable | None:
        """The bytes with which `blob` is decoded, None when it needs none; or what is wrong with them.

        Raises the store's errors, but `ObjectMissing`.
        """
        if blob.base == NO_BASE:
            return None
        with self._lock:
            found = self._kept.get(blob.base)
            if found is not None:
                self._kept.move_to_end(blob.base)
                return found
        found = self._fetched(self._blobs[blob.base])
        with self._lock:
            self._kept[blob.base] = found
            if len(self._kept) > _BASES_KEPT:
                self._kept.popitem(last=False)
        return found

    def _fetched(self, base: Blob) -> Buffer | Unreadable:
        pack = self._packs[base.pack]
        try:
            found = _read_alone(self._store, _key(pack), base, None)
        except ObjectMissing:
            return CorruptObject(f"pack {pack.id} is missing")
        return found if isinstance(found, CorruptObject | UnsupportedFormat) else bytes(found)


def decoded(
    store: Store, key: str, read: Read, blobs: Sequence[Blob], base_of: BaseOf
) -> Iterator[tuple[int, Buffer | Unreadable]]:
    """Every blob of `read` from the pack at `key`: its index and its verified bytes, or what is wrong with it.

    `base_of` is `Bases.of`, or does as that. What is wrong with a blob's base is wrong with the blob. The bytes are
    good until the next step of the iterator. Raises `ObjectMissing` and the store's other errors.
    """
    data: memoryview | None
    try:
        data = memoryview(store.get_range(key, read.start, read.length))
    except CorruptObject:  # too short for the whole read; some of its blobs may still be there
        data = None
    box = box_for(store, key)
    for index in read.blobs:
        blob = blobs[index]
        start = blob.offset - read.start
        base = base_of(blob)
        if isinstance(base, CorruptObject | UnsupportedFormat):
            damaged = f"{_where(blob, key)}: what it is coded against is damaged: {base.message}"
            yield index, type(base)(damaged, hint=base.hint)
            continue
        result = _verified(blob, data[start : start + blob.stored], key, base, box) if data is not None else None
        if result is None or isinstance(result, CorruptObject):
            result = _read_alone(store, key, blob, base)
        yield index, result


def fetched(
    store: Store, packs: Sequence[PackRef], read: Read, blobs: Sequence[Blob]
) -> Iterator[tuple[int, Buffer | Unreadable]]:
    """As `decoded`, of `read` and all that comes after it; a base is read once, and in memory only meanwhile.

    Raises `ObjectMissing` for the pack of `read`, and the store's other errors.
    """
    needed = {blobs[index].base for part in read.after for index in part.blobs}
    held: dict[int, Buffer | Unreadable] = {}

    def base_of(blob: Blob) -> Buffer | Unreadable | None:
        return held[blob.base] if blob.base != NO_BASE else None

    for index, data in decoded(store, _key(packs[read.pack]), read, blobs, base_of):
        if index in needed:
            held[index] = data if isinstance(data, CorruptObject | UnsupportedFormat) else bytes(data)
        yield index, held.get(index, data)
    for part in read.after:
        try:
            yield from decoded(store, _key(packs[part.pack]), part, blobs, base_of)
        except ObjectMissing:
            missing = CorruptObject(f"pack {packs[part.pack].id} is missing")
            yield from ((index, missing) for index in part.blobs)


def _key(pack: PackRef) -> str:
    return pack_key(pack.run, pack.id)


def _read_alone(store: Store, key: str, blob: Blob, base: Buffer | None) -> Buffer | Unreadable:
    try:
        data = memoryview(store.get_range(key, blob.offset, blob.stored))
        return _verified(blob, data, key, base, box_for(store, key))
    except CorruptObject as error:
        return error


def _where(blob: Blob, key: str) -> str:
    return f"{key}, bytes {blob.offset} to {blob.offset + blob.stored}"


def _verified(blob: Blob, coded: memoryview, key: str, base: Buffer | None, box: Box | None) -> Buffer | Unreadable:
    from spotwarp.persistence import codec

    where = _where(blob, key)
    if blob.raw > MAX_RAW:
        return CorruptObject(f"{where}: announces {blob.raw} bytes")
    try:
        if box is not None:
            coded = _opened(box, coded, blob.offset)
        data = codec.decode(blob.codec, coded, blob.raw, base)
    except CorruptObject as error:
        return CorruptObject(f"{where}: {error.message}")
    except UnsupportedFormat as error:
        return error
    if len(data) != blob.raw or digest(data) != blob.digest:
        return CorruptObject(f"{where}: fails its hash")
    return data


class _Room(threading.local):
    """What a thread opens boxes into, again and again: fresh pages cost more than the opening."""

    bytes = bytearray()


_room = _Room()


def _opened(box: Box, coded: memoryview, offset: int) -> memoryview:
    """What is in the box of the blob at `offset`; good until the thread's next one."""
    size = max(0, coded.nbytes - BOX_EXTRA)
    if len(_room.bytes) < size:
        _room.bytes = bytearray(size)
    opened = memoryview(_room.bytes)[:size]
    box.open_into(opened, coded, blob_context(offset), "a blob")
    return opened


def whole(store: Store) -> Callable[[Sequence[PackRef], Sequence[Blob]], list[Buffer]]:
    """Reads blobs as they are, all of some, in their order, into memory of their own.

    Raises `CorruptObject` (also when a pack is missing), `UnsupportedFormat` and the store's other errors.
    """

    def read(packs: Sequence[PackRef], blobs: Sequence[Blob]) -> list[Buffer]:
        bases = Bases(store, packs, blobs)
        found: dict[int, Buffer] = {}
        for one in merged(blobs, range(len(blobs))):
            pack = packs[one.pack]
            try:
                for number, data in decoded(store, _key(pack), one, blobs, bases.of):
                    if isinstance(data, CorruptObject | UnsupportedFormat):
                        raise data
                    found[number] = bytes(data)
            except ObjectMissing as error:
                raise CorruptObject(f"pack {pack.id} is missing") from error
        return [found[number] for number in range(len(blobs))]

    return read


def written(store: Store, manifest: Manifest, entry: Entry, into: BinaryIO) -> None:
    """Write a file's content to `into`, verified blob by blob: for a few small files on any system.

    Raises `CorruptObject`, `UnsupportedFormat`, `ObjectMissing` and the store's other errors; `into` is then no copy.
    """
    if any(not 0 <= extent.blob < len(manifest.blobs) for extent in entry.extents):
        raise CorruptObject("a file of the manifest names a blob that is not there")
    bases = Bases(store, manifest.packs, manifest.blobs)
    for extent in entry.extents:
        blob = manifest.blobs[extent.blob]
        pack = manifest.packs[blob.pack]
        one = Read(blob.pack, blob.offset, blob.stored, (extent.blob,))
        ((_, data),) = decoded(store, _key(pack), one, manifest.blobs, bases.of)
        if isinstance(data, (CorruptObject, UnsupportedFormat)):
            raise data
        if not 0 <= extent.inner <= extent.inner + extent.length <= blob.raw:
            raise CorruptObject("a file of the manifest reaches beyond its blob")
        into.seek(extent.offset)
        into.write(memoryview(data)[extent.inner : extent.inner + extent.length])
    into.truncate(entry.size)
