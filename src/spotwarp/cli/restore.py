"""`spotwarp restore`: a snapshot back onto the disk."""

from __future__ import annotations

from pathlib import Path

import typer

from spotwarp.cli import render
from spotwarp.cli.context import enter
from spotwarp.cli.options import LIMITS
from spotwarp.errors import UsageError
from spotwarp.model import human_bytes, human_seconds
from spotwarp.system import require_posix


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("restore")(restore)


def restore(
    paths: list[str] | None = typer.Argument(None, metavar="[PATHS]...", help="Only these files or directories."),
    snapshot: str = typer.Option("latest", "--snapshot", help="A number, `latest` or `latest-resumable`."),
    to: Path | None = typer.Option(None, "--to", help="A new or empty directory; this workspace when left out."),
    run_name: str | None = typer.Option(None, "--run", help="Another run than the config's."),
    force: bool = typer.Option(
        False, "--force", help="Into the workspace: set newer local work aside (under .spotwarp/set-aside/)."
    ),
    limits: str | None = LIMITS,
    as_json: bool = typer.Option(False, "--json", help="Print what was restored as JSON."),
) -> None:
    """Restore a snapshot, verified byte by byte, or nothing.

    Everything is fetched and verified beside its place and then moved there; interrupted, the same command goes on.
    Torn checkpoints come back under a name that no trainer takes (`checkpoint-40.torn-12`). Local work that the run has
    not is never overwritten.

    Examples:

    spotwarp restore --to /tmp/look

    spotwarp restore --snapshot latest-resumable

    spotwarp restore --snapshot 42 --to ./old out/checkpoint-300

    Exit codes: 0 restored, 10 no such snapshot, 12 no or another key, 16 damaged, 17 store unavailable, 21 newer local
    work, 22 disk.
    """
    require_posix("restoring files")
    from spotwarp.execution.restoring.verb import restore_run

    if force and to is not None:
        raise UsageError("--force is for the workspace; --to takes a new or empty directory")
    opened = enter(run_name, limits=limits)
    done = restore_run(
        opened.workspace,
        opened.config,
        opened.repository,
        opened.log(),
        wanted=snapshot,
        to=to,
        paths=tuple(paths or ()),
        force=force,
        clock=opened.clock,
        say=render.note,
    )
    if as_json:
        render.facts(done)
        return
    render.line(
        f"restored snapshot {done['snapshot']} to {done['to']}: {done['files']} files, {human_bytes(done['bytes'])}"
        f" in {human_seconds(done['seconds'])}"
    )
