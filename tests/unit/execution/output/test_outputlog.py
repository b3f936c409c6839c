"""The output log by positions: what is read is what was written, and what was dropped is known."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from spotwarp.execution.output import outputlog
from spotwarp.execution.output.following import Tail, copied, last_lines
from spotwarp.execution.output.outputlog import OutputLog, Recent


def everything(log: Path, at: int = 0, most: int = 1 << 20) -> list[tuple[int, bytes]]:
    found = []
    while True:
        start, data = outputlog.read(log, at, most)
        if not data:
            return found
        found.append((start, data))
        at = start + len(data)


@pytest.mark.parametrize("seed", range(20))
def test_every_byte_is_found_at_its_position(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    limit = chance.randrange(3, 3000)
    log, writer, whole = tmp_path / "log", OutputLog(tmp_path / "log", limit), b""
    for _ in range(chance.randrange(1, 60)):
        data = chance.randbytes(chance.randrange(1, 400))
        writer.write(data)
        whole += data
    writer.close()
    found = everything(log, most=chance.randrange(1, 500))
    assert all(whole[start : start + len(data)] == data for start, data in found)
    assert found[0][0] == 0
    assert found[-1][0] + len(found[-1][1]) == len(whole)  # the end is always there
    assert sum(part.size for part in outputlog.parts(log)) <= limit
    gaps = [(a + len(x), b) for (a, x), (b, _) in pairwise(found) if a + len(x) != b]
    assert len(gaps) <= 1
    at = chance.randrange(len(whole) + 1)
    start, data = outputlog.read(log, at)
    assert start >= at
    assert whole[start : start + len(data)] == data


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert outputlog.parts(tmp_path / "no" / "log") == []
    assert outputlog.read(tmp_path / "no" / "log", 7) == (7, b"")


def test_whoever_follows_misses_nothing_of_a_rotation(tmp_path: Path) -> None:
    writer, seen = OutputLog(tmp_path / "log", 300), bytearray()
    tail = Tail(tmp_path / "log")
    for i in range(200):
        writer.write(b"line %d\n" % i)
        copied(tail, seen.extend)
    assert bytes(seen) == b"".join(b"line %d\n" % i for i in range(200))


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        (b"", 3, b""),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\nc\n", 3, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 0, b""),
        (b"\n\n\n", 2, b"\n\n"),
        (b"no newline", 1, b"no newline"),
    ],
)
@pytest.mark.parametrize("piece", [1, 2, 100])
def test_the_last_lines(text: bytes, count: int, expected: bytes, piece: int) -> None:
    def read(at: int) -> tuple[int, bytes]:
        return at, text[at : at + piece]

    assert text[last_lines(read, 0, count) :] == expected


def test_the_last_lines_never_begin_in_what_was_dropped() -> None:
    kept = {0: b"first\n", 100: b"middle\nlast\n"}

    def read(at: int) -> tuple[int, bytes]:
        for start, data in kept.items():
            if start + len(data) > at:
                return max(at, start), data[max(at, start) - start :]
        return at, b""

    assert last_lines(read, 0, 1) == 107
    assert last_lines(read, 0, 2) == 100
    assert last_lines(read, 0, 3) == 0


def test_what_is_not_sent_yet_is_bounded_and_knows_its_place() -> None:
    recent = Recent(10)
    assert recent.take() is None
    recent.add(b"0123")
    assert recent.take() == (0, b"0123")
    assert recent.take() is None
    recent.add(b"45678")
    recent.add(b"9abcdefgh")
    assert recent.take() == (8, b"89abcdefgh")
