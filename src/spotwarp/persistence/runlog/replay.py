"""The whole log once more: is every `state` the fold of what lies below it, and does every entry count?

Pure but for the reading. Readers trust the newest entry's `state`; this is the check of that trust, at the price of
one GET an entry. It judges, and never repairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from spotwarp.errors import CorruptObject, ObjectMissing, RepositoryError, UnsupportedFormat
from spotwarp.persistence.runlog.entry import AnyEntry, State, Unknown
from spotwarp.persistence.runlog.fold import apply, refusal
from spotwarp.persistence.runlog.log import RunLog

IN_FLIGHT = 32

Trouble: TypeAlias = Literal["damaged", "hole", "state", "void", "newer"]
Found: TypeAlias = "AnyEntry | Unknown | RepositoryError | ObjectMissing"


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with entry `n`.

    `damaged`: it cannot be read; `hole`: it is missing below others; `state`: its state is not the fold of what lies
    below it; `void`: the rules refuse it where it stands, so readers ignore it; `newer`: of a newer SpotWarp.
    """

    n: int
    trouble: Trouble
    message: str


def replay(log: RunLog, *, last: int | None = None) -> list[Problem]:
    """Every problem of the log, in order. `last`: the highest number in a listing, to find entries above a hole.

    Raises `StoreError` when the store cannot be read.
    """
    top = max(log.head().n, last or 0)
    return list(judge(enumerate(_read_all(log, top), 1)))


def judge(found: Iterable[tuple[int, Found]]) -> Iterator[Problem]:
    """The problems of numbered entries, or of what was found in their place. Pure.

    After an entry that is not understood, and after a wrong state, the next state is taken as it stands: each problem
    is told once, and readers go by that state as well.
    """
    state: State | None = State()
    for n, entry in found:
        if isinstance(entry, (Unknown, UnsupportedFormat)):
            yield Problem(n, "newer", "written by a newer SpotWarp: its effect is not understood")
            state = None
        elif isinstance(entry, ObjectMissing):
            yield Problem(n, "hole", "missing, though there are later entries")
            state = None
        elif isinstance(entry, RepositoryError):
            yield Problem(n, "damaged", str(entry))
            state = None
        else:
            if state is not None and entry.state != state:
                yield Problem(n, "state", f"its state is not what entries 1 to {n - 1} amount to")
            refused = refusal(entry.state, entry)
            if refused is not None:
                yield Problem(n, "void", f"{entry.__struct_config__.tag} does not count: {refused.reason}")
            state = apply(entry.state, entry)


def _read_all(log: RunLog, top: int) -> Iterator[Found]:
    from concurrent.futures import ThreadPoolExecutor

    def read(n: int) -> Found:
        try:
            return log.read(n)
        except (CorruptObject, UnsupportedFormat, ObjectMissing) as error:
            return error

    with ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="replay") as pool:
        yield from pool.map(read, range(1, top + 1))
