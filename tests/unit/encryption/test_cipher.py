"""Boxes open where they belong and nowhere else; names are hidden and found again."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwarp.errors import CorruptObject
from spotwarp.model import checked_run
from spotwarp.persistence.encryption.cipher import BOX_EXTRA, Cipher

KEY = bytes(range(32))
CIPHER = Cipher(KEY, "repository")
LETTERS = string.ascii_letters + string.digits + "_-"


@pytest.mark.parametrize("size", [0, 1, 15, 16, 1000, 1 << 20])
def test_what_was_closed_is_opened(size: int) -> None:
    data = bytes(size)
    box = CIPHER.box("a").close(data, b"here")
    assert len(box) == size + BOX_EXTRA
    assert CIPHER.box("a").open(box, b"here", "it") == data


def test_a_box_that_is_written_in_place_is_a_box() -> None:
    into = bytearray(100 + BOX_EXTRA)
    with memoryview(into) as view:
        CIPHER.box("a").close_into(view, b"here", b"x" * 30, b"", bytearray(b"x" * 70))
    assert CIPHER.box("a").open(into, b"here", "it") == b"x" * 100


def test_no_two_boxes_are_alike() -> None:
    assert len({CIPHER.box("a").close(b"same", b"here") for _ in range(50)}) == 50


@pytest.mark.parametrize(
    ("cipher", "path", "context"),
    [
        (CIPHER, "b", b"here"),
        (CIPHER, "a", b"there"),
        (Cipher(KEY, "other"), "a", b"here"),
        (Cipher(bytes(32), "repository"), "a", b"here"),
    ],
    ids=["another path", "another context", "another repository", "another key"],
)
def test_a_box_opens_nowhere_else(cipher: Cipher, path: str, context: bytes) -> None:
    box = CIPHER.box("a").close(b"secret", b"here")
    with pytest.raises(CorruptObject, match="it cannot be decrypted"):
        cipher.box(path).open(box, context, "it")


def test_no_byte_of_a_box_can_be_changed_or_be_missing() -> None:
    box = CIPHER.box("a").close(b"secret", b"here")
    for at in range(len(box)):
        changed = bytearray(box)
        changed[at] ^= 1
        for wrong in (bytes(changed), box[:at], box + box[at:]):
            with pytest.raises(CorruptObject):
                CIPHER.box("a").open(wrong, b"here", "it")


@given(st.text(LETTERS, min_size=1, max_size=64).filter(lambda name: name[0] not in "_-"))
def test_a_name_is_hidden_and_found_again(name: str) -> None:
    hidden = CIPHER.hide(name)
    assert hidden == Cipher(KEY, "repository").hide(name)
    assert CIPHER.show(hidden) == name
    assert hidden == hidden.lower()
    assert hidden.isascii()
    assert hidden.isalnum()
    assert Cipher(KEY, "other").show(hidden) is None
    assert len(hidden) <= 128


def test_names_of_common_lengths_look_alike() -> None:
    assert len({len(CIPHER.hide(checked_run(name))) for name in ("a", "main", "main-2", "llama-7b-lora")}) == 1


@pytest.mark.parametrize("hidden", ["", "main", "MAIN", "aaaaaaaa", "a" * 52, "ä", "1189", CIPHER.hide("x").upper()])
def test_what_no_name_was_made_to_is_none(hidden: str) -> None:
    assert CIPHER.show(hidden) is None
