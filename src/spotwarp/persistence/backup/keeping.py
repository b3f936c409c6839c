"""The files of the checkpoint that is read first, kept open until their turn.

A trainer that keeps one checkpoint deletes it as soon as the next one stands. Where the store is slower than it saves,
none would ever be stored whole; but an open file outlives its name. It holds its room on the disk as well: so
only where there is room for three more such checkpoints, since a full disk would end the training (I10). Opens files
and nothing else.
"""

from __future__ import annotations

import os
from typing import Final

from spotwarp.persistence.backup.live import open_file
from spotwarp.persistence.backup.plan import Plan
from spotwarp.persistence.beneath import Tree

_MOST: Final = 256
_PART: Final = 4
"""At most so many files, and such a part of the descriptors that this process may have."""
_TIMES: Final = 3
"""Room for so many times its size must be left."""


def keep_open(tree: Tree, plan: Plan) -> dict[bytes, int]:
    """Descriptors by path, the caller's to close; none where it would take too many of them, or too much room."""
    files = [file for group in plan.first for file in plan.pending.get(group, ())]
    if not files or len(files) > min(_MOST, _descriptors() // _PART):
        return {}
    opened: dict[bytes, int] = {}
    try:
        about = os.fstatvfs(tree.directory(b""))
        if about.f_bavail * about.f_frsize < _TIMES * sum(file.size for file in files):
            return {}
        for file in files:
            opened[file.path] = open_file(tree, file.path)[0]
    except OSError:
        pass  # what is gone already is met again, and named, when its turn comes
    return opened


def _descriptors() -> int:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST * _PART if soft == resource.RLIM_INFINITY else soft
