"""Where a secret comes from, and what is refused as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwarp.errors import ConfigError, UsageError, WorkspaceFault
from spotwarp.persistence.encryption.secret import VARIABLE, chosen, given, place, read, read_or_make, secret


def test_a_key_file_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "k"
    made, new = read_or_make(path)
    assert new
    assert made.kind == "file"
    assert len(made.material) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_or_make(path) == (made, False)
    assert secret(path.read_text()) == made, "what a file holds may come in a variable"
    assert read_or_make(tmp_path / "other")[0].material != made.material


def test_a_passphrase_is_one_however_its_letters_are_composed() -> None:
    assert secret("über alles").material == secret("u\u0308ber alles\n").material
    assert secret(" spaces count ").material != secret("spaces count").material


def test_no_secret_is_shown() -> None:
    assert "horse" not in repr(secret("correct horse"))


def test_the_variable_comes_before_the_file(tmp_path: Path) -> None:
    made, _ = read_or_make(tmp_path / "k")
    workspace = tmp_path / "ws"
    env = {VARIABLE: "correct horse"}
    assert given(env, str(tmp_path / "k"), workspace) == secret("correct horse")
    assert given({}, str(tmp_path / "k"), workspace) == made
    assert given({}, "", workspace) is None


def test_where_a_secret_came_from_is_told(tmp_path: Path) -> None:
    read_or_make(tmp_path / "k")
    found = (given({VARIABLE: "correct horse"}, "", tmp_path / "ws"), given({}, str(tmp_path / "k"), tmp_path / "ws"))
    assert [one.words for one in found if one] == ["the passphrase in SPOTWARP_KEY", f"the key in {tmp_path / 'k'}"]


def test_a_variable_that_is_no_text_is_a_typed_error() -> None:
    with pytest.raises(UsageError, match="the key in SPOTWARP_KEY is not text"):
        given({VARIABLE: b"correct \xff horse".decode("utf-8", "surrogateescape")}, "", Path("/ws"))


@pytest.mark.parametrize("text", ["", "\n", "   "])
def test_nothing_is_no_key(text: str) -> None:
    with pytest.raises(UsageError):
        secret(text)


def test_a_new_passphrase_has_some_length() -> None:
    with pytest.raises(UsageError, match="shorter than 12"):
        chosen("elevenchars")
    assert chosen("horse battery").kind == "passphrase"


def test_what_is_plainly_no_passphrase_is_not_taken_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project-secret.key").touch()
    for text in ("/home/me/project.key", "~/project-secret.key", "project-secret.key"):
        with pytest.raises(UsageError, match="is the path of a file") as refused:
            chosen(text)
        assert text not in f"{refused.value.message} {refused.value.hint}"
    for text in ("spotwarp-key-" + "ab" * 31, "spotwarp-key-" + "AB" * 32):
        with pytest.raises(UsageError, match="not a whole one") as refused:
            chosen(text)
        assert text not in f"{refused.value.message} {refused.value.hint}"
    assert chosen("spotwarp-key-" + "ab" * 32).kind == "file"


@pytest.mark.parametrize("text", ["correct horse battery", "spotwarp-key-" + "ab" * 32, "~nobody-here/k", "/a\0b"])
def test_what_is_no_place_of_a_key_file_is_said_without_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="key_file") as refused:
        place(text, tmp_path)
    assert text not in f"{refused.value.message} {refused.value.hint}"


@pytest.mark.parametrize("content", ["", "my passphrase\n", "spotwarp-key-12", "spotwarp-key-" + "x" * 64])
def test_what_is_no_key_file_is_refused_and_left(tmp_path: Path, content: str) -> None:
    path = tmp_path / "k"
    path.write_text(content)
    with pytest.raises(ConfigError, match="not a key file"):
        read_or_make(path)
    assert path.read_text() == content


def test_a_key_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read(tmp_path / "k")
    with pytest.raises(WorkspaceFault, match="cannot be made"):
        read_or_make(tmp_path / "no" / "k")


def test_a_key_file_is_never_in_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "ws")
    for inside in ("ws/k", "ws/.spotwarp/k", "link/k"):
        with pytest.raises(ConfigError, match="inside the workspace"):
            place(str(tmp_path / inside), tmp_path / "ws")
    with pytest.raises(ConfigError, match="absolute"):
        place("k", tmp_path / "ws")
    assert place("~/k", tmp_path / "ws") == Path.home() / "k"
