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


def test_the_variable_comes_before_the_file_and_is_not_inherited(tmp_path: Path) -> None:
    made, _ = read_or_make(tmp_path / "k")
    workspace = tmp_path / "ws"
    env = {VARIABLE: "correct horse", "HOME": "/"}
    assert given(env, str(tmp_path / "k"), workspace) == secret("correct horse")
    assert env == {"HOME": "/"}
    assert given(env, str(tmp_path / "k"), workspace) == made
    assert given(env, "", workspace) is None
    kept = {VARIABLE: "correct horse"}
    given(kept, "", workspace, keep=True)
    assert kept == {VARIABLE: "correct horse"}


@pytest.mark.parametrize("text", ["", "\n", "   "])
def test_nothing_is_no_key(text: str) -> None:
    with pytest.raises(UsageError):
        secret(text)


def test_a_new_passphrase_has_some_length() -> None:
    with pytest.raises(UsageError, match="shorter than 8"):
        chosen("horse")
    assert chosen("horse battery").kind == "passphrase"


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
