"""Changing `.spotwarp/config.yaml`: one value at a time, every comment kept, the file replaced whole and durably.

Owns the writing of the file; what may stand in it is `config`'s. Never writes what it could not read (I11 holds: no
secret passes through here).
"""

from __future__ import annotations

import io
import os
from pathlib import Path

from spotwarp import system
from spotwarp.config import FILE, path_in, read
from spotwarp.errors import ConfigError, UsageError, WorkspaceFault
from spotwarp.values import patterns


def write(workspace: Path, text: str) -> None:
    """Replace the config file whole, durably, readable only by its owner. Raises `WorkspaceFault`."""
    path = path_in(workspace)
    temporary = path.with_name(f".{FILE}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | system.CLOEXEC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError as error:
        raise WorkspaceFault(f"{path} cannot be written: {error}", hint="Is the disk full or read-only?") from error


def set_run(workspace: Path, run: str) -> None:
    """Have the workspace continue `run` from now on. Raises `ConfigError`, `WorkspaceFault`."""
    read(path_in(workspace))
    _change(workspace, "run", run)


def _change(workspace: Path, name: str, value: object) -> None:
    from ruamel.yaml import YAML

    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 1 << 16  # a long path stays on its line
    yaml.indent(mapping=2, sequence=4, offset=2)
    data = yaml.load(path_in(workspace).read_text("utf-8"))
    data[name] = value
    out = io.StringIO()
    yaml.dump(data, out)
    write(workspace, out.getvalue())


def add_exclude(workspace: Path, wanted: list[str]) -> list[str]:
    """Add the patterns `wanted` to `exclude`. Returns those that were new. Raises `UsageError`."""
    path = path_in(workspace)
    given, lines = read(path)
    try:
        present = patterns(given.get("exclude"))
    except ValueError as error:
        line = lines.get("exclude", 1)
        raise ConfigError(f"exclude {error} ({path}, line {line})", hint="Mend that line.") from error
    if not all(pattern.strip() and pattern.isprintable() for pattern in wanted):
        raise UsageError("a pattern cannot be empty or hold a control character", hint="spotwarp exclude 'venv/'")
    new = [p for p in dict.fromkeys(wanted) if p not in present]
    if new:
        _change(workspace, "exclude", [*present, *new])
    return new
