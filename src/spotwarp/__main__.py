"""The program `spotwarp` and `python -m spotwarp`.

Owns the shortest way to an answer: `--version` is printed before anything else is imported. Must never hold logic;
verbs, flags, rendering and exit codes live in `spotwarp.cli`.
"""

from __future__ import annotations

import sys

from spotwarp import __version__


def main() -> int:
    """Run the command line of this process and return its exit code."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        sys.stdout.write(f"spotwarp {__version__}\n")
        return 0
    from spotwarp.cli.app import main as cli  # noqa: PLC0415 - the whole product hangs on this import

    code = cli(arguments)
    _leave_nobody_waiting(code)
    return code


def _leave_nobody_waiting(code: int) -> None:
    """End at once where a thread still waits for a store that does not answer: the verdict is spoken."""
    import contextlib
    import os
    import threading

    if all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate()):
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
