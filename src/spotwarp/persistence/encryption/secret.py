"""What the user keeps and SpotWarp never stores: a passphrase, or a key in a file or a variable (I11).

Owns where it is looked for and the form of a key file. A secret is shown to nobody: not in messages, not in a `repr`.
"""

from __future__ import annotations

import contextlib
import os
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from spotwarp import system
from spotwarp.errors import ConfigError, UsageError, WorkspaceFault

VARIABLE: Final = "SPOTWARP_KEY"
"""Holds a passphrase, or what a key file holds."""
SHORTEST: Final = 12
"""Characters of a passphrase that is taken for a new key; whoever has the bucket can try all the shorter ones."""

_MARK: Final = "spotwarp-key-"
_FORM: Final = re.compile(rf"{_MARK}([0-9a-f]{{64}})")
_FILE_LIMIT: Final = 4096

Kind = Literal["passphrase", "file"]


@dataclass(frozen=True, slots=True)
class Secret:
    """`kind` says how much work guessing it is: `file` is 32 random bytes, `passphrase` is a person's."""

    kind: Kind
    material: bytes = field(repr=False)
    text: str = field(default="", repr=False)
    """As it was given: what is to be taken out of logs."""
    source: str = field(default="", compare=False)
    """Where it came from, as words: `in SPOTWARP_KEY`."""

    @property
    def words(self) -> str:
        """What it is and where it came from, for messages."""
        return " ".join(filter(None, ("the key" if self.kind == "file" else "the passphrase", self.source)))


def secret(text: str, source: str = "") -> Secret:
    """The secret that `text` is: a key as a key file holds it, or else a passphrase.

    Raises `UsageError` when it is empty or no text.
    """
    bare = text.strip("\r\n")
    try:
        bare.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the key {source} is not text in UTF-8".replace("  ", " "),
            hint=f"Set {VARIABLE} to a passphrase, or to what a key file holds.",
        ) from None  # the error holds it
    if not bare.strip():
        raise UsageError("the key is empty", hint=f"Set {VARIABLE} to the passphrase, or name a key file.")
    if (found := _FORM.fullmatch(bare.strip())) is not None:
        return Secret("file", bytes.fromhex(found[1]), bare.strip(), source)
    # One passphrase, however a keyboard or a system composes its letters.
    return Secret("passphrase", unicodedata.normalize("NFC", bare).encode(), bare, source)


def chosen(text: str, source: str = "") -> Secret:
    """As `secret`, for a new one. Raises `UsageError` for a passphrase that is too short, or plainly none."""
    found = secret(text, source)
    bare = text.strip()
    if found.kind == "file":
        return found
    if bare.startswith(_MARK):
        raise UsageError(
            "the passphrase begins as a key does, and is not a whole one",
            hint=f"A key is {_MARK} and 64 digits; was the end cut off?",
        )
    if _is_path(bare):
        raise UsageError(
            "the passphrase is the path of a file",
            hint="A key file is named by --key-file, SPOTWARP_KEY_FILE or `key_file`.",
        )
    if len(bare) < SHORTEST:
        raise UsageError(
            f"the passphrase is shorter than {SHORTEST} characters",
            hint="Take several random words, or a key file: --key-file FILE makes one.",
        )
    return found


def _is_path(text: str) -> bool:
    try:
        return text.startswith(("/", "~/", "./", "../")) or Path(text).exists()
    except (OSError, ValueError):  # too long, say
        return False


def given(env: Mapping[str, str], key_file: str, workspace: Path) -> Secret | None:
    """The secret of this process: the variable's, else the file's, else None.

    Raises `UsageError`, and `ConfigError` when the file cannot be used.
    """
    text = env.get(VARIABLE, "")
    if text.strip():
        return secret(text, f"in {VARIABLE}")
    return read(place(key_file, workspace)) if key_file else None


def place(key_file: str, workspace: Path) -> Path:
    """Where the key file is. Raises `ConfigError` for a place that would be stored, or is another one elsewhere."""
    # What is no path may be a key that was put in the wrong place: no message says it.
    if _FORM.search(key_file):
        raise ConfigError(
            "key_file holds a key, not the path of its file",
            hint=f"A key belongs into a file that only you can read, or into {VARIABLE}.",
        )
    path = Path(key_file)
    if key_file.startswith("~"):
        with contextlib.suppress(RuntimeError):  # nobody's home
            path = path.expanduser()
    if not path.is_absolute() or "\0" in key_file:
        raise ConfigError(
            "key_file is not an absolute path",
            hint=f"Write it from / or ~/ on. A passphrase belongs into {VARIABLE}, a key into a file.",
        )
    if path.resolve().is_relative_to(workspace.resolve()):
        raise ConfigError(
            f"the key file {path} is inside the workspace: it would be lost with it, and be stored behind itself",
            hint="Put it somewhere else, for example into your home directory.",
        )
    return path


def read(path: Path) -> Secret:
    """The key in the file at `path`. Raises `ConfigError`."""
    try:
        with path.open("rb") as file:
            text = file.read(_FILE_LIMIT).decode("ascii", "replace")
    except OSError as error:
        raise ConfigError(
            f"the key file {path} cannot be read: {error.strerror or error}",
            hint=f"Copy it to this machine, name its place in SPOTWARP_KEY_FILE, or set {VARIABLE}.",
        ) from error
    if _FORM.fullmatch(text.strip()) is None:
        raise ConfigError(
            f"{path} is not a key file",
            hint=f"`spotwarp init --encrypt --key-file` makes one. A passphrase belongs into {VARIABLE}.",
        )
    return secret(text, f"in {path}")


def read_or_make(path: Path) -> tuple[Secret, bool]:
    """The key in the file at `path`; where there is none, a new one is made there, durably, for its owner's eyes only.

    The flag says which (True: made now). Raises `ConfigError`, `WorkspaceFault`.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | system.CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        return read(path), False
    except OSError as error:
        raise WorkspaceFault(f"the key file {path} cannot be made: {error.strerror or error}") from error
    text = _MARK + os.urandom(32).hex()
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        _settle(path.parent)
    except OSError as error:
        raise WorkspaceFault(f"the key file {path} cannot be written: {error.strerror or error}") from error
    return secret(text, f"in {path}"), True


def _settle(directory: Path) -> None:
    """Make the file's name durable, where directories can be opened."""
    if system.DIRECTORY:
        descriptor = os.open(directory, os.O_RDONLY | system.DIRECTORY | system.CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
