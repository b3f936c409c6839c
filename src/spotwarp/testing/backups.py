"""One run's backups of one directory, each on top of the last, as the sync loop makes them; and what they restore to.

For tests of what a snapshot holds. Appends nothing to a run log: a backup that returned counts as committed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from spotwarp.clock import Clock, SystemClock
from spotwarp.persistence.backup import (
    RECHECK_S,
    BackupOptions,
    Carry,
    Cutoff,
    Judge,
    Pages,
    Progress,
    Uploaded,
    backup,
)
from spotwarp.persistence.backup.versions import VersionRule
from spotwarp.persistence.excludes import Excludes
from spotwarp.persistence.held import Held, look
from spotwarp.persistence.install import install
from spotwarp.persistence.manifest import Manifest
from spotwarp.persistence.restore import FetchOptions, fetch
from spotwarp.persistence.scan import Scanned
from spotwarp.persistence.statcache import StatCache
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.table import Table
from spotwarp.testing.clocks import SeededRng
from spotwarp.testing.stores import FaultyStore, MemoryStore
from spotwarp.testing.trees import Node, read_tree


def no_checkpoints(root: Path, entries: Table[Scanned]) -> tuple[()]:
    """A judge that sees none."""
    return ()


def noise(size: int, seed: int) -> bytes:
    """`size` bytes that do not compress, the same for the same seed."""
    return random.Random(seed).randbytes(size)


class Backups:
    """Backups of `root` into `store` (one in memory that records its calls, unless given)."""

    def __init__(
        self,
        root: Path,
        *,
        store: Store | None = None,
        exclude: Sequence[str] = (),
        judge: Judge = no_checkpoints,
        options: BackupOptions | None = None,
        clock: Clock | None = None,
        pages: Path | None = None,
    ) -> None:
        self.root = root
        self.calls = FaultyStore(store or MemoryStore())
        self.base: Manifest | None = None
        self.cache = StatCache()
        self.carry = Carry()
        self.pages = Pages(pages, SeededRng()) if pages is not None else None
        self.judge = judge
        self._excludes = Excludes(exclude)
        self._options = options or BackupOptions(workers=2, pack_size=8 << 20)
        self._clock = clock or SystemClock()
        self._rng = SeededRng()

    def take(
        self,
        *,
        judge: Judge | None = None,
        progress: Callable[[Progress], None] | None = None,
        cancel: threading.Event | None = None,
        always: bool = False,
        cutoff: Cutoff | None = None,
        versions: VersionRule | None = None,
        recheck_s: float = RECHECK_S,
        look: Callable[[Path], Held] = look,
        awaited: Sequence[bytes] = (),
    ) -> Uploaded:
        """One more backup."""
        uploaded = backup(
            store=self.calls,
            run="main",
            generation=1,
            root=self.root,
            base=self.base,
            cache=self.cache,
            excludes=self._excludes,
            judge=judge or self.judge,
            clock=self._clock,
            rng=self._rng,
            options=self._options,
            progress=progress,
            cancel=cancel,
            always=always,
            cutoff=cutoff,
            carry=self.carry,
            versions=versions,
            recheck_s=recheck_s,
            look=look,
            awaited=awaited,
            pages=self.pages,
        )
        self.base, self.carry = uploaded.manifest, Carry()
        return uploaded

    def restored(self, into: Path) -> dict[bytes, Node]:
        """What the last backup restores to, read back from the directory `into`, which is made."""
        assert self.base is not None, "nothing was backed up"
        staging = into.with_name(f"{into.name}.staging")
        fetch(
            store=self.calls,
            manifest=self.base,
            staging=staging,
            clock=SystemClock(),
            options=FetchOptions(workers=2, sync=False),
        )
        install(staging, into, aside=into.with_name(f"{into.name}.aside"), sync=False)
        return read_tree(into)

    def packs_put(self) -> int:
        """How many packs were put so far."""
        return self.calls.count("put put_new", "/packs/")
