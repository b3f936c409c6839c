"""`spotwarp run --extend`: more training after a run is complete.

A complete run stays as it is for good (R13), so what goes on is another run, which begins from its final snapshot and
shares its data: `main`, then `main-2`, `main-3` … Decides which run that is, and makes it; never starts anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from spotwarp.execution.claiming import last_claim
from spotwarp.persistence.fork import fork
from spotwarp.persistence.runlog.entry import State
from spotwarp.persistence.runlog.log import RunLog

_NUMBERED = re.compile(r"(?P<base>.+)-(?P<number>[2-9]|[1-9][0-9]+)")


def extend(log_of: Callable[[str], RunLog], run: str, command: tuple[str, ...], say: Callable[[str], None]) -> str:
    """The run to go on in, made if need be: `run` itself while it is not complete, else the last that continues it.

    The last one is complete as well and its command was another: a new one, from its final snapshot. Safe to repeat,
    here or elsewhere. Raises store errors, `LeaseError`.
    """
    log = log_of(run)
    head = log.existing_head()
    while head.state.terminal == "complete":
        following = continued_as(head.state, log.run)
        if following is None:
            recorded = last_claim(log, head)
            if not command or (recorded is not None and recorded.command == command):
                return log.run  # the same once more: it is done
            following = _free(log_of, log.run)
        child = log_of(following)
        if not child.head().n:
            fork(log, child, head.state.snapshot)
            say(f"run {log.run!r} is complete; going on as run {following!r}, from its snapshot {head.state.snapshot}")
        log, head = child, child.head()
    return log.run


def continued_as(state: State, run: str) -> str | None:
    """The last run that an extension of `run` made, None when there is none."""
    base, number = _parts(run)
    later = [pinned for pinned in map(_parts, state.pins) if pinned[0] == base and pinned[1] > number]
    return f"{base}-{max(later)[1]}" if later else None


def _free(log_of: Callable[[str], RunLog], run: str) -> str:
    """The next name of the row that no run has."""
    base, number = _parts(run)
    while log_of(f"{base}-{(number := number + 1)}").head().n:
        pass
    return f"{base}-{number}"


def _parts(run: str) -> tuple[str, int]:
    """`main` is the first of its row, `main-2` the second."""
    match = _NUMBERED.fullmatch(run)
    return (match["base"], int(match["number"])) if match else (run, 1)
