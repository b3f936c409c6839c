"""`spotwarp status`, `snapshots`, `runs`, `check`: what is there, and is it whole."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from spotwarp.cli import render
from spotwarp.cli.context import Context, enter, here
from spotwarp.config import find_workspace
from spotwarp.errors import (
    CorruptObject,
    PlatformUnsupported,
    SpotWarpError,
    StoreError,
    UnsupportedFormat,
    WorkspaceFault,
)
from spotwarp.model import human_bytes, human_seconds

if TYPE_CHECKING:
    from spotwarp.clock import Clock
    from spotwarp.execution.parts import Part
    from spotwarp.persistence.view import RunView

STATUS_BUDGET_S = 10.0


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("status")(status)
    app.command("snapshots")(snapshots)
    app.command("runs")(runs)
    app.command("check")(check)


def status(
    run_name: str | None = typer.Argument(None, metavar="[RUN]", help="A run; the config's when left out."),
    as_json: bool = typer.Option(False, "--json", help="Print the facts as JSON."),
) -> int:
    """Say how the run stands: who has it, what is at risk now, what it would resume from.

    Work at risk is what a machine lost at this moment would cost: seconds since the last stored state, and bytes not
    stored.

    Examples:

    spotwarp status

    spotwarp status --json

    Exit codes: 0, 1 the backup is failing now or its machine is silent, 10 no such run, 17 store unavailable (then what
    this machine knows is shown).
    """
    try:
        opened = enter(run_name, budget_s=STATUS_BUDGET_S)
        local = _asked_here(opened)
        seen = _with_local(_view(opened), local)
    except StoreError as error:
        return _local_status(error, as_json=as_json)
    failing = 1 if seen.errors or seen.lacking or (seen.state == "silent" and not seen.readonly) else 0
    parts = _parts(opened)
    if as_json:
        render.facts(
            {**asdict(seen), "downloadable": [{**asdict(p), "exclude": p.exclude} for p in parts], "here": _here(local)}
        )
        return failing
    rows = [
        *_loud(seen, opened),
        ("run", f"{seen.run}: {seen.state}" + (f", generation {seen.generation}" if seen.generation else "")),
        ("held by", f"{seen.holder}, since {seen.since}" if seen.holder else "nobody"),
        *_at_work_here(local),
        ("heartbeat", f"{human_seconds(seen.beat_age_s)} ago" if seen.beat_age_s is not None else "none"),
        ("work at risk", _risk(seen.at_risk_s, seen.at_risk_bytes)),
        ("last snapshot", _when(seen.last_snapshot, seen.last_snapshot_age_s)),
        ("resumes from", _resumes(seen)),
    ]
    if seen.loss is not None:
        rows.append(("last loss", f"{seen.loss:.4f}" + (f" at step {seen.step}" if seen.step is not None else "")))
    if seen.exit is not None:
        rows.append(("exit code", str(seen.exit)))
    told = {
        "not told": seen.notify_error,
        "disk": seen.disk,
        "older version": seen.kept,
        "notices": seen.notices,
        "READ-ONLY": seen.readonly,
    }
    rows += [(name, value) for name, value in told.items() if value]
    rows += [("stored too", f"{p.path}: {p.kind}, {human_bytes(p.bytes)}   {p.exclude}") for p in parts]
    for name, value in rows:
        render.line(f"{name:14} {value}")
    return failing


def _parts(opened: Context) -> list[Part]:
    """What here is large, is stored, and could be downloaded again; nothing where looking takes too long."""
    from spotwarp.execution.parts import downloadable, glance

    try:
        seen = glance(opened.workspace, opened.config.exclude, opened.clock)
    except (WorkspaceFault, PlatformUnsupported):
        return []
    return downloadable(seen.entries) if seen else []


def _loud(seen: RunView, opened: Context) -> list[tuple[str, str]]:
    """What must be read before everything else."""
    rows = []
    if seen.errors:
        age = _seconds_since(seen.errors_since, opened.clock)
        lasted = f" for {human_seconds(age)}" if age is not None else ""
        rows.append(("NOT STORED", f"{'STALLED' if seen.stalled else 'failing'}{lasted}: {seen.errors}"))
    if seen.lacking:
        rows.append(("NOT STORED", seen.lacking))
    return rows


def _seconds_since(wall: str, clock: Clock) -> float | None:
    try:
        return max(0.0, (clock.wall() - datetime.fromisoformat(wall)).total_seconds())
    except ValueError:
        return None


def _asked_here(opened: Context) -> dict[str, Any] | None:
    """What the SpotWarp at work on this machine says; None when there is none."""
    from spotwarp.execution.control_socket import glimpse

    return glimpse(opened.workspace)


def _with_local(seen: RunView, known: dict[str, Any] | None) -> RunView:
    """What the SpotWarp at work on this machine knows is fresher than its last heartbeat, which may not get through."""
    if known is None or known.get("run") != seen.run or known.get("generation") != seen.generation:
        return seen
    return replace(
        seen,
        state=str(known["phase"]),
        at_risk_s=known.get("at_risk_s", seen.at_risk_s),
        at_risk_bytes=known.get("at_risk_bytes", seen.at_risk_bytes),
        errors=str(known.get("error") or ""),
        errors_since=str(known.get("error_since") or ""),
        stalled=bool(known.get("stalled")),
        lacking=str(known.get("lacking") or ""),
        notify_error=str(known.get("notify_error") or ""),
        disk=str(known.get("disk") or ""),
        notices=str(known.get("notices") or ""),
    )


def _here(known: dict[str, Any] | None) -> dict[str, Any] | None:
    """The run at work in this workspace on this machine."""
    kept = ("run", "generation", "phase", "pid", "since", "detached")
    return {key: known.get(key) for key in kept} if known is not None else None


def _at_work_here(known: dict[str, Any] | None) -> list[tuple[str, str]]:
    here = _here(known)
    if here is None:
        return []
    how = "in the background" if here["detached"] else "in a terminal or script"
    return [("here", f"{here['phase']}, process {here['pid']}, {how}, since {here['since']}")]


def _view(opened: Context) -> RunView:
    from spotwarp.persistence.runlog.lease import read_beat
    from spotwarp.persistence.telemetry import read_latest
    from spotwarp.persistence.view import view

    log = opened.log()
    head = log.existing_head() if opened.config.run not in opened.repository.runs() else log.head()
    numbers = sorted({n for n in (head.state.claim, head.state.snapshot, head.state.resumable, head.n) if n})
    entries = []
    for n in numbers:
        try:
            entries.append(log.read(n))
        except (CorruptObject, UnsupportedFormat):
            continue
    beat = read_beat(opened.repository.store, log.run, head.state.life) if head.state.life else None
    return view(
        log.run,
        head.state,
        entries,
        read_latest(opened.repository.store, log.run),
        beat,
        opened.clock.wall(),
        readonly=head.readonly,
    )


def _local_status(error: StoreError, *, as_json: bool) -> int:
    """The store is away: what the SpotWarp at work here knows is better than nothing."""
    from spotwarp.execution.control_socket import glimpse

    known = glimpse(find_workspace(here()))
    if known is None:
        raise error
    if as_json:
        render.facts({"store_error": error.message, **known})
    else:
        word = "STALLED" if known.get("stalled") else "failing"
        render.line(f"{'NOT STORED':14} {word}: {known.get('error') or error.message}")
        render.note(f"the store is not reachable: {error.message}")
        for name, value in known.items():
            render.line(f"{name:14} {value}")
    return error.exit_code


def _risk(seconds: float | None, size: int | None) -> str:
    if seconds is None:
        return "unknown: the holder has not said"
    if size is None:
        return f"{human_seconds(seconds)}, bytes unknown"
    return f"{human_seconds(seconds)}, {human_bytes(size)} not stored" if size else human_seconds(seconds)


def _when(number: int | None, age_s: float | None) -> str:
    return "none yet" if number is None else f"{number}, {human_seconds(age_s or 0.0)} ago"


def _resumes(seen: Any) -> str:
    if seen.resumable_checkpoint is None:
        return "no resumable checkpoint is stored yet"
    return f"{seen.resumable_checkpoint} (step {seen.resumable_step}) in snapshot {seen.resumable_snapshot}"


def snapshots(
    run_name: str | None = typer.Argument(None, metavar="[RUN]", help="A run; the config's when left out."),
    as_json: bool = typer.Option(False, "--json", help="Print them as JSON."),
) -> None:
    """List the snapshots that are kept, oldest first.

    Examples:

    spotwarp snapshots

    spotwarp snapshots --json

    Exit codes: 0, 10 no such run, 17 store unavailable.
    """
    from spotwarp.persistence.repository import retained_snapshots
    from spotwarp.persistence.view import snapshot_facts

    opened = enter(run_name)
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

    Exit codes: 0, 10 no repository, 17 store unavailable.
    """
    opened = enter()
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


def check(
    run_name: str | None = typer.Argument(None, metavar="[RUN]", help="A run; the config's when left out."),
    read_data: bool = typer.Option(False, "--read-data", help="Also read and hash every stored byte."),
    as_json: bool = typer.Option(False, "--json", help="Print the findings as JSON."),
) -> int:
    """Check that what is stored can be restored: log, manifests, packs and, on request, every byte.

    One damaged object never hides another, and the snapshots that are whole are named.

    Examples:

    spotwarp check

    spotwarp check --read-data --json

    Exit codes: 0 everything is whole, 10 no such run, 16 damage was found, 17 store unavailable.
    """
    from spotwarp.execution.inspection import inspect_run
    from spotwarp.execution.localstate import distrust

    opened = enter(run_name)
    log = opened.log()
    report = inspect_run(opened.repository, log, read_data=read_data)
    if report["damaged_packs"]:  # what is still here is sent again by the next sync
        distrust(opened.workspace, opened.repository.identity.id, log.run, packs=report["damaged_packs"])
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
    if report["problems"]:
        raised: SpotWarpError = CorruptObject(
            f"{len(report['problems'])} problem(s) found",
            hint="`spotwarp sync` sends again what is still here."
            + (" `spotwarp restore --snapshot N` works for every whole snapshot." if report["whole"] else ""),
        )
        if not as_json:
            raise raised
        return raised.exit_code
    return 0
