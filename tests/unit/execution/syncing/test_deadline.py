"""A sync that must be over before the machine is gone."""

from __future__ import annotations

from pathlib import Path

from spotwarp import config
from spotwarp.execution.syncing.syncer import Syncer
from spotwarp.persistence import repository
from spotwarp.persistence.runlog.entry import Claim
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.persistence.store.api import Buffer
from spotwarp.testing.backups import noise
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.stores import MemoryStore

RATE = 100_000
"""Bytes a second of the link."""


class Link(MemoryStore):
    """A store behind a link of `RATE`."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self._passing = clock

    def put(self, key: str, data: Buffer) -> None:
        self._passing.advance(memoryview(data).nbytes / RATE)
        super().put(key, data)


def test_a_manifest_of_many_files_is_put_before_the_deadline(tmp_path: Path) -> None:
    """It is put after the cut, and takes seconds where there are many files."""
    clock = VirtualClock()
    store = Link(clock)
    opened, _ = repository.create(store, clock=clock, rng=SeededRng("r"))
    log = RunLog(store, "main", life="a", clock=clock, rng=SeededRng("a"))
    log.append(lambda _: Claim(generation=1, machine="m", cause="", base=0, lease_s=20))
    given = config.load(None, env={"SPOTWARP_REMOTE_PATH": "memory", "SPOTWARP_RUN": "main"})
    syncer = Syncer(tmp_path, given, opened, log, 1, clock=clock, rng=SeededRng("s"), say=lambda _: None)
    for number in range(3000):
        (tmp_path / noise(100, number).hex()).touch()
    (tmp_path / "a").write_bytes(noise(5 << 20, 1))
    syncer.sync()
    (tmp_path / "b").write_bytes(b"1")
    (tmp_path / "c").write_bytes(noise(20 << 20, 2))
    deadline = clock.monotonic() + 86  # two packs take 84
    done = syncer.sync(final=True, deadline=lambda: deadline)
    assert deadline - 45 < clock.monotonic() <= deadline, "one pack was moved"
    assert [skip.path for skip in done.skipped] == [b"c"]
    assert done.snapshot.files == 3002
