"""What an entry's object holds, and what a reader makes of one that it does not know."""

from __future__ import annotations

import msgspec
import pytest

from spotwarp.errors import CorruptObject, UnsupportedFormat
from spotwarp.persistence.envelope import Kind, seal, unseal
from spotwarp.persistence.runlog.entry import KINDS, Claim, Phase, Snapshot, State, Unknown, decode, encode

CLAIM = Claim(n=3, nonce="a.1", by="a", wall="now", generation=2, machine="m", cause="first", base=1, lease_s=20)


def raw(**changed: object) -> bytes:
    body = msgspec.json.decode(unseal(encode(CLAIM), Kind.ENTRY, "it"))
    return seal(Kind.ENTRY, msgspec.json.encode({**body, **changed}))


def test_an_entry_comes_back_as_it_was() -> None:
    state = State(generation=1, notice=(2, 30.0), pins={"child": 1}, fork=("parent", 4), retained=(1, 2))
    entry = Snapshot(
        n=7, nonce="x.1", by="x", state=state, generation=1, manifest="1-a", address="ab", base=2, loss=0.5
    )

    assert decode(encode(entry), 7, "it") == entry


def test_the_version_is_always_in_it() -> None:
    assert b'"v":0' in encode(CLAIM)


def test_the_kinds_are_the_published_ones() -> None:
    assert (
        " ".join(sorted(KINDS))
        == "aborted claim complete detach discarded failed fence forget fork phase pin published released rent-intent "
        "rented snapshot unpin"
    )


def test_unknown_fields_are_ignored() -> None:
    assert decode(raw(later="invention"), 3, "it") == CLAIM


@pytest.mark.parametrize("change", [{"kind": "teleport"}, {"v": 1}])
def test_an_unknown_kind_or_a_higher_version_is_unknown_and_keeps_its_nonce(change: dict[str, object]) -> None:
    entry = decode(raw(**change), 3, "it")

    assert isinstance(entry, Unknown)
    assert (entry.n, entry.nonce, entry.by) == (3, "a.1", "a")


@pytest.mark.parametrize(
    "data",
    [
        raw(n=4),
        raw(generation="two"),
        raw(kind=None),
        seal(Kind.ENTRY, b"not json"),
        seal(Kind.ENTRY, b"[]"),
        seal(Kind.MANIFEST, b"{}"),
        encode(CLAIM)[:-1],
        encode(CLAIM).replace(b"first", b"worst"),
        b"",
    ],
    ids=["other number", "wrong type", "no kind", "no json", "no object", "other kind", "short", "flipped", "empty"],
)
def test_a_damaged_entry_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptObject):
        decode(data, 3, "it")


def test_a_newer_frame_is_no_damage() -> None:
    data = bytearray(encode(CLAIM))
    data[5] = 9

    with pytest.raises(UnsupportedFormat, match="format version 9"):
        decode(bytes(data), 3, "it")


def test_roots_are_what_is_retained_or_pinned() -> None:
    assert State(retained=(3, 4), pins={"c": 2}).roots == {2, 3, 4}


def test_a_run_is_free_before_the_first_claim_and_under_a_seal() -> None:
    assert State().free
    assert State(generation=1, seal="stopped").free
    assert not State(generation=1).free


def test_a_phase_is_one_of_the_five() -> None:
    with pytest.raises(CorruptObject):
        decode(encode(Phase(n=1, generation=1, phase="dreaming")), 1, "it")  # type: ignore[arg-type]
