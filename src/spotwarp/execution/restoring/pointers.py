"""DeepSpeed's `latest`: a file that names the tag to resume from. It must never name one that is not there, or torn.

DeepSpeed starts from nothing, with a mere warning, when `latest` names a tag that is missing. After a restore and
before a trainer is started such a pointer is given the newest whole tag beside it; what it said is kept beside it, as
`latest.dangling-<n>`. A pointer to a whole tag is never changed, though a newer one may stand beside it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from spotwarp import system
from spotwarp.config import DIRECTORY
from spotwarp.errors import WorkspaceFault
from spotwarp.execution.checkpoints import CheckpointClass, judge, newest, step_of, walk
from spotwarp.persistence.entries import shown

LATEST = b"latest"
_MOST = 4096


def mend_pointers(
    root: Path, number: int, say: Callable[[str], None], *, entries: Iterable[tuple[bytes, bool]] | None = None
) -> list[str]:
    """Look at every `latest` beside tags beneath `root`; `number` is the snapshot's, for the name of what is kept.

    `entries` is what is beneath `root`, each path and whether it is a directory, where that is known. Returns the
    pointers that were changed. Raises `WorkspaceFault` for what the file system refuses.
    """
    tags: dict[bytes, set[bytes]] = {}
    pointers: list[bytes] = []
    for path, is_directory in walk(root) if entries is None else entries:
        parent, _, name = path.rpartition(b"/")
        if not (name.startswith(b"global_step") if is_directory else name == LATEST):
            continue
        if any(part.startswith(b"checkpoint-") or part == DIRECTORY.encode() for part in parent.split(b"/")):
            continue  # what lies in a checkpoint is judged with it
        if not is_directory:
            pointers.append(parent)
        elif step_of(name) is not None:
            tags.setdefault(parent, set()).add(name)
    return [shown(_join(parent, LATEST)) for parent in sorted(pointers) if _mend(root, parent, tags, number, say)]


def _mend(root: Path, parent: bytes, tags: dict[bytes, set[bytes]], number: int, say: Callable[[str], None]) -> bool:
    pointer = os.path.join(os.fsencode(root), parent, LATEST)  # noqa: PTH118 - bytes: names need not be text
    named = _read(pointer)
    if named is None:
        return False
    words = f"{shown(_join(parent, LATEST))} names {shown(named) or 'nothing'}"
    beside = tags.get(parent, set())
    whole = [one for tag in beside if (one := judge(root, _join(parent, tag))).cls is CheckpointClass.RESUMABLE]
    best = newest(whole)
    if best is None and not beside and not named.startswith(b"global_step"):
        return False  # another program's file
    if any(one.path == _join(parent, named) for one in whole):
        if best is not None and best.path != _join(parent, named):
            say(f"{words}; {shown(best.path)} is whole and newer, and is left alone")
        return False
    if named not in beside and _is_filled(os.path.join(os.path.dirname(pointer), named)):  # noqa: PTH118, PTH120
        return False  # a tag of a name that is not known here
    if best is None:
        say(
            f"{words}, which is missing or not whole, and there is no whole tag beside it: the trainer would start anew"
        )
        return False
    tag = best.path.rpartition(b"/")[2]
    kept = _replace(pointer, tag, b".dangling-%d" % number)
    say(f"{words}, which is missing or not whole: it now names {shown(tag)}; what it said is kept as {shown(kept)}")
    return True


def _join(parent: bytes, name: bytes) -> bytes:
    return parent + b"/" + name if parent else name


def _read(pointer: bytes) -> bytes | None:
    """What the pointer names; None when it is no pointer."""
    try:
        descriptor = os.open(pointer, os.O_RDONLY | system.NOFOLLOW | system.NONBLOCK | system.CLOEXEC)
    except OSError:
        return None
    try:
        named = os.read(descriptor, _MOST).strip()
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None if b"/" in named or b"\0" in named or b"\n" in named or len(named) > 255 else named


def _is_filled(directory: bytes) -> bool:
    try:
        return bool(os.listdir(directory))  # noqa: PTH208 - bytes
    except OSError:
        return False


def _replace(pointer: bytes, tag: bytes, suffix: bytes) -> bytes:
    """Give `pointer` another content at once and keep the old one beside it; gives the name of that."""
    kept, again = pointer + suffix, 1
    while os.path.lexists(kept):
        again += 1
        kept = pointer + suffix + b"-%d" % again
    new = pointer + b".new"
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | system.NOFOLLOW | system.CLOEXEC, 0o666)
        try:
            os.write(descriptor, tag)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        # A death before the last step leaves the pointer as it was: the next start begins again.
        try:
            os.link(pointer, kept, follow_symlinks=False)
        except OSError:  # no hard links here
            shutil.copy2(pointer, kept, follow_symlinks=False)
        os.replace(new, pointer)  # noqa: PTH105 - bytes
    except OSError as error:
        raise WorkspaceFault(f"{shown(pointer)} cannot be corrected: {error.strerror}") from error
    return kept.rpartition(b"/")[2]
