"""The program `spotwarp` and `python -m spotwarp`.

Owns the shortest way to an answer: `--version` is printed before anything else is imported. Must never hold logic;
verbs, flags, rendering and exit codes live in `spotwarp.cli`.
"""

from __future__ import annotations

import os
import sys

from spotwarp import __version__


def main() -> int:
    """Run the command line of this process and return its exit code."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        sys.stdout.write(f"spotwarp {__version__}\n")
        return 0
    # numpy would start a thread for each core, which nothing here uses and which spin beside the training. Told to the
    # C library alone: `os.environ` is what commands are given, and the trainer's numpy is not ours to slow down.
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        os.putenv("OPENBLAS_NUM_THREADS", "1")
    from spotwarp.cli.app import main as cli  # noqa: PLC0415 - the whole product hangs on this import

    code = cli(arguments)
    _leave_nobody_waiting(code)
    return code


def _leave_nobody_waiting(code: int) -> None:
    """End at once where threads are left: they may wait for a store that does not answer, or for a reader that does not
    read, and the verdict is spoken. Python would wait for those of a pool, daemons or not.
    """
    import contextlib
    import threading

    if threading.active_count() == 1:
        return
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()  # stderr is flushed line by line, and a thread that hangs in it would not let go of it
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
