"""The zip archives that torch writes, from their structure.

Owns what makes such a file whole: the end record, the central directory before it, and for every record of it a local
header of the same name with its data inside the file and over nobody else's. Small records are checked against their
CRC, and all of them if the file has a hole (a file system may store zeros as holes; only the CRC can tell) or the
caller wants proof.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from spotwarp.execution.checkpoints.members import Source, Unsound, show

MAX_DIRECTORY = 16_000_000
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_SMALL = 64 * 1024
_PIECE = 1024 * 1024
_M16, _M32 = 0xFFFF, 0xFFFFFFFF
_LIMITS = (_M16, _M16, _M32, _M32)


@dataclass(frozen=True, slots=True, order=True)
class _Record:
    offset: int
    name: bytes
    method: int
    crc: int
    stored: int
    size: int


def check_archive(source: Source, *, prove: bool = False) -> bool:
    """Return if the archive is structurally whole. Raises `Unsound` with the reason if not.

    With `prove` every byte of it is read; the answer is whether every record then agreed with a checksum.
    """
    count, start, length = _directory(source)
    if length > MAX_DIRECTORY:
        raise _damaged(source, "its directory is too large")
    records = sorted(_records(source, source.read(start, length), count))
    if not records:
        raise _damaged(source, "it has no records")
    holed = source.hole() is not None
    free, proven = 0, prove
    for record in records:
        if record.offset < free:
            raise _damaged(source, f"record {_text(record.name)} lies over another")
        data = _data_start(source, record, start)
        free = data + record.stored
        if free > start:
            raise _damaged(source, f"record {_text(record.name)} runs into the directory")
        if holed or prove or record.stored <= _SMALL:
            proven &= _check_crc(source, record, data, proof_needed=holed)
    return proven


def record(source: Source, leaf: bytes) -> bytes:
    """The content of the record with this last part in its name, of a whole archive.

    Empty when there is none, or when it is compressed or larger than `MAX_DIRECTORY`. Raises `Unsound`.
    """
    count, start, length = _directory(source)
    for one in _records(source, source.read(start, min(length, MAX_DIRECTORY)), count):
        if one.name.rpartition(b"/")[2] == leaf and one.method == 0 and one.stored <= MAX_DIRECTORY:
            return source.read(_data_start(source, one, start), one.stored)
    return b""


def _directory(source: Source) -> tuple[int, int, int]:
    """Number of records, start and length of the central directory."""
    tail = source.read(max(0, source.size - _END.size - _M16), min(source.size, _END.size + _M16))
    at = len(tail)
    while (at := tail.rfind(b"PK\5\6", 0, at)) >= 0:
        if at + _END.size <= len(tail):
            *_, here, count, length, start, comment = _END.unpack_from(tail, at)
            if at + _END.size + comment == len(tail):
                break
    else:
        raise Unsound(f"{show(source.name)} is cut short: it has no end record")
    end = source.size - len(tail) + at
    narrow = (here, count, length, start)
    count, length, start, end = _directory64(source, end) or (count, length, start, end)
    # Where there are two end records the narrow one holds the same numbers, or all ones for "see the wide one".
    agree = all(
        value in (wide, limit)
        for value, wide, limit in zip(narrow, (count, count, length, start), _LIMITS, strict=True)
    )
    if not agree or start + length != end:
        raise _damaged(source, "its end record does not fit the file")
    return count, start, length


def _directory64(source: Source, end: int) -> tuple[int, int, int, int] | None:
    """The same from the 64-bit end record before the end record at `end`, if there is one."""
    if end < _LOCATOR.size:
        return None
    magic, disk, at, disks = _LOCATOR.unpack(source.read(end - _LOCATOR.size, _LOCATOR.size))
    if magic != b"PK\6\7":
        return None
    if disk or disks > 1 or at + _END64.size > end - _LOCATOR.size:
        raise _damaged(source, "its 64-bit end record is not in the file")
    magic, size, *_, here, count, length, start = _END64.unpack(source.read(at, _END64.size))
    if magic != b"PK\6\6" or at + 12 + size != end - _LOCATOR.size or here != count:
        raise _damaged(source, "its 64-bit end record does not fit the file")
    return count, length, start, at


def _records(source: Source, directory: bytes, count: int) -> list[_Record]:
    records = []
    at = 0
    while at < len(directory):
        if at + _CENTRAL.size > len(directory):
            raise _damaged(source, "its directory is cut short")
        fields = _CENTRAL.unpack_from(directory, at)
        magic, method, offset = fields[0], fields[4], fields[16]
        crc, stored, size, names, extras, comments = fields[7:13]
        name_at = at + _CENTRAL.size
        at = name_at + names + extras + comments
        if magic != b"PK\1\2" or at > len(directory):
            raise _damaged(source, "its directory is damaged")
        name, extra = directory[name_at : name_at + names], directory[name_at + names : at - comments]
        size, stored, offset = _wide(source, extra, [size, stored, offset])
        records.append(_Record(offset, name, method, crc, stored, size))
    if len(records) != count:
        raise _damaged(source, f"its directory has {len(records)} of {count} records")
    return records


def _wide(source: Source, extra: bytes, values: list[int]) -> list[int]:
    """The 64-bit values for those of `values` that say "see the extra field"."""
    if _M32 not in values:
        return values
    while len(extra) >= 4:
        tag, length = struct.unpack_from("<2H", extra)
        field, extra = extra[4 : 4 + length], extra[4 + length :]
        if tag == 1 and len(field) >= 8 * values.count(_M32):
            longs = iter(struct.unpack_from(f"<{len(field) // 8}Q", field))
            return [next(longs) if value == _M32 else value for value in values]
    raise _damaged(source, "its directory is damaged")


def _data_start(source: Source, record: _Record, limit: int) -> int:
    head = record.offset + _LOCAL.size + len(record.name)
    if head > limit:
        raise _damaged(source, f"record {_text(record.name)} runs into the directory")
    raw = source.read(record.offset, _LOCAL.size + len(record.name))
    fields = _LOCAL.unpack_from(raw)
    if fields[0] != b"PK\3\4" or fields[9] != len(record.name) or raw[_LOCAL.size :] != record.name:
        raise _damaged(source, f"record {_text(record.name)} is not where the directory says")
    if record.method == 0 and record.stored != record.size:
        raise _damaged(source, f"record {_text(record.name)} contradicts itself")
    return head + int(fields[10])


def _check_crc(source: Source, record: _Record, start: int, *, proof_needed: bool) -> bool:
    """Whether there is a checksum to agree with. Raises `Unsound` when it does not agree."""
    # torch writes a CRC of 0 when told not to compute it, and never compresses.
    if record.method != 0 or (record.crc == 0 and record.stored):
        if proof_needed:
            raise Unsound(f"{show(source.name)} has a hole at byte {source.hole()}: that part was never written")
        return False
    crc = 0
    for offset in range(0, record.stored, _PIECE):
        crc = zlib.crc32(source.read(start + offset, min(_PIECE, record.stored - offset)), crc)
    if crc != record.crc:
        hole = source.hole()
        where = "" if hole is None else f" (the file has a hole at byte {hole})"
        raise _damaged(source, f"record {_text(record.name)} does not match its checksum{where}")
    return True


def _text(name: bytes) -> str:
    return show(name.decode("utf-8", "backslashreplace"))


def _damaged(source: Source, what: str) -> Unsound:
    return Unsound(f"{show(source.name)} is damaged: {what}")
