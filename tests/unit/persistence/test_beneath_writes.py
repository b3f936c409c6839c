"""Writing past the page cache: what is written lies in the file, whole, whatever the lengths and places."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from spotwarp.persistence.beneath import PastCache, begin_writeback

MIB = 1 << 20


@pytest.mark.parametrize("length", [0, 4096, MIB - 1, MIB, MIB + 1, 4 * MIB, 4 * MIB + 4097])
@pytest.mark.parametrize("offset", [0, 1, 4096, MIB])
def test_what_it_says_it_wrote_lies_there_and_nothing_else(tmp_path: Path, length: int, offset: int) -> None:
    content = random.Random(length).randbytes(length)
    path = tmp_path / "file"
    path.write_bytes(b"x" * (6 * MIB))
    fd = os.open(path, os.O_WRONLY)
    try:
        done = PastCache().write(fd, memoryview(content), offset)
        flags = os.get_blocking(fd), os.pwrite(fd, b"odd", 6 * MIB - 3)
    finally:
        os.close(fd)
    assert 0 <= done <= length
    assert flags == (True, 3), "the descriptor takes unaligned writes again"
    expected = bytearray(b"x" * (6 * MIB))
    expected[offset : offset + done] = content[:done]
    expected[-3:] = b"odd"
    assert path.read_bytes() == bytes(expected)


def test_a_second_longer_write_does_not_hold_the_first_ones_bytes(tmp_path: Path) -> None:
    writer = PastCache()
    path = tmp_path / "file"
    path.write_bytes(b"")
    fd = os.open(path, os.O_WRONLY)
    try:
        for content in (b"a" * MIB, b"b" * (3 * MIB), b"c" * MIB):
            done = writer.write(fd, memoryview(content), 0)
            os.pwrite(fd, content[done:], done)
    finally:
        os.close(fd)
    assert path.read_bytes() == b"c" * MIB + b"b" * (2 * MIB)


def test_a_descriptor_that_cannot_be_written_is_left_to_the_common_write(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"kept")
    fd = os.open(path, os.O_RDONLY)
    try:
        assert PastCache().write(fd, memoryview(bytes(MIB)), 0) == 0
    finally:
        os.close(fd)
    assert path.read_bytes() == b"kept"


def test_writeback_begins_or_is_said_not_to(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(MIB))
    fd = os.open(path, os.O_WRONLY)
    try:
        assert begin_writeback(fd, 0, MIB) in (True, False)
    finally:
        os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        begin_writeback(fd, 0, MIB)
