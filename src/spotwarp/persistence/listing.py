"""What is really there: a listing proves presence, never absence.

Some stores list late, lose a page, or end one early and say nothing. So whatever a listing lacks, or shows with another
size than was written, is asked for by name before anybody calls it missing. Reads only, decides nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from spotwarp.errors import ObjectMissing
from spotwarp.persistence.parallel import each
from spotwarp.persistence.store.api import Store

WORKERS = 8


def sizes(
    store: Store, prefix: str, expected: Mapping[str, int], *, cancel: threading.Event | None = None
) -> dict[str, int]:
    """Key → size (bytes) of all that is below `prefix`; a key of `expected` is absent only if the store says so of it.

    One listing, and a HEAD for each key whose size in it is not the expected one. Raises the store's errors and
    `Interrupted`.
    """
    found = {meta.key: meta.size for meta in store.list(prefix)}
    doubtful = [key for key, size in expected.items() if found.get(key) != size]
    answers: dict[str, int | None] = {}

    def ask(keys: Iterable[str]) -> None:
        for key in keys:
            try:
                answers[key] = store.head(key).size
            except ObjectMissing:
                answers[key] = None

    if doubtful:
        each(doubtful, ask, workers=min(WORKERS, len(doubtful)), cancel=cancel)
    for key, size in answers.items():
        if size is None:
            found.pop(key, None)
        else:
            found[key] = size
    return found
