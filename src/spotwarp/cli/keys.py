"""The keys that this process was given in its environment, taken out of it before anything else is done.

Whatever is started later (the command, hooks, a `credential_process`, `nvidia-smi`) inherits none of them. They are
held in memory alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

KEY: Final = "SPOTWARP_KEY"
NEW_KEY: Final = "SPOTWARP_NEW_KEY"

_held: dict[str, str] = {}


def take() -> None:
    """Take them out of the environment. First thing in the process."""
    _held.clear()
    _held.update({name: os.environ.pop(name) for name in (KEY, NEW_KEY) if name in os.environ})


def held() -> dict[str, str]:
    """What was taken, by the variables' names: for this process, and for itself started again in the background."""
    return dict(_held)


def leave(wanted: Iterable[str]) -> None:
    """Put back the key where the command is to have it, since `secrets` names its variable."""
    if KEY in wanted and KEY in _held:
        os.environ[KEY] = _held[KEY]
