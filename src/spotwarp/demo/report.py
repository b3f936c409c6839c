"""What the demo found out: the facts, as data and as a table.

Owns the report's fields and their rendering. Must never measure or judge anything that the scenario did not hand it,
except the one verdict drawn from the facts.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any, TextIO

HEADINGS = ("preemption", "lost steps", "lost time", "resumed after")


@dataclass(frozen=True, slots=True)
class Preemption:
    """One machine lost: the steps trained in vain, the seconds they took, the seconds until training went on."""

    kind: str
    lost_steps: int
    lost_s: float
    resume_s: float


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The demo's result. Digests are SHA-256 of the final weights, sizes bytes.

    `zombie_commits` counts log entries that a superseded machine added after its successor's claim; `failures` says in
    words which expectations were not met.
    """

    digest_uninterrupted: str
    digest_interrupted: str
    preemptions: tuple[Preemption, ...]
    zombie_commits: int
    bytes_read: int
    bytes_stored: int
    failures: tuple[str, ...] = ()

    @property
    def identical(self) -> bool:
        """Whether both trainings ended, and with the same weights."""
        return bool(self.digest_interrupted) and self.digest_interrupted == self.digest_uninterrupted

    @property
    def ok(self) -> bool:
        """Whether everything is as promised."""
        return self.identical and self.zombie_commits == 0 and not self.failures

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {"ok": self.ok, "identical": self.identical, **asdict(self)}

    def verdict(self) -> str:
        """The last line of the report."""
        if self.identical:
            return f"bit-identical: {len(self.preemptions)} preemptions, {self.digest_interrupted[:16]}… both times"
        interrupted, uninterrupted = self.digest_interrupted[:16] or "none", self.digest_uninterrupted[:16] or "none"
        return f"NOT bit-identical: interrupted {interrupted}, uninterrupted {uninterrupted}"


def render(report: DemoReport, *, as_json: bool = False, file: TextIO | None = None) -> None:
    """Write the report: a table on a terminal, plain lines elsewhere, the verdict last; or all of it as JSON."""
    out = file or sys.stdout
    if as_json:
        print(json.dumps(report.to_json(), indent=2), file=out)
        return
    rows = [
        (entry.kind, str(entry.lost_steps), f"{entry.lost_s:.1f} s", f"{entry.resume_s:.1f} s")
        for entry in report.preemptions
    ]
    facts = [
        f"read {report.bytes_read / 1e6:.1f} MB, stored {report.bytes_stored / 1e6:.1f} MB, "
        f"added by a superseded machine: {report.zombie_commits} entries",
        *(f"failed: {failure}" for failure in report.failures),
    ]
    if out.isatty():
        _render_rich(rows, facts, report, out)
    else:
        widths = [max(len(row[column]) for row in (HEADINGS, *rows)) for column in range(len(HEADINGS))]
        for row in (HEADINGS, *rows):
            first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            print(row[0].ljust(len(first)), *rest, sep="  ", file=out)
        print(*facts, report.verdict(), sep="\n", file=out)


def _render_rich(rows: list[tuple[str, str, str, str]], facts: list[str], report: DemoReport, out: TextIO) -> None:
    from rich.console import Console  # heavy, and only wanted on a terminal
    from rich.table import Table
    from rich.text import Text

    table = Table(*HEADINGS[:1])
    for heading in HEADINGS[1:]:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    console = Console(file=out)
    console.print(table)
    for fact in facts:
        console.print(Text(fact))
    console.print(Text(report.verdict(), "bold green" if report.ok else "bold red"))
