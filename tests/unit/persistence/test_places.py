"""A map from digests to places, in either of its forms, is a dictionary that keeps what came first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwarp.persistence import places
from spotwarp.persistence.places import Places

_numbers = st.integers(0, (1 << 31) - 1)
# Few different first words: many must be looked for beside their slot.
_digests = st.builds(
    lambda low, high: low.to_bytes(8, "little") + high.to_bytes(8, "little"), st.integers(0, 3), _numbers
)
_added = st.lists(st.tuples(_digests, _numbers, st.integers(0, (1 << 32) - 2)), max_size=80)


@pytest.mark.parametrize("few", [0, 10, 1000], ids=["in slots", "on the way", "in a dictionary"])
def test_it_is_a_dictionary_that_keeps_what_came_first(few: int) -> None:
    @given(_added)
    def check(added: list[tuple[bytes, int, int]]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(places, "_FEW", few)
            made, expected = Places(1), {}
            for digest, blob, inner in added:
                made.add(digest, blob, inner)
                expected.setdefault(digest, (blob, inner))
            assert len(made) == len(expected)
            assert {digest: (blob, inner) for digest, blob, inner in made.items()} == expected
            assert all(made.get(digest) == place and digest in made for digest, place in expected.items())
            assert made.get(bytes(15) + b"\xff") is None
            assert bytes(15) + b"\xff" not in made

    check()
