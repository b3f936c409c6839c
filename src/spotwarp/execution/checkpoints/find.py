"""Which directories of a workspace are checkpoints, by name alone.

Owns the grammar: `checkpoint-<digits>` of the Hugging Face trainer, `global_step<digits>` of DeepSpeed, and any
directory with `.distcp` files in it, which PyTorch's distributed checkpoints have. Opens no file, follows no link: a
link, a file, a staging directory or a directory that was set aside is a decoy, whatever its name resembles.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_CHECKPOINT = re.compile(rb"(?:checkpoint-|global_step)([0-9]{1,18})")  # so that every step fits in 64 bits
_NUMBERED = re.compile(rb".*?([0-9]{1,18})", re.DOTALL)
_NOT_YET = re.compile(rb"(?:tmp-)?checkpoint-[0-9]+.*|.*\.torn-[0-9]+(?:-[0-9]+)?", re.DOTALL)
"""Being filled, or set aside: what lies in it is no checkpoint by itself."""
_LOOKALIKE = re.compile(rb"(?:tmp-)?checkpoint-.*|global_step[0-9]+", re.DOTALL)
_OWN = b".spotwarp"
_ENDS = (b"config.json", b".safetensors", b".distcp")
_CONFIG, _WEIGHTS, _ADAPTER, _PIECE = 1, 2, 4, 8


@dataclass(frozen=True, slots=True)
class Survey:
    """What the names in a workspace say, each list in order of path."""

    checkpoints: tuple[bytes, ...]
    models: tuple[bytes, ...]
    """Directories with a model in them and no step in their name; `b""` is the workspace itself."""
    decoys: tuple[bytes, ...]
    """What looks like a checkpoint by its name and is none."""


def step_of(path: bytes) -> int | None:
    """The step in a checkpoint directory's name, or None if it is not such a name."""
    match = _CHECKPOINT.fullmatch(posixpath.basename(path))
    return int(match[1]) if match else None


def trailing_step(path: bytes) -> int | None:
    """The number at the end of a directory's name, if there is one."""
    match = _NUMBERED.fullmatch(posixpath.basename(path))
    return int(match[1]) if match else None


def find(entries: Iterable[tuple[bytes, bool]]) -> list[bytes]:
    """The checkpoint directories among `(path relative to the workspace, is a directory and no link)`.

    What lies inside a checkpoint belongs to it; what lies under `.spotwarp/` is never one.
    """
    return list(survey(entries).checkpoints)


def survey(entries: Iterable[tuple[bytes, bool]]) -> Survey:
    """Sort the entries of a workspace (see `find`; any order) into checkpoints, model directories and decoys."""
    checkpoints: list[bytes] = []
    decoys: list[bytes] = []
    models: dict[bytes, int] = {}
    for path, is_dir in entries:
        if not worth_a_look(path):
            continue  # nearly always
        parent, name = posixpath.split(path)
        sign = 0 if is_dir else _model_sign(name)
        lookalike = _LOOKALIKE.fullmatch(name)
        if not (sign or lookalike) or _belongs_elsewhere(parent, path):
            continue
        if sign:
            models[parent] = models.get(parent, 0) | sign
        elif is_dir and _CHECKPOINT.fullmatch(name):
            checkpoints.append(path)
        else:
            decoys.append(path)
    spread = {p for p, signs in models.items() if p and signs & _PIECE and not _unfinished(p)}
    found = sorted(p for p, signs in models.items() if signs & _ADAPTER or signs & ~_PIECE == _CONFIG | _WEIGHTS)
    return Survey(
        tuple(sorted({*checkpoints, *spread})), tuple(p for p in found if p not in spread), tuple(sorted(decoys))
    )


def worth_a_look(path: bytes) -> bool:
    """Whether `survey` would have anything to say of it."""
    return path.endswith(_ENDS) or b"checkpoint-" in path or b"global_step" in path


def walk(root: Path) -> Iterator[tuple[bytes, bool]]:
    """Every entry under `root` as `find` takes it; links are not followed, unreadable directories not entered."""
    base = os.fsencode(root)
    pending = [b""]
    while pending:
        here = pending.pop()
        try:
            with os.scandir(os.path.join(base, here)) as entries:  # noqa: PTH118 - bytes: names need not be text
                above = here + b"/" if here else b""
                for entry in entries:
                    path, is_dir = above + entry.name, entry.is_dir(follow_symlinks=False)
                    if is_dir and path != _OWN:
                        pending.append(path)
                    yield path, is_dir
        except OSError:  # it vanished, or is not ours to read: whatever it was, it is no checkpoint of this workspace
            continue


def _model_sign(name: bytes) -> int:
    if name == b"adapter_config.json":
        return _ADAPTER
    if name == b"config.json":
        return _CONFIG
    if name.endswith(b".distcp"):
        return _PIECE
    return _WEIGHTS if name.endswith(b".safetensors") else 0


def _unfinished(path: bytes) -> bool:
    return any(_NOT_YET.fullmatch(part) for part in path.split(b"/"))


def _belongs_elsewhere(parent: bytes, path: bytes) -> bool:
    parts = parent.split(b"/")
    return parts[0] == _OWN or path == _OWN or any(_CHECKPOINT.fullmatch(part) for part in parts)
