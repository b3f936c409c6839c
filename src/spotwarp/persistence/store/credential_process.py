"""An access key from a program of the user's: the AWS profile's `credential_process`.

The one home of processes below the execution plane. It runs the program as the AWS tools do (split like a shell would,
no shell, no input), for a bounded time, and reads the key from its output. Nothing that the program printed gets into
a message, because it may be the secret.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from spotwarp.errors import UsageError

LIMIT_S: Final = 30.0
"""Seconds that the program may take."""
_HINT: Final = "Run the profile's credential_process by hand: it must print the key as the AWS documentation says."


@dataclass(frozen=True, slots=True)
class Answer:
    """A key as the program gave it, and until when it is good (None: for ever)."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(repr=False)
    expires: datetime | None


def run(command: str, env: Mapping[str, str]) -> Answer:
    """The key that `command` prints. Raises `UsageError` when it prints none in `LIMIT_S`."""
    try:
        words = shlex.split(command)
        done = subprocess.run(
            words,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            env=dict(env),
            process_group=0,  # a Ctrl-C is for the training command
        )
    except subprocess.TimeoutExpired:  # its text would quote what was printed
        raise UsageError(f"credential_process gave no key within {LIMIT_S:.0f} s", hint=_HINT) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no command line"
        raise UsageError(f"credential_process cannot be started: {reason}", hint=_HINT) from None
    if done.returncode != 0:
        raise UsageError(f"credential_process failed with exit code {done.returncode}", hint=_HINT)
    return _answer(done.stdout)


def _answer(printed: bytes) -> Answer:
    try:
        said = json.loads(printed)
        if said["Version"] != 1:
            raise ValueError("another version")
        until = said.get("Expiration")
        expires = datetime.fromisoformat(until) if until else None
        if expires is not None and expires.tzinfo is None:
            expires = expires.replace(tzinfo=UTC)
        parts = (said["AccessKeyId"], said["SecretAccessKey"], said.get("SessionToken") or "")
        if not all(isinstance(part, str) for part in parts) or not all(parts[:2]):
            raise ValueError("no text")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError("credential_process printed no key that can be used", hint=_HINT) from None
    return Answer(parts[0], parts[1], parts[2] or None, expires)
