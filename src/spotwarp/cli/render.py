"""How verbs speak: facts as JSON on stdout, words for people, progress on a terminal. No facts are made here."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from spotwarp.errors import SpotWarpError
from spotwarp.model import legible


def facts(value: Any) -> None:
    """Print facts as JSON on stdout; the odd bytes of a path that is no text as escaped lone surrogates."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if legible(text) != text:
        text = json.dumps(value, indent=2, default=str)
    sys.stdout.write(text + "\n")


def line(text: str = "") -> None:
    """Print a line on stdout."""
    sys.stdout.write(legible(text) + "\n")


def note(text: str, *, midline: bool = False) -> None:
    """Print a line on stderr, marked as SpotWarp's own; `midline`: somebody else's has not ended there."""
    try:
        sys.stderr.write(("\n" if midline else "") + f"spotwarp: {text}\n")
        sys.stderr.flush()
    except OSError:
        return  # the terminal is gone; the run is not


def failure(error: SpotWarpError, *, as_json: bool) -> None:
    """Print an error: one message, one hint, its code."""
    if as_json:
        facts(
            {"error": {"code": error.code, "message": error.message, "hint": error.hint, "exit_code": error.exit_code}}
        )
    note(f"error: {error.message}")
    if error.hint:
        note(f"hint: {error.hint}")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout: framed on a terminal, plain columns elsewhere."""
    if not sys.stdout.isatty():
        widths = [max(len(r[i]) for r in [headings, *rows]) for i in range(len(headings))]
        for row in [headings, *rows]:
            line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    from rich.console import Console
    from rich.table import Table

    framed = Table(*headings)
    for row in rows:
        framed.add_row(*row)
    Console().print(framed)
