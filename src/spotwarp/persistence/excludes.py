"""What of a workspace is never stored: gitignore patterns, the defaults first, the user's after them.

The last pattern that matches decides, so a user's `!.env` takes a default back. An excluded directory is not descended
into; nothing beneath it can be taken back. Pure: it sees paths only, never the file system.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Final

from spotwarp.errors import ConfigError

OWN: Final = (".spotwarp/*", "!.spotwarp/log/", "!.spotwarp/config.yaml")
"""SpotWarp's runtime files are of one machine and one moment; its log and its configuration are the user's."""

DERIVED: Final = ("__pycache__/",)

SECRETS: Final = (
    ".env",
    ".env.*",
    "!.env.example",
    "!.env.sample",
    "!.env.template",
    ".netrc",
    ".git-credentials",
    ".pypirc",
    ".boto",
    ".s3cfg",
    ".passwd-s3fs",
    ".vast_api_key",
    ".aws/",
    ".azure/",
    ".gnupg/",
    ".kaggle/",
    ".kube/",
    ".runpod/",
    ".ssh/",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    "/.docker/config.json",
    "/.cache/huggingface/token",
    "/.cache/huggingface/stored_tokens",
    "/.config/gcloud/",
    "/.config/rclone/",
)
"""Files that hold credentials and nothing else, by the names their tools give them (I11)."""

WITHHELD: Final = "a secret by its name, never stored; where the command needs it, name its variables in `secrets:`"
"""The reason that a snapshot gives for such a path."""

DEFAULTS: Final = OWN + DERIVED + SECRETS

_DIRECTORY_MARK: Final = "(?P<ps_d>/)"
_ANY_DEPTH: Final = "^(?:.+/)?"
_PLAIN_NAME: Final = re.compile(r"(?:\\.|[\w.-]|\[\^/\][*+]?)+(?:/|\(\?:/\|\$\))")
"""The expression of a name that ends where the name ends: it looks no further, whatever follows."""
_FIRST_NAME: Final = re.compile(r"\^((?:\\.|[\w-])+)(?:/|\(\?:/\|\$\))")
"""The expression of a path begins with a name that has no wildcards."""


class Excludes:
    """Decides for one path at a time. May be shared by threads."""

    def __init__(self, patterns: Sequence[str] = (), *, defaults: Sequence[str] = DEFAULTS) -> None:
        """`patterns` are lines of a gitignore file. Raises `ConfigError` for one that cannot be one."""
        from pathspec import GitIgnoreSpec

        lines = [*defaults, *patterns]
        try:
            self._spec = GitIgnoreSpec.from_lines(lines)
        except ValueError as error:
            raise ConfigError(
                f"an exclude pattern cannot be read: {error}",
                hint="Excludes are written like the lines of a .gitignore.",
            ) from error
        first = lines.index(SECRETS[0]) if tuple(defaults) == DEFAULTS else len(lines)
        self._secret_lines = range(first, first + len(SECRETS))
        regexes = [pattern.regex.pattern for pattern in self._spec.patterns if pattern.regex is not None]
        by_name = [regex for regex in regexes if _only_name(regex)]
        self._names = _union(regex.removeprefix(_ANY_DEPTH) for regex in by_name)
        self._paths = _union(regex for regex in regexes if not _only_name(regex))
        self._among = _among(regex.removeprefix(_ANY_DEPTH) for regex in by_name)
        self._tops = _tops(regex for regex in regexes if not _only_name(regex))

    def may_exclude(self, directory: bytes, names: Iterable[str]) -> bool:
        """Whether any of `names` in `directory` may be left out: one look for all of them, which nearly always ends it.

        False is certain. `names` as the system gives them to Python.
        """
        top = directory.partition(b"/")[0]
        if not top or self._among is None or self._tops is None or top in self._tops:
            return True
        return self._among.search(f"/{'/'.join(names)}/".replace("\n", "\0")) is not None

    def excluded(self, path: bytes, is_dir: bool) -> bool:
        """Whether `path` (relative to the workspace, `/`-separated) is left out, given that its directory is not."""
        # A newline is to the patterns what it is to git, any byte; NUL is in no name.
        text = os.fsdecode(path).replace("\n", "\0") + ("/" if is_dir else "")
        name = text[text.rfind("/", 0, -1) + 1 :]
        if not self._names.match(name) and not self._paths.match(text):
            return False  # nearly always: two compiled alternations instead of every pattern in turn
        return self._spec.match_file(text)

    def reason(self, path: bytes, is_dir: bool) -> str:
        """What a snapshot says of an excluded path: `WITHHELD` for one that only the list of secrets leaves out.

        Everything else that is excluded goes without saying.
        """
        decided = self._spec.check_file(os.fsdecode(path).replace("\n", "\0") + ("/" if is_dir else ""))
        return WITHHELD if decided.include and decided.index in self._secret_lines else ""


def _only_name(regex: str) -> bool:
    """Whether a pattern's regular expression looks at the last name of a path only."""
    tail = regex.removeprefix(_ANY_DEPTH)
    return tail != regex and "/" not in tail.replace(_DIRECTORY_MARK, "").replace("[^/]", "")


def _union(regexes: Iterable[str]) -> re.Pattern[str]:
    """One expression that matches where any of `regexes` does."""
    parts = [f"(?:{regex.replace(_DIRECTORY_MARK, '/')})" for regex in regexes]
    return re.compile("|".join(parts) or r"(?!)")


def _among(names: Iterable[str]) -> re.Pattern[str] | None:
    """Finds whether any of many names, each between slashes, is one that `names` look for; None: cannot be told so."""
    ends = [regex.replace(_DIRECTORY_MARK, "/") for regex in names]
    if not all(map(_PLAIN_NAME.fullmatch, ends)):
        return None
    return re.compile(f"/(?:{'|'.join(ends)})") if ends else re.compile(r"(?!)")


def _tops(paths: Iterable[str]) -> frozenset[bytes] | None:
    """The names at the top beneath which `paths` look; None: not only beneath some."""
    found = [_FIRST_NAME.match(regex.replace(_DIRECTORY_MARK, "/")) for regex in paths]
    names = [os.fsencode(re.sub(r"\\(.)", r"\1", one[1])) for one in found if one is not None]
    return frozenset(names) if len(names) == len(found) else None
