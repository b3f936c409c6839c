"""`spotwarp run`: wrap a training command."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from spotwarp.cli import render
from spotwarp.cli.background import started
from spotwarp.cli.context import Context, enter, here
from spotwarp.cli.options import CODING, GRACE, INTERVAL, LEASE, LIMITS, WAIT_FOR_ALL
from spotwarp.config import find_workspace
from spotwarp.errors import SpotWarpError, UsageError
from spotwarp.system import require_linux

if TYPE_CHECKING:
    from spotwarp.execution.job import Wish

LAST_WORDS_S = 2.0


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("run", context_settings={"allow_extra_args": True, "ignore_unknown_options": False})(run)


def failed(error: SpotWarpError, *, as_json: bool) -> int:
    """Tell an error of SpotWarp's own, and the code that `run` leaves with: the child's codes stay the child's.

    JSON goes to stderr here: stdout belongs to the command.
    """
    code = error.exit_code if error.exit_code in (2, 126, 127, 130) else 125
    facts = {"exit_code": code, "reason": error.message, "snapshot": None, "error": error.code, "hint": error.hint}

    def tell() -> None:
        render.failure(error, as_json=False)
        if as_json:
            write(facts)

    _unless_nobody_reads(tell)
    return code


def write(facts: dict[str, Any]) -> None:
    """One line of JSON on stderr: stdout is the command's."""
    with contextlib.suppress(OSError):
        sys.stderr.write(json.dumps(facts) + "\n")


def _unless_nobody_reads(tell: Callable[[], None]) -> None:
    """Have `tell` write, and do not wait long for it: a full pipe must not keep us from ending."""
    teller = threading.Thread(target=tell, name="last-words", daemon=True)
    teller.start()
    teller.join(LAST_WORDS_S)


def run(
    context: typer.Context,
    command: str | None = typer.Option(None, "--command", help="The training command, run as `bash -c COMMAND`."),
    run_name: str | None = typer.Option(None, "--run", help="Another run than the config's."),
    resume_args: str | None = typer.Option(
        None, "--resume-args", help="Appended to the command when there is a checkpoint; {checkpoint} is its path."
    ),
    takeover: bool = typer.Option(False, "--takeover", help="Claim the run at once, whoever holds it."),
    restore: bool = typer.Option(
        False, "--restore", help="Where this workspace has newer local work: set it aside and restore the run's."
    ),
    keep_local: bool = typer.Option(False, "--keep-local", help="Where it has: keep it, and go on from it."),
    extend: bool = typer.Option(
        False, "--extend", help="Where the run is complete: train on from its result, in a run of its own (main-2 ...)."
    ),
    other_shape: bool = typer.Option(
        False, "--allow-other-shape", help="Resume with another number of processes or GPUs than the checkpoint's."
    ),
    wait_for_all: bool = WAIT_FOR_ALL,
    interval: str | None = INTERVAL,
    lease: str | None = LEASE,
    grace: str | None = GRACE,
    limits: str | None = LIMITS,
    coding: str | None = CODING,
    detach: bool = typer.Option(
        False, "--detach", "-d", help="Go on in the background; returns when the command runs, or has failed to start."
    ),
    as_json: bool = typer.Option(False, "--json", help="End with one line of JSON on stderr: what happened."),
) -> int:
    """Run a training command, keep its workspace stored, survive preemption, resume.

    Claims the run, restores when this workspace is behind it, starts the command, stores the workspace at each
    completed checkpoint and every interval, and once more when the command has ended. Without a command, the one
    recorded in the run.

    SIGTERM is a preemption: the command may save, everything is stored, exit 75; the same two commands continue on
    another machine. Ctrl-C once: save, store, stop; twice: now. A closed terminal stops nothing; `spotwarp attach` is
    the way back, `spotwarp stop` ends it.

    The command sees SPOTWARP_RUN_ID, SPOTWARP_GENERATION, SPOTWARP_RESUMED (0 or 1), SPOTWARP_LAST_CHECKPOINT, and
    SPOTWARP_NOTICE_FILE, which appears when the machine is about to go; it does not see SPOTWARP_KEY.

    Examples:

    spotwarp run --command 'torchrun --nproc_per_node=8 train.py'

    spotwarp run -- python train.py --epochs 3

    spotwarp run --command 'python train.py' --resume-args '--resume_from_checkpoint {checkpoint}'

    spotwarp run --extend --command 'python train.py --epochs 6'

    spotwarp run

    spotwarp run --detach --command 'python train.py'

    Exit codes: the command's own; 75 preempted and stored; 125 SpotWarp could not do its part; 126, 127 the command
    cannot be started; 130 stopped. An encrypted repository needs SPOTWARP_KEY or SPOTWARP_KEY_FILE (else 125).
    """
    if restore and keep_local:
        raise UsageError("--restore and --keep-local exclude each other")
    if command is not None and context.args:
        raise UsageError("give the command once: --command '…' or after --")
    require_linux("running a command")
    from spotwarp.execution.detached import reporter

    if (report := reporter(os.environ)) is None and detach:
        return started(find_workspace(here()), as_json=as_json)
    from spotwarp.execution.job import Choice, Wish

    opened = enter(
        run_name, interval=interval, lease=lease, grace=grace, limits=limits, coding=coding,
        start_early="never" if wait_for_all else None, allow_other_shape=other_shape or None,
    )  # fmt: skip
    words = (command,) if command is not None else tuple(context.args)
    if extend:
        opened = _extended(opened, words, keep=run_name is None)
    choice = Choice.RESTORE if restore else Choice.KEEP if keep_local else Choice.ASK
    wish = Wish(words, command is not None, resume_args, takeover, choice, report is not None, (opened.key_text,))
    return _carried_out(opened, wish, report or (lambda: None), as_json=as_json)


def _carried_out(opened: Context, wish: Wish, started: Callable[[], None], *, as_json: bool) -> int:
    from spotwarp.execution.job import run_job
    from spotwarp.execution.output.cursor import Cursor
    from spotwarp.execution.output.speaker import Speaker

    cursor = Cursor()
    speaker = Speaker(lambda line: render.note(line, midline=cursor.leave()))
    try:
        outcome = run_job(
            opened.workspace,
            opened.config,
            opened.repository,
            opened.log(),
            wish,
            clock=opened.clock,
            rng=opened.rng,
            say=speaker.say,
            ask=_ask if sys.stdin.isatty() and sys.stderr.isatty() else None,
            started=started,
            cursor=cursor,
        )
    finally:
        speaker.flush(LAST_WORDS_S)
    if as_json:
        _unless_nobody_reads(lambda: write(outcome.facts()))
    return outcome.code


def _extended(opened: Context, command: tuple[str, ...], *, keep: bool) -> Context:
    """The same workspace in the run that goes on from a complete one; `keep` it as the workspace's run from now on."""
    from spotwarp.configfile import set_run
    from spotwarp.execution.extending import extend
    from spotwarp.execution.redaction import Redactor
    from spotwarp.execution.secrets import refuse_spelled_out, require

    # Before a run is made for a command that will not be started.
    refuse_spelled_out(command, Redactor([*require(opened.config.secrets, os.environ), opened.key_text]))
    name = extend(opened.log, opened.config.run, command, render.note)
    if name == opened.config.run:
        return opened
    opened.repository.enlist(name)
    if keep:
        set_run(opened.workspace, name)
    return replace(opened, config=replace(opened.config, run=name))


def _ask(question: str) -> str:
    answer: str = typer.prompt(question, err=True, default="stop")
    return answer
