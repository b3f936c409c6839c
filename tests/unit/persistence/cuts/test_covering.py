"""How tensors become pieces."""

from __future__ import annotations

import pytest

from spotwarp.persistence.cuts import CHUNK, Cuts, grid, lined_up
from spotwarp.persistence.cuts.covering import Tensor, cover

KIB, MIB = 1 << 10, 1 << 20
Piece = tuple[int, int, int, str]


def pieces(cuts: Cuts) -> list[Piece]:
    return [(cuts.starts[n], cuts.length(n), cuts.width(n), cuts.key(n)) for n in range(len(cuts))]


def test_nothing_known_is_a_grid_that_costs_nothing() -> None:
    assert pieces(grid(2 * CHUNK + 1)) == [(0, CHUNK, 0, ""), (CHUNK, CHUNK, 0, ""), (2 * CHUNK, 1, 0, "")]
    assert pieces(grid(0)) == []
    huge = grid(300 << 40)
    assert isinstance(huge.starts, range)
    assert (len(huge), huge.length(len(huge) - 1)) == (300 << 18, CHUNK)


def test_a_file_without_tensors_is_cut_every_chunk() -> None:
    assert pieces(cover(CHUNK + 5, [])) == [(0, CHUNK, 0, ""), (CHUNK, 5, 0, "")]


def test_a_large_tensor_is_cut_from_its_own_beginning() -> None:
    found = cover(100 + 9 * MIB, [Tensor(100, 9 * MIB, 2, "w")])
    assert pieces(found) == [
        (0, 100, 0, ""),
        (100, CHUNK, 2, "w+0"),
        (100 + CHUNK, CHUNK, 2, "w+1"),
        (100 + 2 * CHUNK, MIB, 2, "w+2"),
    ]


def test_small_neighbours_of_one_width_share_pieces() -> None:
    tensors = [Tensor(n * 200 * KIB, 200 * KIB, 4, f"t{n}") for n in range(7)]
    found = cover(1400 * KIB, tensors)
    assert pieces(found) == [(0, 1000 * KIB, 4, "t0+0"), (1000 * KIB, 400 * KIB, 4, "t5+0")]


def test_what_is_left_of_a_large_tensor_shares_with_what_follows() -> None:
    found = cover(
        CHUNK + 20 * KIB, [Tensor(0, CHUNK + 10 * KIB, 2, "w"), Tensor(CHUNK + 10 * KIB, 10 * KIB, 2, "bias")]
    )
    assert pieces(found) == [(0, CHUNK, 2, "w+0"), (CHUNK, 20 * KIB, 2, "w+1")]


def test_other_widths_and_elements_out_of_step_have_pieces_of_their_own() -> None:
    found = cover(8006, [Tensor(0, 2000, 2, "a"), Tensor(2000, 2000, 4, "b"), Tensor(4002, 4004, 4, "c")])
    assert pieces(found) == [(0, 2000, 2, "a+0"), (2000, 2002, 4, "b+0"), (4002, 4004, 4, "c+0")]


def test_large_tensors_share_with_nobody() -> None:
    found = cover(600 * KIB, [Tensor(0, 300 * KIB, 2, "a"), Tensor(300 * KIB, 300 * KIB, 2, "b")])
    assert pieces(found) == [(0, 300 * KIB, 2, "a+0"), (300 * KIB, 300 * KIB, 2, "b+0")]


def test_a_few_bytes_between_tensors_go_to_the_piece_before() -> None:
    found = cover(
        MIB + 3000,
        [Tensor(64, 300 * KIB, 2, "a"), Tensor(64 + 301 * KIB, 300 * KIB, 2, "b"), Tensor(MIB, 2000, 2, "c")],
    )
    assert pieces(found) == [
        (0, 64, 0, ""),
        (64, 301 * KIB, 2, "a+0"),
        (64 + 301 * KIB, 300 * KIB, 2, "b+0"),
        (64 + 601 * KIB, MIB - 64 - 601 * KIB, 0, ""),
        (MIB, 3000, 2, "c+0"),
    ]


def test_a_full_piece_takes_nothing_more() -> None:
    assert pieces(cover(CHUNK + 10, [Tensor(0, CHUNK, 2, "w")])) == [(0, CHUNK, 2, "w+0"), (CHUNK, 10, 0, "")]


@pytest.mark.parametrize(
    "tensors",
    [
        [Tensor(0, 10, 1, "a"), Tensor(9, 10, 1, "over")],
        [Tensor(95, 10, 1, "out")],
        [Tensor(5, 0, 1, "empty")],
        [Tensor(-5, 10, 1, "before")],
    ],
)
def test_tensors_that_do_not_lie_in_the_file_are_refused(tensors: list[Tensor]) -> None:
    with pytest.raises(ValueError, match="tensor"):
        cover(100, tensors)


def test_too_many_pieces_are_refused() -> None:
    with pytest.raises(ValueError, match="too many"):
        cover(8 * MIB, [Tensor(8 * n, 8, 1 + n % 2, f"t{n}") for n in range(2000)])


class TestLinedUp:
    TENSORS = (("embed", 5 * MIB, 2), ("norm", 10 * KIB, 2), ("head", 5 * MIB, 2), ("steps", 300 * KIB, 8))

    def laid(self, header: int, tensors: tuple[tuple[str, int, int], ...]) -> Cuts:
        at, found = header, []
        for name, length, width in tensors:
            found.append(Tensor(at, length, width, name))
            at += length
        return cover(at, found)

    def test_another_header_moves_nothing(self) -> None:
        mine, theirs = self.laid(1000, self.TENSORS), self.laid(1064, self.TENSORS)
        assert lined_up(mine, theirs) == {n: n for n in range(1, len(mine))}

    def test_a_tensor_more_or_of_another_size_leaves_the_others(self) -> None:
        mine = self.laid(1000, self.TENSORS)
        theirs = self.laid(1000, (("new", MIB, 2), *self.TENSORS[:2], ("head", 5 * MIB + 2, 2), self.TENSORS[3]))
        found = {mine.key(a): theirs.key(b) for a, b in lined_up(mine, theirs).items()}
        assert found == {key: key for key in ("embed+0", "embed+1", "norm+0", "head+0", "steps+0")}

    def test_another_width_is_another_thing(self) -> None:
        mine, theirs = self.laid(8, (("w", MIB, 2),)), self.laid(8, (("w", MIB, 4),))
        assert lined_up(mine, theirs) == {}

    def test_files_of_unknown_content_line_up_if_of_one_size(self) -> None:
        assert lined_up(grid(CHUNK + 7), grid(CHUNK + 7)) == {0: 0, 1: 1}
        assert lined_up(grid(CHUNK + 7), grid(CHUNK + 8)) == {}
        assert lined_up(grid(CHUNK + 7), cover(CHUNK + 7, [Tensor(0, CHUNK + 7, 1, "w")])) == {}
