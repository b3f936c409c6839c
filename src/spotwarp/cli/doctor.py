"""`spotwarp doctor`: will this machine and this store carry a run?"""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spotwarp.cli import keys, render
from spotwarp.cli.context import connect, here, key_of, known_in
from spotwarp.clock import SystemClock, SystemRng

if TYPE_CHECKING:
    from spotwarp.config import Config


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("doctor")(doctor)


def doctor(
    remote_path: str | None = typer.Option(
        None, "--remote-path", help="Where to store; the workspace's own when left out. Works before `init`."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the findings and the numbers behind them as JSON."),
) -> int:
    """Try the store and look at the machine: what works, what is measured, what a notice would suffice for.

    Writes, reads, lists, creates and deletes at the target, uploads random bytes for a few seconds and reads them back
    (all removed after), and looks at the key, the clock, the disk, the GPUs and the sources of preemption notices. Each
    line is ok, warn or FAIL, with what to do about it.

    Examples:

    spotwarp doctor

    spotwarp doctor --remote-path s3://my-bucket/my-project --json

    Exit codes: 0 nothing failed, 1 something did, 2 wrong usage.
    """
    from spotwarp.execution.doctor import Asked, examine
    from spotwarp.persistence.store.url import parse_url

    workspace, config = _config(remote_path)
    clock, rng = SystemClock(), SystemRng()
    location = parse_url(config.remote_path, cwd=workspace)
    store = connect(config.remote_path, clock=clock, rng=rng, cwd=workspace)
    secret = cache(lambda: key_of(config, workspace))
    known = known_in(workspace) if remote_path is None else None
    asked = Asked(workspace, config, location, store, os.environ, clock, rng, secret, known)
    lines = []
    for line in examine(asked):
        lines.append(line)
        if not as_json:
            render.line(f"{'FAIL' if line.level == 'fail' else line.level:5} {line.name:13} {line.text}")
            if line.hint and line.level != "ok":
                render.line(f"{'':5} {'':13} hint: {line.hint}")
    failed = any(line.level == "fail" for line in lines)
    if as_json:
        render.facts({"ok": not failed, "lines": [asdict(line) for line in lines], "measured": asked.measured})
    return 1 if failed else 0


def _config(remote_path: str | None) -> tuple[Path, Config]:
    """The workspace at or above here and its options; where there is none, this directory and the defaults."""
    from spotwarp.config import find_workspace, load, mistaken
    from spotwarp.errors import ConfigError

    for words in mistaken(os.environ):
        render.note(words)
    overrides = {"remote_path": remote_path}
    try:
        workspace = find_workspace(here())
    except ConfigError:
        if remote_path is None:
            raise
        return here(), load(None, env=os.environ, overrides=overrides)
    config = load(workspace, env=os.environ, overrides=overrides)
    keys.leave(config.secrets)
    return workspace, config
