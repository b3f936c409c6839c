"""Where the tensors lie in the zip archives that torch and numpy write: records stored as they are.

torch aligns a record's data to 64 bytes and pads its local header for that, so the data's place is read from there. A
file of a distributed checkpoint (`.distcp`) is many such archives, one behind the other; each one's end record says
where it begins, so they are found from the last to the first.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterator
from typing import Final

from spotwarp.persistence.cuts import npy, pickled
from spotwarp.persistence.cuts.covering import Tensor
from spotwarp.persistence.cuts.reading import read

MAGIC: Final = b"PK\3\4"
_SMALLEST: Final = 4 << 10
"""Bytes. Smaller records are no tensors to us, just something between them."""
_STORAGES: Final = ("data/", "constants/")
"""How torch calls the records with elements in them."""
_MAX_DIRECTORY: Final = 4 << 20
"""Bytes; tens of thousands of records."""
_MAX_ARCHIVES: Final = 20_000
_LOCAL: Final = struct.Struct("<4s22x2H")


def tensors(fd: int, size: int) -> list[Tensor]:
    """In order of their offsets. Raises `ValueError`, `LookupError` or `OSError` when there are none to be found."""
    archives: list[list[Tensor]] = []
    end = size
    while end and len(archives) < _MAX_ARCHIVES:
        try:
            end, found = _last(fd, end)
        except (zipfile.BadZipFile, NotImplementedError, struct.error) as error:
            if archives:
                break  # what lies before is none
            raise ValueError("no whole archive") from error
        archives.append(found)
    if len(archives) == 1:
        return archives[0]
    numbered = enumerate(reversed(archives))
    return [tensor._replace(name=f"{number}/{tensor.name}") for number, found in numbered for tensor in found]


def _last(fd: int, end: int) -> tuple[int, list[Tensor]]:
    """The archive that ends at `end`: where it begins, and its tensors."""
    with zipfile.ZipFile(_Front(fd, end)) as archive:
        records = archive.infolist()
        start = min(record.header_offset for record in records)
        if not 0 <= start < end:
            raise ValueError("an archive that is not in the file")
        return start, sorted(_tensors(fd, records))


def _tensors(fd: int, records: list[zipfile.ZipInfo]) -> Iterator[Tensor]:
    widths = _widths(fd, records)
    for record in records:
        if record.compress_type or record.file_size != record.compress_size or record.file_size < _SMALLEST:
            continue
        name = record.filename.partition("/")[2]  # what comes before is named after the file, which may name the step
        if record.filename.endswith(".npy"):
            data = _data(fd, record)
            before, width = npy.header(fd, data)
            yield Tensor(data + before, record.file_size - before, width, record.filename)
        elif widths is None:
            raise ValueError("neither torch's nor numpy's")
        elif name.startswith(_STORAGES):
            yield Tensor(_data(fd, record), record.file_size, widths.get(name.removeprefix("data/"), 0), name)


def _widths(fd: int, records: list[zipfile.ZipInfo]) -> dict[str, int] | None:
    """What the archive's pickle says, if it has one: it is then torch's."""
    for record in records:
        if record.filename.endswith("/data.pkl"):
            if record.compress_type or record.file_size > pickled.MAX_PICKLE:
                return {}
            return pickled.widths(read(fd, _data(fd, record), record.file_size))
    return None


def _data(fd: int, record: zipfile.ZipInfo) -> int:
    """Where the record's data begins. Raises `ValueError`."""
    magic, name, extra = _LOCAL.unpack(read(fd, record.header_offset, _LOCAL.size))
    if magic != MAGIC:
        raise ValueError("a record that is not where the directory says")
    return record.header_offset + _LOCAL.size + int(name) + int(extra)


class _Front:
    """The first `end` bytes of a file, for `zipfile` to read."""

    def __init__(self, fd: int, end: int) -> None:
        self._fd, self._end, self._at = fd, end, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        if at < 0:
            raise OSError("before the beginning")
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def read(self, length: int = -1) -> bytes:
        left = max(0, self._end - self._at)
        length = left if length < 0 else min(length, left)
        if length > _MAX_DIRECTORY:
            raise ValueError("too large a directory")
        data = read(self._fd, self._at, length)
        self._at += length
        return data
