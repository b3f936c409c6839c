"""What is worth telling somebody who is not watching, and how it is written down. Pure.

One JSON object for every receiver; a command finds the same facts in its environment as well. Holds no secret: facts
are SpotWarp's own (names, numbers, reasons), and whoever sends them takes the values of `secrets` out first (I11).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Event: TypeAlias = Literal["stalled", "recovered", "preempted", "resumed", "failed", "done"]
Fact: TypeAlias = str | int | float | bool | None

VERSION = 1
VARIABLE = "SPOTWARP_EVENT"
PLENTY_S = 60.0
"""A notice that leaves at least this much is told at once; otherwise only after the final sync."""


@dataclass(frozen=True, slots=True)
class News:
    """One thing that happened."""

    event: Event
    text: str
    """In words, for a person; one line."""
    facts: Mapping[str, Fact] = field(default_factory=dict)

    def document(self, origin: Mapping[str, Fact]) -> dict[str, Fact]:
        """The JSON object: `origin` says where it happened (run, generation, host, workspace, time)."""
        return {"v": VERSION, "event": self.event, "text": self.text, **origin, **self.facts}


def environment(document: Mapping[str, Fact]) -> dict[str, str]:
    """The same facts as variables: `SPOTWARP_EVENT` is the event, `SPOTWARP_EVENT_<FACT>` each fact that is known."""
    known = {k: v for k, v in document.items() if v is not None and k not in ("v", "event")}
    words = {k: str(v).lower() if isinstance(v, bool) else str(v).replace("\0", "") for k, v in known.items()}
    return {VARIABLE: str(document["event"]), **{f"{VARIABLE}_{k.upper()}": word for k, word in words.items()}}


def ending(code: int, sealed: str, *, preempted: bool) -> Event | None:
    """What the end of a run is to somebody who is not watching; None where the user ended it, stored or at once.

    `sealed` is the last entry's kind (empty: none), `preempted` says that the machine had a notice.
    """
    if sealed == "complete" and code == 0:
        return "done"
    if sealed == "preempted" or (preempted and not sealed):
        return "preempted"
    # 0: a service that was quit; 130 without a seal: at once, as the user asked who saw what it costs.
    quiet = (sealed == "stopped" and code in (0, 130)) or (not sealed and code == 130)
    return None if quiet else "failed"
