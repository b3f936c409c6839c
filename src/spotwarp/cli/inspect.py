"""`spotwarp snapshots`, `runs`, `check`: what is stored, and is it whole."""

from __future__ import annotations

from typing import Any

import typer

from spotwarp.cli import render
from spotwarp.cli.context import LOOK_BUDGET_S, Context, enter
from spotwarp.errors import CorruptObject, SpotWarpError
from spotwarp.model import human_bytes
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.system import require_linux


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("snapshots")(snapshots)
    app.command("runs")(runs)
    app.command("check")(check)


def snapshots(
    run_name: str | None = typer.Argument(None, metavar="[RUN]", help="A run; the config's when left out."),
    as_json: bool = typer.Option(False, "--json", help="Print them as JSON."),
) -> None:
    """List the snapshots that are kept, oldest first.

    Examples:

    spotwarp snapshots

    spotwarp snapshots --json

    Exit codes: 0, 10 no such run, 12 no or another key, 17 store unavailable.
    """
    from spotwarp.persistence.repository import retained_snapshots
    from spotwarp.persistence.view import snapshot_facts

    opened = enter(run_name, budget_s=LOOK_BUDGET_S)
    log = opened.log()
    head = log.existing_head() if opened.config.run not in opened.repository.runs() else log.head()
    found = [snapshot_facts(s) for s in retained_snapshots(log, head.state)]
    if as_json:
        render.facts(found)
        return
    rows = [
        (
            str(s["id"]),
            str(s["generation"]),
            s["time"][:19].replace("T", " "),
            str(s["files"]),
            human_bytes(s["bytes"]),
            human_bytes(s["stored_bytes"]),
            f"{s['resumable']['path']} (step {s['resumable']['step']})" if s["resumable"] else "-",
        )
        for s in found
    ]
    render.table(("id", "generation", "time (UTC)", "files", "size", "sent", "resumable"), rows)


def runs(as_json: bool = typer.Option(False, "--json", help="Print them as JSON.")) -> None:
    """List the runs of the repository.

    Examples:

    spotwarp runs

    spotwarp runs --json

    Exit codes: 0, 10 no repository, 12 no or another key, 17 store unavailable.
    """
    opened = enter(budget_s=LOOK_BUDGET_S)
    found = []
    for name in opened.repository.runs():
        state = opened.log(name).head().state
        word = state.terminal or state.seal or ("claimed" if state.generation else "new")
        found.append({"run": name, "state": word, "generation": state.generation, "snapshots": len(state.retained)})
    if as_json:
        render.facts(found)
        return
    render.table(
        ("run", "state", "generation", "snapshots"),
        [(str(f["run"]), str(f["state"]), str(f["generation"]), str(f["snapshots"])) for f in found],
    )


def _repaired(opened: Context, log: RunLog) -> dict[str, Any]:
    require_linux("repairing")
    from spotwarp.execution.once import Place, repair_once

    place = opened.workspace, opened.config, opened.repository, log, opened.clock, opened.rng, render.note
    return repair_once(Place(*place))


def _tell_repair(done: dict[str, Any]) -> None:
    if not done["repaired"]:
        render.line("the last snapshot is whole: what was damaged was sent again from here, or only older ones need it")
        return
    render.line(f"snapshot {done['id']} is whole; {done['found']} blob(s) were found in other packs and put again")
    for path in done["lost"]:
        render.line(f"LOST     {path}: it is nowhere whole, and not in that snapshot")


def check(
    run_name: str | None = typer.Argument(None, metavar="[RUN]", help="A run; the config's when left out."),
    read_data: bool = typer.Option(False, "--read-data", help="Also read and hash every stored byte."),
    repair: bool = typer.Option(
        False, "--repair", help="Put a whole snapshot in the place of a damaged last one; reads every stored byte."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the findings as JSON."),
) -> int:
    """Check that what is stored can be restored: log, manifests, packs and, on request, every byte.

    One damaged object never hides another, and the snapshots that are whole are named. With --repair, what is here is
    sent again, what another pack has is put again, and a new snapshot leaves out only what is nowhere whole, and names
    it; the damaged ones stay as they are.

    Examples:

    spotwarp check

    spotwarp check --read-data --json

    spotwarp check --repair

    Exit codes: 0 everything is whole, 10 no such run, 12 no or another key, 16 damage was found, 17
    store unavailable.
    """
    from spotwarp.execution.inspection import inspect_run
    from spotwarp.execution.localstate import distrust

    opened = enter(run_name)
    log = opened.log()
    report = inspect_run(opened.repository, log, read_data=read_data or repair)
    if report["damaged_packs"]:  # what is still here is sent again by the next sync
        distrust(opened.workspace, opened.repository.identity.id, log.run, packs=report["damaged_packs"])
    if repair and report["problems"]:
        report["repair"] = _repaired(opened, log)
    if as_json:
        render.facts(report)
    else:
        for problem in report["problems"]:
            files = ", ".join(problem["files"][:5])
            render.line(f"DAMAGED  {problem['key']}: {problem['what']}" + (f"; needed by {files}" if files else ""))
        whole = ", ".join(str(n) for n in report["whole"]) or "none"
        render.line(f"checked {report['objects']} objects, {human_bytes(report['bytes'])}; whole snapshots: {whole}")
        if report["broken"]:
            render.line(f"cannot be restored: {', '.join(str(n) for n in report['broken'])}")
        if repair and report["problems"]:
            _tell_repair(report["repair"])
    if report["problems"] and not (repair and not report["repair"]["lost"]):
        raised: SpotWarpError = CorruptObject(
            f"{len(report['problems'])} problem(s) found",
            hint="`spotwarp sync` sends again what is still here."
            + (" `spotwarp restore --snapshot N` works for every whole snapshot." if report["whole"] else ""),
        )
        if not as_json:
            raise raised
        return raised.exit_code
    return 0
