"""Exact values never get into what is kept, wherever a piece of the output ends."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from spotwarp.execution.redaction import MASK, Redactor

VALUES = ["hf_secret", "hf_secret_longer", "aaabaaab"]


def streamed(redactor: Redactor, pieces: list[bytes]) -> bytes:
    stream = redactor.stream()
    return b"".join(stream.feed(piece) for piece in pieces) + stream.rest()


def test_values_are_masked_and_nothing_else() -> None:
    redactor = Redactor(VALUES)
    assert redactor.text("token hf_secret_longer, hf_secret.") == f"token {MASK}, {MASK}."
    assert redactor.text("caf\udce9 hf_secre") == "caf\udce9 hf_secre"


def test_a_files_last_newline_is_not_waited_for() -> None:
    assert Redactor(["hf_secret\n"]).text("token: hf_secret, ok") == f"token: {MASK}, ok"


def test_short_values_are_left_alone() -> None:
    assert Redactor(["1", "12345"]).text("1 12345") == "1 12345"


def test_nothing_is_held_back_but_a_possible_beginning() -> None:
    stream = Redactor(VALUES).stream()
    assert stream.feed(b"step 1\n") == b"step 1\n"
    assert stream.feed(b"x hf_se") == b"x "
    assert stream.feed(b"ven") == b"hf_seven"
    assert Redactor().stream().feed(b"hf_se") == b"hf_se"


def test_a_value_that_begins_a_longer_one_waits_for_it() -> None:
    for cut in range(len("hf_secret_longer")):
        pieces = [b"hf_secret_longer"[:cut], b"hf_secret_longer"[cut:], b"!"]
        assert streamed(Redactor(VALUES), pieces) == MASK.encode() + b"!"
    assert streamed(Redactor(VALUES), [b"hf_secret", b"_lo!"]) == MASK.encode() + b"_lo!"


text = st.lists(st.sampled_from([b"hf_secret", b"hf_", b"secret", b"_longer", b"aaab", b"a", b"b", b"\n", b"\xff"]))


@given(text, st.lists(st.integers(0, 200)))
def test_a_stream_keeps_no_value_however_it_is_cut(parts: list[bytes], cuts: list[int]) -> None:
    """Cutting changes nothing: neither is a part of a value left over, nor anything else taken out."""
    data = b"".join(parts)
    edges = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    pieces = [data[a:b] for a, b in pairwise(edges)]
    kept = streamed(Redactor(VALUES), pieces)
    assert kept == Redactor(VALUES).whole(data)
