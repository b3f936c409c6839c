"""`spotwarp status`: how a run stands, from the store, from the SpotWarp at work here, and from what is left here.

Puts together what others know, the fresher over the older, and prints it. Decides nothing, writes nothing; a store that
is away costs what only it knows, and its exit code.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from spotwarp.cli import render
from spotwarp.cli.context import Context, enter, settings
from spotwarp.cli.cost import found_cost
from spotwarp.errors import (
    CorruptObject,
    PlatformUnsupported,
    StoreError,
    UnsupportedFormat,
    WorkspaceFault,
    WrongKey,
)
from spotwarp.model import human_bytes, human_seconds

if TYPE_CHECKING:
    from pathlib import Path

    from spotwarp.clock import Clock
    from spotwarp.config import Config
    from spotwarp.execution.parts import Part
    from spotwarp.persistence.runlog.entry import Claim
    from spotwarp.persistence.runlog.log import RunLog
    from spotwarp.persistence.view import RunView

STATUS_BUDGET_S = 10.0


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("status")(status)


def status(
    run_name: str | None = typer.Argument(None, metavar="[RUN]", help="A run; the config's when left out."),
    with_cost: bool = typer.Option(
        False, "--cost", help="Also what it costs at its store: a month, requests, one restore. Lists the run."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the facts as JSON."),
) -> int:
    """Say how the run stands: who has it, what is at risk now, what it would resume from.

    Work at risk is what a machine lost at this moment would cost: seconds since the last stored state, and bytes not
    stored.

    Examples:

    spotwarp status

    spotwarp status --json

    spotwarp status --cost

    Exit codes: 0, 1 the backup is failing now, or its machine is silent or its process has ended, or the store lacks
    what this workspace has stored, 10 no such run, 12 no or another key, 17 store unavailable (then what this machine
    knows is shown).
    """
    from spotwarp.execution.origin import stem_of

    try:
        opened = enter(run_name, budget_s=STATUS_BUDGET_S)
        local = _asked_here(opened.workspace)
        log = opened.log()
        seen = _with_local(_view(opened, log), local)
        behind = stem_of(opened.workspace, opened.repository, log).behind
        bill = found_cost(opened) if with_cost else None
    except (StoreError, WrongKey) as error:
        return _without_store(error, *settings(run_name), as_json=as_json)
    silent = seen.gone or (seen.state == "silent" and not seen.readonly)
    failing = 1 if behind or seen.errors or seen.lacking or silent else 0
    parts = _parts(opened)
    if as_json:
        render.facts(
            {
                **asdict(seen),
                "encrypted": opened.repository.encrypted,
                "downloadable": [{**asdict(p), "exclude": p.exclude} for p in parts],
                "here": _here(local),
                "behind": behind,
                **({"cost": bill.facts()} if bill else {}),
            }
        )
        return failing
    _print(
        [
            *([("NOT STORED", behind)] if behind else []),
            *_loud(seen, opened.clock),
            ("run", f"{seen.run}: {seen.state}" + (f", generation {seen.generation}" if seen.generation else "")),
            ("held by", seen.gone or (f"{seen.holder}, since {seen.since}" if seen.holder else "nobody")),
            *_at_work_here(local),
            ("heartbeat", f"{human_seconds(seen.beat_age_s)} ago" if seen.beat_age_s is not None else "none"),
            ("work at risk", _risk(seen.at_risk_s, seen.at_risk_bytes)),
            ("last snapshot", _when(seen.last_snapshot, seen.last_snapshot_age_s)),
            ("resumes from", _resumes(seen)),
            *_more(seen),
            *([("encrypted", "yes")] if opened.repository.encrypted else []),
            *(bill.rows() if bill else ()),
            *[("stored too", f"{p.path}: {p.kind}, {human_bytes(p.bytes)}   {p.exclude}") for p in parts],
        ]
    )
    return failing


def _print(rows: list[tuple[str, str]]) -> None:
    for name, value in rows:
        render.line(f"{name:14} {value}")


def _more(seen: RunView) -> list[tuple[str, str]]:
    """What is said only where there is something to say."""
    rows = []
    if seen.loss is not None:
        rows.append(("last loss", f"{seen.loss:.4f}" + (f" at step {seen.step}" if seen.step is not None else "")))
    if seen.exit is not None:
        rows.append(("exit code", str(seen.exit)))
    if seen.coding:
        rows.append(("coding", f"{seen.coding}: {seen.coding_why}"))
    if seen.coding_bytes_s is not None and seen.coding_ratio is not None:
        rows.append(("", f"{human_bytes(seen.coding_bytes_s)}/s a core, to {seen.coding_ratio:.0%} of the size"))
    told = {
        "limits": seen.limits,
        "not told": seen.notify_error,
        "disk": seen.disk,
        "arriving": seen.arriving,
        "older version": seen.kept,
        "notices": seen.notices,
        "READ-ONLY": seen.readonly,
    }
    return [*rows, *((name, value) for name, value in told.items() if value)]


def _parts(opened: Context) -> list[Part]:
    """What here is large, is stored, and could be downloaded again; nothing where looking takes too long."""
    from spotwarp.execution.parts import downloadable, glance

    try:
        seen = glance(opened.workspace, opened.config.exclude, opened.clock)
    except (WorkspaceFault, PlatformUnsupported):
        return []
    return downloadable(seen.entries) if seen else []


def _loud(seen: RunView, clock: Clock) -> list[tuple[str, str]]:
    """What must be read before everything else."""
    rows = []
    if seen.errors:
        age = _seconds_since(seen.errors_since, clock)
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


def _asked_here(workspace: Path) -> dict[str, Any] | None:
    """What the SpotWarp at work on this machine says; None when there is none."""
    from spotwarp.execution.control_socket import glimpse

    return glimpse(workspace)


def _with_local(seen: RunView, known: dict[str, Any] | None) -> RunView:
    """What the SpotWarp at work on this machine knows is fresher than its last heartbeat, which may not get through."""
    from spotwarp.persistence.view import how_stored

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
        arriving=str(known.get("arriving") or ""),
        notices=str(known.get("notices") or ""),
        **how_stored(known),
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


def _view(opened: Context, log: RunLog) -> RunView:
    from spotwarp.persistence.runlog.entry import Claim
    from spotwarp.persistence.runlog.lease import read_beat
    from spotwarp.persistence.telemetry import read_latest
    from spotwarp.persistence.view import view

    head = log.existing_head() if opened.config.run not in opened.repository.runs() else log.head()
    numbers = sorted({n for n in (head.state.claim, head.state.snapshot, head.state.resumable, head.n) if n})
    entries = []
    for n in numbers:
        try:
            entries.append(log.read(n))
        except (CorruptObject, UnsupportedFormat):
            continue
    beat = read_beat(opened.repository.store, log.run, head.state.life) if head.state.life else None
    seen = view(
        log.run,
        head.state,
        entries,
        read_latest(opened.repository.store, log.run),
        beat,
        opened.clock.wall(),
        readonly=head.readonly,
    )
    claim = next((e for e in entries if isinstance(e, Claim) and e.n == head.state.claim), None)
    return _gone(seen, claim, opened)


def _gone(seen: RunView, claim: Claim | None, opened: Context) -> RunView:
    """A holder whose process is known to have ended here does not train, whatever its last heartbeat said."""
    from spotwarp.execution.occupancy.gone import gone_from_here

    if claim is None or not seen.holder or seen.readonly or not gone_from_here(claim, opened.workspace):
        return seen  # also where the end may stand in an entry that is too new to be read
    wait_s = max(claim.lease_s, opened.config.lease_s)
    words = f"nobody: process {claim.pid} has ended here; another start waits {wait_s:g} s for its lease"
    told_s = seen.at_risk_s
    if told_s and seen.beat_age_s is not None:
        told_s = max(0.0, told_s - seen.beat_age_s)  # nobody works on: what was at risk then is at risk now
    return replace(seen, state="silent", gone=words, at_risk_s=told_s)


# --- the store is away


def _without_store(error: StoreError | WrongKey, workspace: Path, config: Config, *, as_json: bool) -> int:
    """What this machine knows, from the SpotWarp at work here or from what the last one left; else raise `error`."""
    from spotwarp.execution.localstate import STATE, Origin, load, runtime
    from spotwarp.execution.occupancy import lock
    from spotwarp.execution.syncing.unstored import find

    known = _asked_here(workspace)
    if known is not None and known.get("run") != config.run:
        known = None
    origin = load(runtime(workspace) / STATE, Origin)
    if known is None and origin is None and not (runtime(workspace) / lock.FILE).exists():
        raise error  # nothing ever ran here
    if known is not None and isinstance(error, WrongKey):
        return _unread(error, known, as_json=as_json)
    last = origin.snapshot if origin is not None and origin.run == config.run else 0
    left = find(workspace, config.exclude)
    if as_json:
        idle = {"run": config.run, "phase": "", "last_snapshot": last or None, "at_risk_bytes": left.bytes}
        render.facts({"store_error": error.message, **(known or idle), "unstored": left.paths})
        return error.exit_code
    idle_rows = [
        ("run", f"{config.run}: nobody is at work here"),
        ("last snapshot", f"{last}, as far as this machine knows" if last else "none that this machine knows of"),
        ("work at risk", f"{human_bytes(left.bytes)} not stored" if left.count else "none that was seen here"),
    ]
    rows = _rows_here(known, str(known.get("error") or error.message)) if known is not None else idle_rows
    _print([*rows, ("not known", "what other machines did: the store cannot be asked")])
    if left.count:
        render.line(str(left))
    render.failure(error, as_json=False)
    return error.exit_code


def _unread(error: WrongKey, known: dict[str, Any], *, as_json: bool) -> int:
    """The SpotWarp at work here has the key, and this process has not: what that one says, and no alarm of our own."""
    failing = 1 if known.get("error") or known.get("lacking") else 0
    if as_json:
        render.facts({"not_read": error.message, **known})
        return failing
    why = f"what other machines did: the store cannot be read from here, for {error.message}"
    _print([*_rows_here(known, str(known.get("error") or "")), ("not known", why), ("", error.hint or "")])
    return failing


def _rows_here(known: dict[str, Any], trouble: str) -> list[tuple[str, str]]:
    """The usual view, from the SpotWarp at work here alone; `trouble` is with the store."""
    from spotwarp.clock import SystemClock

    age = _seconds_since(str(known.get("error_since") or ""), SystemClock())
    lasted = f" for {human_seconds(age)}" if age is not None else ""
    word = "STALLED" if known.get("stalled") else "failing"
    last, step, loss = known.get("last_snapshot"), known.get("step"), known.get("loss")
    rows = [
        *([("NOT STORED", f"{word}{lasted}: {trouble}")] if trouble else []),
        *([("NOT STORED", str(known["lacking"]))] if known.get("lacking") else []),
        ("run", f"{known['run']}: {known['phase']}, generation {known['generation']}"),
        *_at_work_here(known),
        ("work at risk", _risk(known.get("at_risk_s"), known.get("at_risk_bytes"))),
        ("last snapshot", str(last) if last else "none yet"),
    ]
    if step is not None:
        words = f"{loss:.4f} at step {step}" if isinstance(loss, float) else f"unknown, at step {step}"
        rows.append(("last loss", words))
    told = {"not told": "notify_error", "disk": "disk", "arriving": "arriving", "notices": "notices"}
    return [*rows, *((name, str(known[key])) for name, key in told.items() if known.get(key))]


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
