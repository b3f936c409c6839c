"""What goes into a manifest, counted on its way there. Pure."""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterable, Iterator

from spotwarp.persistence.backup.outcome import Kept, Links
from spotwarp.persistence.content import SMALL
from spotwarp.persistence.held import Held, Identity
from spotwarp.persistence.manifest import FILE, Manifest
from spotwarp.persistence.scan import Scan, Scanned
from spotwarp.persistence.statcache import Quiet, Record
from spotwarp.persistence.table import TableBuilder


class Tally:
    """Counts what goes into a manifest, and collects what the stat cache shall know."""

    def __init__(self, seen: Scan, held: Held) -> None:
        self._seen, self._held = seen, held
        self._links = Links(seen.several)
        self._settled = 0
        self._own: set[Identity] = set()
        self._oldest = math.inf
        self.files = self.bytes = 0
        self.large: list[builtins.bytes] = []
        """The paths of files that are not bundled."""
        self.records = TableBuilder(Record)

    def pass_on(self, kept: Iterable[Kept]) -> Iterator[tuple[Scanned, builtins.bytes | None, builtins.bytes]]:
        """All of `kept`, for `Index.manifest`."""
        for one in kept:
            entry = one.entry
            self._settled += one.as_seen
            if one.record is not None:
                self._record(one.record)
            if entry.kind == FILE:
                self.files, self.bytes = self.files + 1, self.bytes + entry.size
                if entry.size >= SMALL:
                    self.large.append(entry.path)
            yield entry, one.digests, self._links.first(entry, one.digests)

    def _record(self, record: Record) -> None:
        self.records.add(record)
        if record.held_s is not None:
            self._oldest = min(self._oldest, record.held_s)
            if (identity := (record.dev, record.ino)) in self._held.files:
                self._own.add(identity)

    def quiet(self, stored: Manifest) -> Quiet | None:
        """What proves the next time that nothing is new, if the snapshot is exactly what the scan saw."""
        if self._settled != len(self._seen.entries):
            return None
        sums = self.files, self.bytes
        return Quiet(self._seen.entries, stored, sums, self._held, frozenset(self._own), self._oldest)
