"""`spotwarp attach`, `logs`, `stop`: the way back to a run, from its own machine or any other."""

from __future__ import annotations

import os
import shlex
import sys
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from spotwarp import errors
from spotwarp.cli import keys, render
from spotwarp.cli.context import LOOK_BUDGET_S, Context, enter, here
from spotwarp.config import find_workspace
from spotwarp.errors import ExecutionError, Interrupted, LeaseHeld, SpotWarpError, UsageError
from spotwarp.values import duration

if TYPE_CHECKING:
    from spotwarp.execution.output.following import Read
    from spotwarp.execution.output.logs import StoredOutput
    from spotwarp.persistence.runlog.entry import Claim, State

ATTACH_LINES = 20
LOCAL_POLL_S = 0.2
SEGMENT_POLL_S = 15.0
HEAD_POLLS = 4
"""Looks at the run's log once per so many looks for a segment."""


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("attach")(attach)
    app.command("logs")(logs)
    app.command("stop")(stop)


def started(workspace: Path, *, as_json: bool) -> int:
    """`run --detach` in the foreground: start it, wait until its command runs, and say how to come back."""
    from spotwarp.execution.control_socket import glimpse
    from spotwarp.execution.detached import Starting

    starting = Starting(workspace, sys.argv[1:], {**os.environ, **keys.held()})
    try:
        code = starting.wait(_on_stderr)
    except KeyboardInterrupt:
        render.note(
            f"left alone: it goes on starting in the background (process {starting.pid}); `spotwarp attach` shows it, "
            "`spotwarp stop` ends it"
        )
        return Interrupted.exit_code
    if code is not None:
        return code
    known = glimpse(workspace)
    if known is None and (code := starting.ended()) is not None:
        render.note("its command has ended already: `spotwarp logs` shows its output, `spotwarp status` how it stands")
        return code
    known = known or {"pid": starting.pid}
    if as_json:
        render.facts({key: known.get(key) for key in ("run", "generation", "pid", "host", "since", "detached")})
        return 0
    where = f"run {known['run']!r}, generation {known['generation']}, " if "run" in known else "it "
    render.line(f"{where}goes on in the background (process {known['pid']})")
    render.line("spotwarp attach    shows its output; Ctrl-C there leaves it running")
    render.line("spotwarp stop      ends it, with everything stored")
    return 0


def attach(
    tail: int = typer.Option(ATTACH_LINES, "--tail", min=0, help="Begin with so many of the last lines."),
    as_json: bool = typer.Option(False, "--json", help="End with one line of JSON on stderr: how it ended."),
) -> int:
    """Show the output of the run at work in this workspace, live, until it ends.

    However it was started: with `--detach`, in a terminal that is open elsewhere, or in one that was closed. Ctrl-C
    detaches: the run goes on. `spotwarp stop` is what ends it. Only on the machine that it runs on; from elsewhere,
    `spotwarp logs -f`.

    Examples:

    spotwarp attach

    spotwarp attach --tail 200

    Exit codes: the run's own when it ended, 10 nothing runs here, 130 detached by Ctrl-C.
    """
    from spotwarp.clock import SystemClock
    from spotwarp.execution import detached

    try:
        outcome = detached.attach(
            find_workspace(here()), lines=tail, show=_on_stdout, tell=_on_stderr, clock=SystemClock()
        )
    except KeyboardInterrupt:
        render.note("detached; the run goes on. `spotwarp attach` comes back, `spotwarp stop` ends it")
        return Interrupted.exit_code
    return _ended(outcome, as_json=as_json)


def _ended(outcome: dict[str, Any], *, as_json: bool) -> int:
    """Tell how a run ended, as it would have itself; its exit code."""
    from spotwarp.cli import run  # late: it imports this module

    if "exit_code" not in outcome:
        return run.failed(raised(outcome), as_json=as_json)
    render.note(str(outcome["reason"]))
    if as_json:
        run.write(outcome)
    return int(outcome["exit_code"])


def raised(answer: dict[str, Any]) -> SpotWarpError:
    """The error that an answer of the control socket tells of."""
    kind = getattr(errors, str(answer.get("code")), ExecutionError)
    error: SpotWarpError = kind(str(answer["error"]), hint=answer.get("hint"))
    return error


def stop(
    now: bool = typer.Option(False, "--now", help="Do not save, do not sync: end the command at once."),
    as_json: bool = typer.Option(False, "--json", help="Print how it ended as JSON."),
) -> int:
    """Stop the run at work in this workspace: as Ctrl-C in its terminal.

    The command may save, everything is stored and read back, the run is `stopped` and `spotwarp run` continues it.
    Returns when that is done; Ctrl-C here does not undo it. Only on the machine that it runs on: the run's log holds
    facts, and no wish of another machine. From elsewhere it says what to type where.

    Examples:

    spotwarp stop

    spotwarp stop --now

    Exit codes: 0 stopped (or nothing runs), 11 it runs on another machine (or processes that it left do here), 125 not
    everything could be stored.
    """
    from spotwarp.execution.control_socket import ask

    workspace = find_workspace(here())
    try:
        outcome = ask(workspace, {"verb": "stop", "now": now})
    except KeyboardInterrupt:
        render.note("it goes on stopping; `spotwarp status` says when it has")
        return Interrupted.exit_code
    if outcome is None:
        return _nothing_to_stop(enter(budget_s=LOOK_BUDGET_S), as_json=as_json)
    if as_json:
        render.facts(outcome)
    elif "exit_code" in outcome:
        render.note(str(outcome["reason"]))
    else:
        render.note(str(outcome["error"]))
    stopped = outcome.get("exit_code") == Interrupted.exit_code or outcome.get("code") == Interrupted.__name__
    return 0 if stopped or outcome.get("stored") else ExecutionError.exit_code


def _nothing_to_stop(opened: Context, *, as_json: bool) -> int:
    from spotwarp.execution.claiming import last_claim
    from spotwarp.execution.occupancy.gone import gone_from_here
    from spotwarp.execution.occupancy.leftovers import refuse_leftovers
    from spotwarp.persistence.runlog.lease import holder

    if sys.platform == "linux":
        refuse_leftovers(opened.workspace)  # nobody is beside them who could end them
    log = opened.log()
    head = log.head()
    state = head.state
    word = state.terminal or state.seal or ("new" if not state.generation else "")
    held = None if word else last_claim(log, head)
    if held is not None and not head.readonly and gone_from_here(held, opened.workspace):
        word = (
            f"held by process {held.pid}, which has ended here without a seal; `spotwarp run` goes on after waiting "
            f"{max(held.lease_s, opened.config.lease_s):g} s for its lease"
        )
        if as_json:
            render.facts({"run": log.run, "state": "silent"})
        else:
            render.line(f"nothing runs here any more: run {log.run!r} is {word}")
        return 0
    if not word:
        raise LeaseHeld(
            f"run {log.run!r} is held {holder(log, state)}; it cannot be stopped from here", hint=_where(held)
        )
    if as_json:
        render.facts({"run": log.run, "state": word})
    else:
        render.line(f"nothing to stop: run {log.run!r} is {word}")
    return 0


def _where(held: Claim | None) -> str:
    """What to type, and where, to stop a run that is held elsewhere."""
    place = f"on {held.host}: cd {shlex.quote(held.workspace)} && spotwarp stop" if held else "there: spotwarp stop"
    return f"Type {place}. If that machine is gone, `spotwarp run` takes over when its lease is over."


# --- logs


def logs(
    run_name: str | None = typer.Argument(None, metavar="[RUN]", help="A run; the config's when left out."),
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on until the attempt ends."),
    attempt: int | None = typer.Option(None, "--attempt", min=1, help="Which attempt (generation); else the newest."),
    tail: int | None = typer.Option(None, "--tail", min=0, help="Only so many of the last lines."),
    since: str | None = typer.Option(
        None, "--since", help="Only what was written in the last 90s, 10m, 2h …, or since 2030-01-31T12:00:00+00:00."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the text and where it comes from as JSON."),
) -> int:
    """Print what a run's command wrote, on any machine, also when the one that it ran on is gone.

    Where the run is at work, from its log; elsewhere from the repository: the newest snapshot's log and, after that,
    the telemetry segments, which are written once a minute and hold at most 256 KiB each. What is kept nowhere is said.
    `--since` is as exact as the segments, about a minute.

    Examples:

    spotwarp logs --tail 100

    spotwarp logs -f

    spotwarp logs --attempt 2 --since 10m

    Exit codes: 0, 10 no such run or attempt, 12 no or another key, 16 damaged, 17 store unavailable, 130 Ctrl-C (the
    run goes on).
    """
    moment = _moment(since) if since is not None else None
    if follow and as_json:
        raise UsageError("--json is for what is there; it does not follow")
    from spotwarp.execution import detached
    from spotwarp.execution.localstate import runtime
    from spotwarp.execution.output import following, outputlog
    from spotwarp.execution.output.logs import StoredOutput, attempt_of, over

    opened = enter(run_name, budget_s=LOOK_BUDGET_S)
    log = opened.log()
    state = log.existing_head().state
    wanted = attempt_of(state, log.run, attempt)
    local = _at_work_here(opened, log.run, wanted)
    try:
        with TemporaryDirectory(prefix="spotwarp-logs-") as scratch:
            stored = StoredOutput(opened.repository, log, wanted, Path(scratch), render.note)
            if not local or moment is not None:
                stored.load()
            read: Read = stored.read
            if local:
                path = outputlog.log_path(runtime(opened.workspace), wanted)
                read = following.Tail(path).read
            at = stored.since(moment) if moment is not None else 0
            if tail is not None:
                at = following.last_lines(read, at, tail)
            if as_json:
                render.facts(_collected(read, at, log.run, wanted, stored, local=local))
                return 0
            at = detached.through(read, at, _on_stdout, _on_stderr)
            if follow and not over(state, wanted):
                _follow(opened, wanted, read, at, stored, local=local)
    except KeyboardInterrupt:
        if follow:
            render.note("the run goes on; `spotwarp logs -f` comes back")
        return Interrupted.exit_code
    return 0


def _moment(text: str) -> datetime:
    from spotwarp.clock import SystemClock

    try:
        return SystemClock().wall() - timedelta(seconds=duration(text))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--since {text!r} is neither a duration nor a time", hint="10m, 2h, or ISO 8601") from error
    return moment if moment.tzinfo else moment.astimezone()


def _at_work_here(opened: Context, run: str, attempt: int) -> bool:
    from spotwarp.execution.control_socket import glimpse

    known = glimpse(opened.workspace)
    return known is not None and (known.get("run"), known.get("generation")) == (run, attempt)


def _collected(read: Read, at: int, run: str, attempt: int, stored: StoredOutput, *, local: bool) -> dict[str, Any]:
    text, missing, begin, end = bytearray(), 0, at, at
    while True:
        start, data = read(end)
        if not data:
            break
        missing += start - end
        text += data
        end = start + len(data)
    return {
        "run": run,
        "attempt": attempt,
        "source": "here" if local else "repository",
        "snapshot": stored.snapshot,
        "segments": stored.segments,
        "from": begin,
        "to": end,
        "missing_bytes": missing,
        "text": text.decode(errors="replace"),
    }


def _follow(opened: Context, attempt: int, read: Read, at: int, stored: StoredOutput, *, local: bool) -> None:
    """Print what comes until the attempt is over: from here as it is written, from the repository once a minute."""
    from spotwarp.execution import detached
    from spotwarp.execution.control_socket import ask
    from spotwarp.execution.output import following
    from spotwarp.execution.output.logs import over

    if local:
        waiting = following.Waiting(lambda: ask(opened.workspace, {"verb": "wait"}))
        ended = False
        while not ended:
            ended = opened.clock.wait(waiting.ended, LOCAL_POLL_S)
            at = detached.through(read, at, _on_stdout, _on_stderr)
        return
    log, polls = opened.log(), 0
    state: State | None = None
    while state is None or not over(state, attempt):
        opened.clock.sleep(SEGMENT_POLL_S)
        polls += 1
        while stored.more():
            at = detached.through(read, at, _on_stdout, _on_stderr)
        if polls % HEAD_POLLS == 0:
            state = log.head().state
    stored.load()  # its last snapshot has all of it
    detached.through(read, at, _on_stdout, _on_stderr)
    render.note(f"attempt {attempt} is over; `spotwarp status` says how the run stands")


def _on_stdout(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _on_stderr(data: bytes) -> None:
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()
