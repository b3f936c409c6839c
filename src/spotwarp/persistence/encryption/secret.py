"""What the user keeps and SpotWarp never stores: a passphrase, or a key in a file or a variable (I11).

Owns where it is looked for and the form of a key file. A secret is shown to nobody: not in messages, not in a `repr`.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from spotwarp import system
from spotwarp.errors import ConfigError, UsageError, WorkspaceFault

VARIABLE: Final = "SPOTWARP_KEY"
"""Holds a passphrase, or what a key file holds."""
SHORTEST: Final = 8
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


def secret(text: str) -> Secret:
    """The secret that `text` is: a key as a key file holds it, or else a passphrase. Raises `UsageError` if empty."""
    bare = text.strip("\r\n")
    if not bare.strip():
        raise UsageError("the key is empty", hint=f"Set {VARIABLE} to the passphrase, or name a key file.")
    if (found := _FORM.fullmatch(bare.strip())) is not None:
        return Secret("file", bytes.fromhex(found[1]), bare.strip())
    # One passphrase, however a keyboard or a system composes its letters.
    return Secret("passphrase", unicodedata.normalize("NFC", bare).encode(), bare)


def chosen(text: str) -> Secret:
    """As `secret`, for a new one. Raises `UsageError` for a passphrase that is too short."""
    found = secret(text)
    if found.kind == "passphrase" and len(text.strip()) < SHORTEST:
        raise UsageError(
            f"the passphrase is shorter than {SHORTEST} characters",
            hint="Take several random words, or a key file: --key-file FILE makes one.",
        )
    return found


def given(env: MutableMapping[str, str], key_file: str, workspace: Path, *, keep: bool = False) -> Secret | None:
    """The secret of this process: the variable's, else the file's, else None.

    The variable is removed from `env`, unless `keep`: no process that is started later shall inherit it. Raises
    `ConfigError` when the file cannot be used.
    """
    text = env.get(VARIABLE, "") if keep else env.pop(VARIABLE, "")
    if text.strip():
        return secret(text)
    return read(place(key_file, workspace)) if key_file else None


def place(key_file: str, workspace: Path) -> Path:
    """Where the key file is. Raises `ConfigError` for a place that would be stored, or is another one elsewhere."""
    path = Path(key_file).expanduser()
    if not path.is_absolute():
        raise ConfigError(f"key_file: {key_file!r} is not an absolute path", hint="Write it from / or ~/ on.")
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
    return secret(text)


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
    return secret(text), True


def _settle(directory: Path) -> None:
    """Make the file's name durable, where directories can be opened."""
    if system.DIRECTORY:
        descriptor = os.open(directory, os.O_RDONLY | system.DIRECTORY | system.CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
