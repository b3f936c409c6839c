"""An attempt's output from the repository: what its newest snapshot holds, and the telemetry segments after that.

Works on any machine, also when the one that wrote is gone. Reads a snapshot's log once and then one object per segment;
lists nothing. Changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from spotwarp.errors import CorruptObject, ObjectMissing, RunMissing, UnsupportedFormat
from spotwarp.execution.output import outputlog
from spotwarp.execution.output.outputlog import log_path
from spotwarp.persistence.manifest import FILE, Entry
from spotwarp.persistence.reads import written
from spotwarp.persistence.repository import Repository, retained_snapshots
from spotwarp.persistence.runlog.entry import Snapshot, State
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.persistence.telemetry import Output, Segment, count_segments, read_segment

_OWN = Path(".spotwarp")


def attempt_of(state: State, run: str, wanted: int | None) -> int:
    """The attempt that is meant: the newest when none is named. Raises `RunMissing` when there is none such."""
    if not state.generation:
        raise RunMissing(f"run {run!r} has no attempt yet", hint="`spotwarp run` begins one.")
    if wanted is not None and not 1 <= wanted <= state.generation:
        raise RunMissing(f"run {run!r} has no attempt {wanted}: it has 1 to {state.generation}")
    return wanted or state.generation


def over(state: State, attempt: int) -> bool:
    """Whether nothing more comes of an attempt."""
    return bool(state.generation > attempt or state.seal or state.terminal)


class StoredOutput:
    """One attempt's output as it is stored. `scratch` is an empty directory for what is fetched."""

    def __init__(
        self,
        repository: Repository,
        log: RunLog,
        attempt: int,
        scratch: Path,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._repository, self._log, self._attempt = repository, log, attempt
        self._scratch, self._say = scratch, say
        self._base: Path | None = None
        self._after: list[Output] = []
        self.snapshot: int | None = None
        """The snapshot that most of it comes from."""
        self.segments = 0
        """How many segments there are of this attempt."""

    def load(self) -> None:
        """Read what there is now."""
        head = self._log.head()
        snapshots = retained_snapshots(self._log, head.state)
        theirs = [one for one in snapshots if one.generation == self._attempt]
        # What came after this attempt goes on from it, perhaps from an earlier moment of it: second best.
        for snapshot in [*theirs[::-1], *snapshots[:-4:-1]]:
            if self._fetch(snapshot):
                break
        self._after = []
        self.segments = count_segments(self._repository.store, self._log.run, self._attempt)
        for k in reversed(range(self.segments)):
            output = self._segment(k).output
            if output is None:
                continue
            self._after.insert(0, output)
            if output.start <= self._stored_end():
                break

    def more(self) -> bool:
        """Look for one more segment; True when there was one."""
        segment = read_segment(self._repository.store, self._log.run, self._attempt, self.segments)
        if segment is None:
            return False
        self.segments += 1
        if segment.output is not None:
            self._after.append(segment.output)
        return True

    def read(self, at: int) -> tuple[int, bytes]:
        """What there is from position `at` on: where it begins, and the bytes; none when there is nothing (yet)."""
        if self._base is not None:
            start, data = outputlog.read(self._base, at)
            if data:
                return start, data
        for output in self._after:
            if output.end > at:
                try:
                    data = output.decoded()
                except (CorruptObject, UnsupportedFormat) as damage:
                    self._say(f"a segment of the output cannot be read: {damage.message}")
                    continue
                start = max(at, output.start)
                return start, data[start - output.start :]
        return at, b""

    def since(self, moment: datetime) -> int:
        """The position of what was written after `moment`, as far as the segments tell: to about a minute."""
        low, high = 0, self.segments
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if _ended(self._segment(middle), moment) else (middle + 1, high)
        for k in range(low, self.segments):
            output = self._segment(k).output
            if output is not None:
                return output.start
        last = self._after[-1].end if self._after else 0
        return max(last, self._stored_end()) if self.segments else 0

    def _segment(self, k: int) -> Segment:
        found = read_segment(self._repository.store, self._log.run, self._attempt, k)
        return found or Segment(0, self._attempt, ())

    def _stored_end(self) -> int:
        found = outputlog.parts(self._base) if self._base is not None else []
        return found[-1].end if found else 0

    def _fetch(self, snapshot: Snapshot) -> bool:
        """Get the log's files out of a snapshot; False when it has none, or they cannot be had."""
        own = log_path(_OWN, self._attempt)
        prefix = os.fsencode(own.as_posix())

        def wanted(entry: Entry) -> bool:
            return entry.kind == FILE and (entry.path == prefix or entry.path.startswith(prefix + b"."))

        try:
            manifest = self._repository.manifest(self._log.run, snapshot)
            entries = [entry for entry in manifest.entries if wanted(entry)]
            if not entries:
                return False
            place = self._scratch / str(snapshot.n)
            place.mkdir(exist_ok=True)
            for entry in entries:
                with (place / os.fsdecode(entry.path).rpartition("/")[2]).open("wb") as file:
                    written(self._repository.store, manifest, entry, file)
        except (CorruptObject, ObjectMissing) as damage:
            self._say(f"the log in snapshot {snapshot.n} cannot be read: {damage.message}")
            return False
        self._base, self.snapshot = place / own.name, snapshot.n
        return True


def _ended(segment: Segment, moment: datetime) -> bool:
    """Whether a segment was written after `moment`."""
    for sample in reversed(segment.samples):
        try:
            return datetime.fromisoformat(sample.wall) >= moment
        except (ValueError, TypeError):
            continue
    return False
