"""`spotwarp demo`: the main job, on this machine alone."""

from __future__ import annotations

from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("demo")(demo)


def demo(
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
    keep: Path | None = typer.Option(None, "--keep", help="Work in this directory and keep it."),
) -> int:
    """Train a small real model through four preemptions and compare its weights with an uninterrupted run.

    A directory stands for the object store, local processes for the machines; no account, no root, no PyTorch. Machines
    are lost with notice, by SIGKILL in the middle of a save, as a zombie that comes back, and during a restore.

    Examples:

    spotwarp demo

    spotwarp demo --json --keep /tmp/demo

    Exit codes: 0 bit-identical and nothing of a zombie's committed, 1 not.
    """
    from spotwarp.demo.scenario import demo_main

    return demo_main(as_json, keep)
