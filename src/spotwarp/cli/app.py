"""The command line: verbs, their groups, and the one place where errors become exit codes. No logic."""

from __future__ import annotations

import typer

from spotwarp import __version__
from spotwarp.cli import demo, init, inspect, restore, run, sync
from spotwarp.cli.render import failure
from spotwarp.errors import Interrupted, SpotWarpError, UsageError

app = typer.Typer(
    name="spotwarp",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="GPU training on spot machines, made survivable.\n\n"
    "spotwarp init --remote-path s3://bucket/project\n\nspotwarp run --command 'python train.py'",
)
for module in (init, run, sync, inspect, restore, demo):
    module.register(app)


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
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    try:
        code = app(arguments, prog_name="spotwarp", standalone_mode=False)
    except SpotWarpError as error:
        failure(error, as_json="--json" in own)
        return error.exit_code if own[:1] != ["run"] else run.exit_code(error)
    except typer.Abort:
        return Interrupted.exit_code
    except KeyboardInterrupt:
        failure(Interrupted("interrupted; what was acknowledged before is safe"), as_json=False)
        return Interrupted.exit_code
    except typer.TyperException as error:
        return _usage(error)
    return code if isinstance(code, int) else 0


def _usage(error: typer.TyperException) -> int:
    """The parser's own word, in our way of speaking."""
    format_message = getattr(error, "format_message", None)
    failure(
        UsageError(format_message() if format_message else str(error), hint="See `spotwarp VERB --help`."),
        as_json=False,
    )
    return UsageError.exit_code
