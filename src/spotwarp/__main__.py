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

    return cli(arguments)


if __name__ == "__main__":
    sys.exit(main())
