"""The command line: verbs, their groups, and the one place where errors become exit codes. No logic."""

from __future__ import annotations

import os
import signal
import sys

import typer

from spotwarp import __version__
from spotwarp.cli import background, demo, doctor, init, inspect, key, keys, restore, run, status, sync
from spotwarp.cli.parsing import Verb, Verbs
from spotwarp.cli.render import failure
from spotwarp.errors import Interrupted, SpotWarpError, UsageError, WorkspaceFault

app = typer.Typer(
    name="spotwarp",
    cls=Verbs,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="GPU training on spot machines, made survivable.\n\n"
    "spotwarp init --remote-path s3://bucket/project\n\nspotwarp run --command 'python train.py'",
)
for module in (init, doctor, run, background, sync, status, inspect, restore, key, demo):
    module.register(app)
for verb in app.registered_commands:
    verb.cls = Verb


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spotwarp {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True, callback=_version),
) -> None:
    del version


def main(arguments: list[str]) -> int:
    """Run the command line and return its exit code; no traceback reaches a user for an error of the tree."""
    keys.take()
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    try:
        code = app(arguments or ["--help"], prog_name="spotwarp", standalone_mode=False)
    except SpotWarpError as error:
        if own[:1] == ["run"]:
            return run.failed(error, as_json="--json" in own)
        failure(error, as_json="--json" in own)
        return error.exit_code
    except typer.Abort:
        failure(Interrupted("interrupted; what was acknowledged before is safe"), as_json=False)
        return Interrupted.exit_code
    except KeyboardInterrupt:
        failure(Interrupted("interrupted; what was acknowledged before is safe"), as_json=False)
        return Interrupted.exit_code
    except typer.TyperException as error:
        return _usage(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `| head` has read enough
        return 128 + signal.SIGPIPE
    except OSError as error:
        return _system(error, as_json="--json" in own, verb=own[:1])
    return code if isinstance(code, int) else 0


def _system(error: OSError, *, as_json: bool, verb: list[str]) -> int:
    """What the operating system refused where nobody had a better word for it: full, read-only, not ours."""
    place = f"{error.filename}: " if error.filename else ""
    fault = WorkspaceFault(f"{place}{error.strerror or error}", hint="Is the disk full, read-only or somebody else's?")
    if verb == ["run"]:
        return run.failed(fault, as_json=as_json)
    failure(fault, as_json=as_json)
    return fault.exit_code


def _usage(error: typer.TyperException) -> int:
    """The parser's own word, in our way of speaking."""
    format_message = getattr(error, "format_message", None)
    failure(
        UsageError(format_message() if format_message else str(error), hint="See `spotwarp VERB --help`."),
        as_json=False,
    )
    return UsageError.exit_code
