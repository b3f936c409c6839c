"""What a source of notices is, and what a look at it can say.

A source knows one protocol and nothing else: it does not wait between looks, does not remember what it has said before
and decides nothing. All times are seconds from the moment of the look.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from spotwarp.errors import NoticeFault


@dataclass(frozen=True, slots=True)
class Announced:
    """The machine ends in `seconds_left`. `what` is the platform's word for it, `by` says where the time came from."""

    seconds_left: float
    what: str
    by: str


@dataclass(frozen=True, slots=True)
class Seen:
    """One look: an announced end, a mere `hint` that one may come (a sync at once is a good idea), or neither."""

    announced: Announced | None = None
    hint: str = ""


class Source(ABC):
    """One source. `look` is called in a thread of its own, `abort` from any other."""

    name: ClassVar[str]
    period_s: float
    """Between the begins of two looks."""

    @abstractmethod
    def look(self) -> Seen:
        """Ask, once. Raises `NoticeFault` when there is no usable answer."""

    @abstractmethod
    def abort(self) -> None:
        """Let a look that is under way end soon, and every later one at once."""

    def acknowledge(self) -> str:
        """Tell the platform that it need not wait any longer; what was told, "" for nothing. Raises `NoticeFault`."""
        return ""

    def at_sigterm(self) -> str:
        """What this source knows about a SIGTERM that has just come, in words. Raises `NoticeFault`."""
        return ""


__all__ = ["Announced", "NoticeFault", "Seen", "Source"]
