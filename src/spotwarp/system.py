"""What systems lack. Commands run on Linux; what reads and keeps house is to work on macOS and Windows as well.

Owns the flags of `open` that have no name everywhere, and the question whether a verb can do its work here at all.
Never makes up for what is missing: without descriptors relative to a directory nothing is written beneath one.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from spotwarp.errors import PlatformUnsupported

CLOEXEC: Final = getattr(os, "O_CLOEXEC", 0)  # where it has no name, nothing is inherited
DIRECTORY: Final = getattr(os, "O_DIRECTORY", 0)
NOFOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
NONBLOCK: Final = getattr(os, "O_NONBLOCK", 0)
UNNAMED: Final[int | None] = getattr(os, "O_TMPFILE", None)
_BENEATH: Final = os.open in os.supports_dir_fd


def require_linux(what: str) -> None:
    """Raises `PlatformUnsupported` where no command can be run."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        raise PlatformUnsupported(f"{what} needs Linux; nothing was changed")


def require_posix(what: str) -> None:
    """Raises `PlatformUnsupported` where files cannot be reached by way of directories that are held open."""
    if not NOFOLLOW or not _BENEATH:
        raise PlatformUnsupported(
            f"{what} needs Linux or macOS; nothing was changed",
            hint="Use it there, or in WSL. What is in the store can be looked at from anywhere.",
        )


def cpus() -> int:
    """How many processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
