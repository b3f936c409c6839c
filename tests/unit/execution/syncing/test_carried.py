"""What a failed sync put is carried to the next one, and never beyond a snapshot that names it (P3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwarp import config
from spotwarp.errors import StoreUnavailable
from spotwarp.execution import localstate
from spotwarp.execution.syncing.syncer import Syncer
from spotwarp.persistence import repository
from spotwarp.persistence.check import check
from spotwarp.persistence.prune import prune
from spotwarp.persistence.runlog.entry import Claim, Snapshot
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.persistence.statcache import Record
from spotwarp.testing.backups import noise
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.stores import Fault, FaultyStore, MemoryStore

RUN = "main"


class Bench:
    """A workspace of one file and the syncer of the life that holds its run."""

    def __init__(self, root: Path) -> None:
        self.file = root / "data"
        self.clock, self.memory = VirtualClock(), MemoryStore()
        self.store = FaultyStore(self.memory)
        opened, _ = repository.create(self.store, clock=self.clock, rng=SeededRng("r"))
        self.repository = opened
        self.log = RunLog(self.store, RUN, life="a", clock=self.clock, rng=SeededRng("a"), append_budget_s=1)
        self.log.append(lambda _: Claim(generation=1, machine="m", cause="", base=0, lease_s=20))
        self.said: list[str] = []
        self.syncer = self.another_life(root)

    def another_life(self, root: Path) -> Syncer:
        """A syncer that has forgotten everything."""
        env = {"SPOTWARP_REMOTE_PATH": "memory", "SPOTWARP_RUN": RUN, "SPOTWARP_KEEP_HOURLY": "0"}
        settings, rng = config.load(None, env=env), SeededRng(f"s{len(self.memory.contents())}")
        return Syncer(
            root, settings, self.repository, self.log, 1, clock=self.clock, rng=rng, say=self.said.append
        )  # fmt: skip

    def sync_unheard(self, content: bytes) -> None:
        """A sync whose commit stands, and nobody learns it."""
        self.file.write_bytes(content)
        self.store.add(
            Fault("put_new", key="/log/", lost_reply=True),
            Fault("put_new", key="/log/", times=None, error=StoreUnavailable("no answer")),
        )
        mine = self.log._slot_is_mine
        self.log._slot_is_mine = lambda key, entry: None  # type: ignore[method-assign]
        try:
            with pytest.raises(StoreUnavailable):
                self.syncer.sync()
        finally:
            self.log._slot_is_mine = mine  # type: ignore[method-assign]
            self.store.heal()

    def snapshots(self) -> list[Snapshot]:
        state = self.log.head().state
        return [entry for n in state.retained if isinstance(entry := self.log.read(n), Snapshot)]


def test_what_a_snapshot_named_that_was_forgotten_is_not_named_again(tmp_path: Path) -> None:
    """Commits that stand without an answer: what was carried over them was named, forgotten, and may be deleted."""
    bench = Bench(tmp_path)
    first = noise(300_000, 1)
    for content in (first, b"2" * 300_000, b"3" * 300_000, b"4" * 300_000):
        bench.sync_unheard(content)
    retained = bench.snapshots()[-1]
    named = {pack.id for s in bench.snapshots() for pack in bench.repository.manifest(RUN, s).packs}
    dead = {key.rpartition("/")[2] for key in bench.memory.contents() if "/packs/" in key} - named
    assert dead, "the first content's pack is named by no snapshot any more"
    bench.file.write_bytes(first)
    done = bench.syncer.sync()
    assert retained.n < done.snapshot.n
    assert not dead & {pack.id for pack in bench.repository.manifest(RUN, done.snapshot).packs}
    prune(bench.repository, bench.log, grace_s=0)
    last = done.snapshot
    report = check(store=bench.memory, run=RUN, snapshots=[(last.n, last.manifest, last.address)], read_data=True)
    assert report.problems == ()


def test_a_last_snapshot_that_is_damaged_costs_only_what_it_alone_has(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "big").write_bytes(noise(5 << 20, 9))
    bench.file.write_bytes(b"1")
    bench.syncer.sync()
    bench.file.write_bytes(b"22")
    bench.store.add(Fault("put", key="/manifests/", drop=True))
    done = bench.syncer.sync()
    assert done.snapshot.stored_bytes < 1 << 20, "the big file is not sent again"
    assert any("is damaged" in line for line in bench.said)
    last = done.snapshot
    report = check(store=bench.memory, run=RUN, snapshots=[(last.n, last.manifest, last.address)], read_data=True)
    assert report.problems == ()


def test_bytes_that_no_snapshot_has_are_at_risk_though_they_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Record, "trusted", lambda _: True)  # nobody writes here: no need to wait for older times
    bench = Bench(tmp_path)
    bench.file.write_bytes(b"1")
    bench.syncer.sync()
    bench.file.write_bytes(noise(300_000, 1))
    bench.store.add(Fault("put_new", key="/log/", times=None, error=StoreUnavailable("no")))
    with pytest.raises(StoreUnavailable):
        bench.syncer.sync()
    assert bench.syncer.dirty_bytes() >= 300_000
    bench.store.heal()
    bench.syncer.sync()
    assert bench.syncer.dirty_bytes() < 300_000


def failed(bench: Bench) -> None:
    """A sync whose packs are acknowledged, and its manifest is not."""
    bench.store.add(Fault("put", key="/manifests/", times=None, error=StoreUnavailable("503")))
    with pytest.raises(StoreUnavailable):
        bench.syncer.sync()
    bench.store.heal()


def rewritten(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.write(b"a" * 4096)


def whole(bench: Bench, last: Snapshot) -> bool:
    snapshot = last.n, last.manifest, last.address
    return check(store=bench.memory, run=RUN, snapshots=[snapshot], read_data=True).problems == ()


def test_a_patch_is_carried_with_its_base_though_another_pack_is_distrusted_meanwhile(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "a-old").write_bytes(noise(1 << 20, 5))  # the first blob, in a pack of its own
    bench.syncer.sync()
    first = {key.rpartition("/")[2] for key in bench.memory.contents() if "/packs/" in key}
    (tmp_path / "db").write_bytes(noise(4 << 20, 1))
    bench.syncer.sync()
    rewritten(tmp_path / "db")
    failed(bench)
    localstate.distrust(tmp_path, bench.repository.identity.id, RUN, packs=sorted(first))
    assert whole(bench, bench.syncer.sync().snapshot)


def test_a_patch_is_carried_with_its_base_though_the_base_snapshot_is_another(tmp_path: Path) -> None:
    """The newest manifest cannot be read for a moment: the one before is the base of a sync that fails."""
    bench = Bench(tmp_path)
    (tmp_path / "db").write_bytes(noise(4 << 20, 1))
    bench.syncer.sync()
    (tmp_path / "a-new").write_bytes(noise(1 << 20, 7))
    newest = bench.syncer.sync().snapshot
    rewritten(tmp_path / "db")
    (key,) = [key for key in bench.memory.contents() if key.endswith(newest.manifest)]
    good = bench.memory.get(key)
    bench.memory.put(key, good[:-1] + bytes([good[-1] ^ 1]))
    bench.syncer = bench.another_life(tmp_path)
    failed(bench)
    bench.memory.put(key, good)
    assert whole(bench, bench.syncer.sync().snapshot)
