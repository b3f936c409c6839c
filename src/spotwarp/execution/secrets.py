"""What the command needs and is never stored: the variables that `secrets` names, and secret files left out by name.

Names only: a value is compared with nothing but emptiness, goes into the redactor's memory and nowhere else (I11).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from spotwarp.errors import SecretMissing, UsageError
from spotwarp.execution.redaction import Redactor
from spotwarp.persistence.entries import shown
from spotwarp.persistence.excludes import WITHHELD
from spotwarp.persistence.manifest import Skipped

_NAMED = 8


def absent(names: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Those of the variables that are not set, or empty."""
    return [name for name in names if not env.get(name, "").strip()]


def require(names: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The values of the variables that the command needs. Raises `SecretMissing` naming those that are empty."""
    missing = absent(names, env)
    if missing:
        raise SecretMissing(
            f"the command needs {_listed(missing)}, which {'is' if len(missing) == 1 else 'are'} not set here",
            hint="Set it in the environment of `spotwarp run` (option `secrets` in the config names what is needed). "
            "Nothing was changed.",
        )
    return [env[name] for name in names]


def refuse_spelled_out(command: Sequence[str], redactor: Redactor) -> None:
    """Raise `UsageError` for a command that holds a secret's value: the command is recorded in the run log."""
    if any(redactor.text(word) != word for word in command):
        raise UsageError(
            "the command holds the repository's key, or a value that `secrets` names, and it is recorded in the run",
            hint="Name the variable instead, in single quotes: --command 'train --token \"$TOKEN\"'",
        )


def left_out(skipped: Sequence[Skipped]) -> list[str]:
    """The secret files among what a snapshot does not hold."""
    return [shown(one.path) for one in skipped if one.reason == WITHHELD]


def withheld(skipped: Sequence[Skipped], workspace: Path, names: Sequence[str]) -> str:
    """What to say where a snapshot was taken beside secret files that are not here; empty where nothing is missing.

    Where `names` says which variables the command needs, they were checked already.
    """
    if names:
        return ""
    paths = [one.path for one in skipped if one.reason == WITHHELD]
    missing = [shown(p) for p in paths if not (workspace / p.decode("utf-8", "surrogateescape")).exists()]
    if not missing:
        return ""
    was = "was" if len(missing) == 1 else "were"
    return (
        f"{_listed(missing)} {was} not stored (secrets never are) and {'is' if len(missing) == 1 else 'are'} not here: "
        "if the command needs it, put it here, or name its variables in `secrets:`"
    )


def _listed(names: Sequence[str]) -> str:
    some = ", ".join(names[:_NAMED])
    return some + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
