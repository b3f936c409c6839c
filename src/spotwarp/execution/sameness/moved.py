"""A workspace that comes back under another path: what in it still holds the old one. Looks only.

Absolute paths are the user's own (a venv, a link, a trainer's note of its best checkpoint); SpotWarp restores them as
they were and names them, since mending them would be guessing.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from spotwarp.persistence.entries import shown
from spotwarp.persistence.manifest import FILE, SYMLINK
from spotwarp.persistence.scan import Scanned

MOST = 8
_HEAD = 256


def holders(workspace: Path, was: str, entries: Sequence[Scanned]) -> list[str]:
    """What among `entries` (of a scan of `workspace`) holds a path under `was`, each in words."""
    found = []
    for entry in entries:
        path = workspace / os.fsdecode(entry.path)
        if entry.kind == SYMLINK:
            target = os.fsdecode(entry.target)
            if _under(target, was):
                found.append(f"the link {shown(entry.path)} leads to {shown(entry.target)}")
        elif entry.kind == FILE:
            found += _in_file(path, shown(entry.path), was)
    return found


def _in_file(path: Path, name: str, was: str) -> list[str]:
    if path.name == "trainer_state.json":
        best = _best(path)
        if best and _under(best, was):
            return [f"{name}: best_model_checkpoint is {best}"]
    elif path.name == "pyvenv.cfg":
        scripts = _scripts(path.parent / "bin", was)
        if scripts:
            return [f"{name.rpartition('/')[0] or '.'}: a virtual environment, whose {scripts} script(s) start {was}/…"]
    return []


def _best(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        state = json.loads(path.read_bytes())
        best = state.get("best_model_checkpoint") if isinstance(state, dict) else None
        return best if isinstance(best, str) else ""
    return ""


def _scripts(directory: Path, was: str) -> int:
    """How many programs of a virtual environment begin with an interpreter under the old path."""
    count = 0
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    head = file.read(_HEAD)
                count += head.startswith(b"#!" + os.fsencode(was) + b"/")
    return count


def _under(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
