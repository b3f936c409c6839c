"""Checkpoints that are not on the disk yet, because a restore brings them in beside the running command. Pure.

A snapshot that is taken meanwhile has each of them as its base has it: neither without it nor with a part of it.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge

from spotwarp.persistence.backup.outcome import Kept, as_before
from spotwarp.persistence.beneath import ancestors, split
from spotwarp.persistence.manifest import DIRECTORY, CheckpointFact, Manifest, is_model, tabled
from spotwarp.persistence.scan import Scanned
from spotwarp.persistence.table import Table


class Awaited:
    """Those of some checkpoint directories that a scan did not find.

    One that is there by now is what it is on the disk, whoever made it; one whose directory is gone is not awaited any
    more; one that the base has not cannot be carried over.
    """

    def __init__(self, paths: Iterable[builtins.bytes], seen: Table[Scanned], base: Manifest | None) -> None:
        """`paths` were noted before the scan that saw `seen`: what comes in between is then found by that."""
        facts = {fact.path: fact for fact in base.checkpoints} if base is not None else {}
        self._paths = tuple(sorted(path for path in paths if path in facts and _is_awaited(path, seen)))
        self._facts = tuple(facts[path] for path in self._paths)
        self._base = base
        self.skipped = tuple(one for one in base.skipped if self._has(one.path)) if base is not None else ()
        """What the base lacks of it, and why: damage that was found in the store takes no more than what it hit."""

    def joined(self, facts: Sequence[CheckpointFact]) -> tuple[CheckpointFact, ...]:
        """The checkpoints of the snapshot: `facts`, and what is awaited."""
        if not self._facts:
            return tuple(facts)
        return tuple(sorted((*facts, *self._facts), key=lambda fact: (is_model(fact), fact.path)))

    def stand_in(self, kept: Iterator[Kept]) -> Iterator[Kept]:
        """`kept`, and what is awaited as the base has it; in path order."""
        if not self._paths or self._base is None:
            return kept
        entries = tabled(self._base.entries)
        carried: list[Iterator[Kept]] = [map(as_before, entries.beneath(path)) for path in self._paths]
        return merge(kept, *carried, key=lambda one: one.entry.path)

    def _has(self, path: builtins.bytes) -> bool:
        return bool(self._paths) and not {path, *ancestors(path)}.isdisjoint(self._paths)


def _is_awaited(path: builtins.bytes, seen: Table[Scanned]) -> bool:
    parent = split(path)[0]
    above = seen.find(parent) if parent else None
    return seen.find(path) is None and (not parent or (above is not None and above.kind == DIRECTORY))
