"""Commit, read-back, seal and end: each takes the receipt before it, and none is fooled by a store that lies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from spotwarp.errors import Fenced, LeaseError, ReadBackFailed, RunEnded, StoreUnavailable
from spotwarp.persistence import layout, manifest, receipts
from spotwarp.persistence.manifest import CheckpointFact, PackRef
from spotwarp.persistence.receipts import Base, BaseForgotten, Committed, Verified, best_checkpoint, printable
from spotwarp.persistence.retention import Retention
from spotwarp.persistence.runlog.entry import Claim, Forget, Released
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.model_runs import HandUpload
from spotwarp.testing.snapshots import SnapshotBuilder
from spotwarp.testing.stores import Fault, FaultyStore, MemoryStore

RUN = "main"


class Bench:
    """A run that one life holds."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.memory = MemoryStore(clock=self.clock)
        self.store = FaultyStore(self.memory)
        self.log = self.reader("a")
        self.claim(self.log)
        self.uploads = 0

    def reader(self, life: str) -> RunLog:
        return RunLog(self.store, RUN, life=life, clock=self.clock, rng=SeededRng(life), append_budget_s=5)

    def claim(self, log: RunLog) -> None:
        log.append(
            lambda h: Claim(
                generation=h.state.generation + 1, machine=log.life, cause="", base=h.state.snapshot, lease_s=20
            )
        )

    def upload(self, *facts: CheckpointFact, base: HandUpload | None = None) -> HandUpload:
        self.uploads += 1
        builder = SnapshotBuilder(run=RUN, base=base.manifest if base else None, checkpoints=list(facts))
        builder.file(b"model.pt", f"weights {self.uploads}".encode())
        stored = builder.store_in(self.memory, self.uploads)
        old = len(base.manifest.packs) if base else 0
        return HandUpload(
            stored.manifest_id, stored.address, stored.manifest, stored.manifest.packs[old:], 2, 30, 20, 10
        )

    def commit(self, upload: HandUpload, base: Base | None = None, **more: Any) -> Committed:
        more.setdefault("retention", Retention(resumable=10))
        return receipts.commit(self.log, upload, base or Base(), generation=1, clock=self.clock, **more)

    def verify(self, committed: Committed, *, thorough: bool = True) -> Verified:
        return receipts.verify(self.store, RUN, committed, thorough=thorough)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def fact(cls: str, step: int | None, path: bytes = b"out/step", loss: float | None = None) -> CheckpointFact:
    return CheckpointFact(path, cls, step=step, loss=loss)


# ---- commit --------------------------------------------------------------------------------------------------------


def test_the_entry_says_what_is_in_the_snapshot(bench: Bench) -> None:
    upload = bench.upload(fact("resumable", 3, b"out/a"), fact("resumable", 12, b"out/b", loss=0.25))
    entry = bench.commit(upload, final=True).entry

    assert (entry.n, entry.base, entry.generation, entry.final) == (2, 0, 1, True)
    assert (entry.manifest, entry.address) == (upload.manifest_id, upload.address)
    assert (entry.cls, entry.checkpoint, entry.step, entry.loss) == ("resumable", "out/b", 12, 0.25)
    assert (entry.files, entry.bytes, entry.read_bytes, entry.stored_bytes) == (2, 30, 20, 10)
    assert bench.log.head().state.resumable == 2


def test_a_snapshot_without_a_resumable_checkpoint_says_so(bench: Bench) -> None:
    weights = bench.commit(bench.upload(fact("weights-only", 5), fact("torn", 9))).entry
    nothing = bench.commit(bench.upload()).entry

    assert (weights.cls, weights.checkpoint, weights.step) == ("weights-only", "", 5)
    assert (nothing.cls, nothing.checkpoint, nothing.step) == ("none", "", None)
    assert nothing.base == weights.n


def test_what_retention_lets_go_is_forgotten_in_the_same_entry(bench: Bench) -> None:
    for step in (1, 2, 3):
        bench.commit(bench.upload(fact("resumable", step, f"s{step}".encode())), retention=Retention(2, 0))

    assert bench.log.head().state.retained == (3, 4)


def test_a_damaged_entry_is_neither_forgotten_nor_in_the_way(bench: Bench) -> None:
    damaged = bench.commit(bench.upload(fact("resumable", 1))).entry.n
    bench.memory.put(layout.log_key(RUN, damaged), b"damaged")
    bench.commit(bench.upload(fact("resumable", 2)))
    life = bench.reader("b")
    bench.claim(life)

    receipts.commit(
        life, bench.upload(fact("resumable", 3)), Base(), generation=2, clock=bench.clock, retention=Retention(1, 0)
    )

    assert damaged in life.head().state.retained


def test_a_damaged_last_entry_does_not_keep_the_next_from_being_written(bench: Bench) -> None:
    last = bench.commit(bench.upload()).entry.n
    bench.log.append(lambda _: Released(intent="i"))
    bench.memory.put(layout.log_key(RUN, last), b"damaged")
    life = bench.reader("b")
    bench.claim(life)

    made = receipts.commit(life, bench.upload(), Base(), generation=2, clock=bench.clock, retention=Retention())

    assert made.entry.base == last


def test_a_base_that_is_no_root_any_more_needs_a_fresh_upload(bench: Bench) -> None:
    first, second = (bench.commit(bench.upload(fact("resumable", s, b"%d" % s))).entry.n for s in (1, 2))
    upload = bench.upload()
    bench.reader("user").append(lambda _: Forget(snapshots=(first,)))

    with pytest.raises(BaseForgotten):
        bench.commit(upload, Base(first))
    assert bench.commit(upload, Base(second)).entry.n == 5


def test_a_base_that_is_forgotten_during_the_append_is_seen(bench: Bench) -> None:
    first, _ = (bench.commit(bench.upload(fact("resumable", s, b"%d" % s))).entry.n for s in (1, 2))
    user = RunLog(bench.memory, RUN, life="user", clock=bench.clock, rng=SeededRng())
    bench.store.add(Fault("put_new", "/log/", hook=lambda: user.append(lambda _: Forget(snapshots=(first,)))))

    with pytest.raises(BaseForgotten):
        bench.commit(bench.upload(), Base(first))


def test_a_superseded_holder_commits_nothing(bench: Bench) -> None:
    bench.claim(bench.reader("b"))

    with pytest.raises(Fenced):
        bench.commit(bench.upload())


def test_a_commit_that_landed_without_an_answer_is_found_not_repeated(bench: Bench) -> None:
    upload = bench.upload()
    bench.store.add(Fault("put_new", "/log/", times=None, late=True))
    with pytest.raises(StoreUnavailable):
        bench.commit(upload)
    bench.store.heal()
    bench.store.land()

    assert bench.commit(upload).entry.n == 2
    assert bench.log.head().n == 2
    assert bench.commit(bench.upload()).entry.n == 3


# ---- read-back -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thorough", [False, True])
def test_a_whole_snapshot_is_verified_past_every_cache(bench: Bench, thorough: bool) -> None:
    committed = bench.commit(bench.upload())
    before = bench.store.count("get get_range list")

    assert bench.verify(committed, thorough=thorough) == Verified(committed.entry, thorough)
    assert bench.store.count("get", "/log/") > 0
    assert bench.store.count("get get_range list") - before == (4 if thorough else 3)


def test_a_lost_log_entry(bench: Bench) -> None:
    committed = bench.commit(bench.upload())
    bench.memory.delete(layout.log_key(RUN, 2))

    with pytest.raises(ReadBackFailed, match="lost an acknowledged object"):
        bench.verify(committed)


def test_another_entry_in_its_slot(bench: Bench) -> None:
    committed = bench.commit(bench.upload())
    bench.memory.delete(layout.log_key(RUN, 2))
    other = bench.reader("x").append(lambda _: Released(intent="i"))
    assert other.n == 2

    with pytest.raises(ReadBackFailed, match="another entry"):
        bench.verify(committed)


def test_a_manifest_that_is_lost_or_another(bench: Bench) -> None:
    committed = bench.commit(bench.upload())
    key = layout.manifest_key(RUN, committed.entry.manifest)
    data = bench.memory.get(key)
    bench.memory.put(key, data[:-1])
    with pytest.raises(ReadBackFailed, match="not what was written"):
        bench.verify(committed, thorough=False)
    bench.memory.delete(key)
    with pytest.raises(ReadBackFailed, match="lost an acknowledged object"):
        bench.verify(committed, thorough=False)


@pytest.mark.parametrize("damage", ["gone", "short", "flipped"])
def test_a_new_pack_that_is_not_whole_is_named(bench: Bench, damage: str) -> None:
    upload = bench.upload()
    committed = bench.commit(upload)
    pack = upload.new_packs[0]
    key = layout.pack_key(RUN, pack.id)
    data = bench.memory.get(key)
    if damage == "gone":
        bench.memory.delete(key)
    else:
        bench.memory.put(key, data[:-1] if damage == "short" else data[:-40] + b"\0" + data[-39:])

    with pytest.raises(ReadBackFailed, match=r"1 pack\(s\)") as failed:
        bench.verify(committed, thorough=False)
    assert failed.value.packs == {pack.id}


def test_an_old_pack_that_is_gone_or_short_is_found_by_the_thorough_look(bench: Bench) -> None:
    first = bench.upload()
    old = first.new_packs[0]
    base = Base(bench.commit(first).entry.n, first.manifest)
    committed = bench.commit(bench.upload(base=first), base)
    key = layout.pack_key(RUN, old.id)
    data = bench.memory.get(key)

    for put_back in (lambda: bench.memory.put(key, data[:-1]), lambda: bench.memory.delete(key)):
        put_back()
        assert bench.verify(committed, thorough=False)
        with pytest.raises(ReadBackFailed) as failed:
            bench.verify(committed)
        assert failed.value.packs == {old.id}


def test_a_pack_of_another_run_is_not_looked_for_here(bench: Bench) -> None:
    parent = SnapshotBuilder(run="parent")
    parent.file(b"f", b"of the parent")
    theirs = parent.store_in(bench.memory, 9)
    builder = SnapshotBuilder(run=RUN, base=theirs.manifest)
    builder.file(b"g", b"ours")
    mine = builder.store_in(bench.memory, 10)
    upload = HandUpload(mine.manifest_id, mine.address, mine.manifest, mine.manifest.packs[1:])

    assert bench.verify(bench.commit(upload)).thorough


def test_a_store_that_does_not_answer_proves_nothing(bench: Bench) -> None:
    committed = bench.commit(bench.upload())
    bench.store.add(Fault("get", error=StoreUnavailable("503")))

    with pytest.raises(StoreUnavailable):
        bench.verify(committed)


# ---- seal and end --------------------------------------------------------------------------------------------------


def test_a_generation_is_sealed_with_its_final_snapshot(bench: Bench) -> None:
    verified = bench.verify(bench.commit(bench.upload(), final=True))
    sealed = receipts.seal(bench.log, verified, phase="stopped", exit_code=3, reason="it failed")

    assert (sealed.phase, sealed.snapshot, sealed.exit, sealed.reason) == ("stopped", 2, 3, "it failed")
    with pytest.raises(Fenced, match="sealed"):
        bench.commit(bench.upload())


def test_an_older_snapshot_seals_nothing(bench: Bench) -> None:
    verified = bench.verify(bench.commit(bench.upload()))
    bench.commit(bench.upload())

    with pytest.raises(LeaseError, match="no final snapshot"):
        receipts.seal(bench.log, verified, phase="stopped", exit_code=None, reason="")
    with pytest.raises(LeaseError, match="no final snapshot"):
        receipts.complete(bench.log, verified)


def test_the_end_is_the_end(bench: Bench) -> None:
    verified = bench.verify(bench.commit(bench.upload()))

    assert receipts.complete(bench.log, verified, exit_code=0).snapshot == 2
    assert bench.log.head().state.terminal == "complete"
    with pytest.raises(RunEnded):
        bench.claim(bench.reader("b"))


@pytest.mark.parametrize("end", ["seal", "complete"])
def test_an_end_that_landed_without_an_answer_is_found_not_refused(bench: Bench, end: str) -> None:
    """Else a run that is safely stored would report that it was fenced off."""
    verified = bench.verify(bench.commit(bench.upload()))

    def act() -> Any:
        if end == "seal":
            return receipts.seal(bench.log, verified, phase="preempted", exit_code=None, reason="")
        return receipts.complete(bench.log, verified)

    bench.store.add(Fault("put_new", "/log/", times=None, late=True))
    with pytest.raises(StoreUnavailable):
        act()
    bench.store.heal()
    bench.store.land()
    bench.reader("x").append(lambda _: Released(intent="i"))

    assert act().n == 3
    assert bench.log.head().n == 4


def test_the_seal_of_another_life_is_not_ones_own(bench: Bench) -> None:
    verified = bench.verify(bench.commit(bench.upload()))
    other = bench.reader("b")
    bench.claim(other)
    theirs = receipts.commit(other, bench.upload(), Base(), generation=2, clock=bench.clock, retention=Retention())
    receipts.seal(other, bench.verify(theirs), phase="stopped", exit_code=None, reason="")

    with pytest.raises(Fenced, match="has taken the run"):
        receipts.seal(bench.log, verified, phase="stopped", exit_code=None, reason="")


# ---- words ---------------------------------------------------------------------------------------------------------


def test_the_best_checkpoint_is_the_newest_by_step_of_the_best_class() -> None:
    facts = (fact("weights-only", 99), fact("resumable", None, b"a"), fact("resumable", 3, b"b"), fact("torn", 100))

    assert best_checkpoint(facts) == facts[2]
    assert best_checkpoint(facts[:2]) == facts[1]
    assert best_checkpoint(facts[:1]) == facts[0]
    assert best_checkpoint(facts[3:]) is None
    twins = (fact("resumable", 3, b"a"), fact("resumable", 3, b"b"))
    assert best_checkpoint(twins) == best_checkpoint(twins[::-1]) == twins[1]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (b"plain/path", "plain/path"),
        ("größe/漢字".encode(), "größe/漢字"),
        (b"bad\xffbyte", "bad\\xffbyte"),
        (b"new\nline\x1b[31m", "new\\nline\\x1b[31m"),
    ],
)
def test_paths_are_printable(path: bytes, text: str) -> None:
    assert printable(path) == text


def test_a_parents_pack_that_is_gone_is_missed_too(bench: Bench) -> None:
    upload = bench.upload(fact("resumable", 1))
    foreign = PackRef("main-1", "1-" + "f" * 32, 5)
    named = msgspec.structs.replace(upload.manifest, packs=(*upload.manifest.packs, foreign))
    data = manifest.encode(named)
    bench.memory.put(layout.manifest_key(RUN, upload.manifest_id), data)
    bench.memory.put(layout.pack_key("main-1", foreign.id), b"12345")
    committed = bench.commit(replace(upload, manifest=named, address=manifest.address(data)))
    bench.verify(committed)
    bench.memory.delete(layout.pack_key("main-1", foreign.id))
    with pytest.raises(ReadBackFailed) as caught:
        bench.verify(committed)
    assert caught.value.packs == {foreign.id}
