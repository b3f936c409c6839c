"""`spotwarp sync`, `exclude`, `prune`: store now, leave something out, let go."""

from __future__ import annotations

import typer

from spotwarp.cli import render
from spotwarp.cli.background import raised
from spotwarp.cli.context import enter, here
from spotwarp.cli.options import CODING, LIMITS
from spotwarp.config import find_workspace
from spotwarp.configfile import add_exclude
from spotwarp.model import human_bytes
from spotwarp.system import require_linux


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("sync")(sync)
    app.command("exclude")(exclude)
    app.command("prune")(prune)


def sync(
    run_name: str | None = typer.Option(None, "--run", help="Another run than the config's."),
    takeover: bool = typer.Option(False, "--takeover", help="Claim the run at once, whoever holds it."),
    limits: str | None = LIMITS,
    coding: str | None = CODING,
    as_json: bool = typer.Option(False, "--json", help="Print the snapshot as JSON."),
) -> None:
    """Store the workspace now; returns when the snapshot is committed.

    Inside a run (also from the training script) it asks the SpotWarp at work, which has its own limits; otherwise it
    claims the run, stores, and leaves it stopped and resumable. Where nothing is new, the snapshot before stands,
    and no claim is needed.

    Examples:

    spotwarp sync

    spotwarp sync --json

    Exit codes: 0 committed, 11 another machine has the run, 12 no or another key, 13 the run has moved on, 17 store
    unavailable, 22 workspace.
    """
    from spotwarp.execution.control_socket import ask

    answer = ask(find_workspace(here()), {"verb": "sync", "run": run_name})
    if answer is None:
        require_linux("storing a workspace")
        from spotwarp.execution.once import Place, sync_once

        opened = enter(run_name, limits=limits, coding=coding)
        at = Place(
            opened.workspace, opened.config, opened.repository, opened.log(), opened.clock, opened.rng, render.note
        )  # fmt: skip
        answer = sync_once(at, takeover=takeover)
    if "error" in answer:
        raise raised(answer)
    if answer.get("lacking"):
        render.note(f"NOT STORED: {answer['lacking']}")
    if as_json:
        render.facts(answer)
        return
    render.line(
        f"snapshot {answer['id']}: {answer['files']} files, {human_bytes(answer['bytes'])}"
        + (", nothing new" if answer.get("unchanged") else f", {human_bytes(answer['stored_bytes'])} sent")
    )


def exclude(
    patterns: list[str] = typer.Argument(..., help="Patterns in .gitignore syntax.", metavar="PATTERN..."),
    as_json: bool = typer.Option(False, "--json", help="Print the patterns added as JSON."),
) -> None:
    """Leave something out of the snapshots, from the next one on.

    Adds the patterns to `exclude` in .spotwarp/config.yaml; a run at work takes them up by itself. What is stored
    already stays until retention lets it go.

    Examples:

    spotwarp exclude 'venv/' '*.tmp'

    spotwarp exclude /data/raw/

    Exit codes: 0 done, 2 a pattern that cannot be read.
    """
    workspace = find_workspace(here())
    from spotwarp.persistence.excludes import Excludes

    Excludes(patterns)
    added = add_exclude(workspace, patterns)
    if as_json:
        render.facts({"added": added})
        return
    render.line(f"added: {', '.join(added)}" if added else "nothing to add: already excluded")


def prune(
    run_name: str | None = typer.Option(None, "--run", help="Another run than the config's."),
    grace: str = typer.Option(
        "6h", "--grace", help="Spare what was let go more recently (a restore may be reading it)."
    ),
    room: bool = typer.Option(
        False, "--make-room", help="For a full store: also let go of all but the last and the last resumable snapshot."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print what was deleted as JSON."),
) -> None:
    """Delete what retention has let go and what dead machines left behind.

    A run at work does this by itself. Needs the right to delete; without it nothing is deleted and it is said.

    Examples:

    spotwarp prune

    spotwarp prune --grace 0s --json

    spotwarp prune --make-room

    Exit codes: 0 done, 12 no right to delete, or no or another key, 16 a retained snapshot is damaged (nothing was
    deleted).
    """
    from spotwarp.errors import CorruptObject, StoreDenied, StoreError, UsageError
    from spotwarp.persistence import prune as pruning
    from spotwarp.values import duration

    try:
        grace_s = duration(grace)
    except ValueError as error:
        raise UsageError(f"--grace {grace!r} {error}") from error
    opened = enter(run_name)
    log = opened.log()
    if opened.config.run not in opened.repository.runs():
        log.existing_head()
    done = pruning.make_room(opened.repository, log) if room else pruning.prune(opened.repository, log, grace_s=grace_s)
    if as_json:
        render.facts(
            {
                "packs": done.packs,
                "manifests": done.manifests,
                "bytes": done.bytes,
                "kept_for_grace": done.kept_for_grace,
                "skipped": done.skipped,
            }
        )
    else:
        render.line(f"deleted {done.packs} pack(s) and {done.manifests} manifest(s), {human_bytes(done.bytes)}")
        if done.kept_for_grace:
            render.line(f"{done.kept_for_grace} object(s) wait for their grace of {grace}")
    if done.skipped:
        if "damaged" in done.skipped:
            raise CorruptObject(done.skipped, hint="`spotwarp check` says which snapshots are whole.")
        raise (StoreError if "contradict" in done.skipped else StoreDenied)(done.skipped)
