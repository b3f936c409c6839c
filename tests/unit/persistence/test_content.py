"""How a file's content is named."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spotwarp.persistence.content import HOLE, SMALL, digests_of, joined, names, parts
from spotwarp.persistence.manifest import FILE, Blob, Entry, Extent

_digests = st.binary(min_size=16, max_size=16).filter(lambda digest: digest != HOLE)
_data = st.tuples(st.integers(1, 1 << 31), _digests)
_holes = st.tuples(st.one_of(st.integers(1, 1 << 31), st.integers(1 << 29, 1 << 61)), st.just(HOLE))
_parts = st.lists(st.one_of(_data, _holes), max_size=20)


@given(_parts)
def test_what_is_joined_comes_apart_again(given_parts: list[tuple[int, bytes]]) -> None:
    digests = joined(given_parts)
    size = sum(length for length, _ in given_parts)
    found = parts(digests, size)
    assert sum(length for length, _ in found) == size
    assert [part for part in found if part[1] != HOLE] == [part for part in given_parts if part[1] != HOLE]
    assert list(names(digests)) == [digest for _, digest in given_parts if digest != HOLE]


@given(_parts, st.integers(1, 5))
def test_holes_are_written_in_one_way(given_parts: list[tuple[int, bytes]], pieces: int) -> None:
    """However a hole was come across, in one part or in several."""
    split: list[tuple[int, bytes]] = []
    for length, digest in given_parts:
        if digest == HOLE and length > pieces:
            split += [(1, HOLE)] * pieces
            length -= pieces
        split.append((length, digest))
    assert joined(split) == joined(given_parts)


@given(st.integers(1, 1 << 62))
def test_a_hole_takes_one_row_however_large_it_is(length: int) -> None:
    digests = joined([(length, HOLE)])
    assert len(digests) == 20
    assert parts(digests, length) == [(length, HOLE)]
    assert list(names(digests)) == []


@given(_parts)
def test_a_manifest_tells_the_same(given_parts: list[tuple[int, bytes]]) -> None:
    blobs: list[Blob] = []
    extents: list[Extent] = []
    at = 0
    for length, digest in [*given_parts, (SMALL, HOLE)]:
        if digest != HOLE:
            extents.append(Extent(at, length, len(blobs), 0))
            blobs.append(Blob(0, 0, 0, 0, length, digest))
        at += length
    entry = Entry(b"f", FILE, 0o644, 0, at, tuple(extents))
    assert digests_of(entry, blobs) == joined([*given_parts, (SMALL, HOLE)])


def test_a_small_file_has_one_digest() -> None:
    assert parts(b"d" * 16, 7) == ((7, b"d" * 16),)
    assert list(names(b"d" * 16)) == [b"d" * 16]
    assert parts(b"", 0) == []
    entry = Entry(b"f", FILE, 0o644, 0, 7, (Extent(0, 7, 0, 3),), b"", b"d" * 16)
    assert digests_of(entry, [Blob(0, 0, 0, 0, 10, b"x" * 16)]) == b"d" * 16


def test_a_part_of_a_blob_has_no_digest() -> None:
    entry = Entry(b"f", FILE, 0o644, 0, SMALL, (Extent(0, SMALL, 0, 1),))
    assert digests_of(entry, [Blob(0, 0, 0, 0, SMALL + 1, b"x" * 16)]) is None
