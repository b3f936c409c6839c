"""What is dead, and what a prune does about it: damage, rights, grace, other generations, forks, newer versions."""

from __future__ import annotations

from typing import Any

import pytest

from spotwarp.errors import StoreFull, StoreUnavailable
from spotwarp.persistence import layout, receipts
from spotwarp.persistence.manifest import CheckpointFact, Manifest
from spotwarp.persistence.prune import GRACE_S, Evidence, Pruned, dead, make_room, prune
from spotwarp.persistence.receipts import Base
from spotwarp.persistence.repository import Repository, create
from spotwarp.persistence.retention import Retention
from spotwarp.persistence.runlog.entry import Claim, Complete, Forget, Pin, Released, State, Unpin, encode
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.model_runs import HandUpload
from spotwarp.testing.snapshots import SnapshotBuilder
from spotwarp.testing.stores import Fault, FaultyStore, MemoryStore, deny_delete

RUN = "main"
HOUR = 3600.0


class Bench:
    """A run of one generation; `save` commits the next snapshot of one new pack."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.memory = MemoryStore(clock=self.clock)
        self.store = FaultyStore(self.memory)
        self.repository, _ = create(self.store, clock=self.clock, rng=SeededRng())
        self.generation = 0
        self.uploads = 0
        self.claim()

    def reader(self, life: str = "r") -> RunLog:
        return RunLog(self.store, RUN, life=life, clock=self.clock, rng=SeededRng(life))

    def claim(self) -> None:
        self.generation += 1
        self.log = self.reader(f"life{self.generation}")
        self.log.append(
            lambda h: Claim(generation=self.generation, machine="m", cause="", base=h.state.snapshot, lease_s=20)
        )

    def upload(self, base: Manifest | None = None) -> HandUpload:
        self.uploads += 1
        builder = SnapshotBuilder(
            run=RUN,
            generation=self.generation,
            base=base,
            checkpoints=[CheckpointFact(b"s%d" % self.uploads, "resumable", step=self.uploads)],
        )
        builder.file(b"model", b"weights %d" % self.uploads)
        stored = builder.store_in(self.memory, self.uploads)
        return HandUpload(stored.manifest_id, stored.address, stored.manifest, stored.manifest.packs[-1:])

    def save(self, base: tuple[int, HandUpload] | None = None, keep: int = 100) -> tuple[int, HandUpload]:
        upload = self.upload(base[1].manifest if base else None)
        committed = receipts.commit(
            self.log,
            upload,
            Base(base[0], base[1].manifest) if base else Base(),
            generation=self.generation,
            retention=Retention(keep, 0),
            clock=self.clock,
        )
        return committed.entry.n, upload

    def forget(self, *numbers: int) -> None:
        self.reader("user").append(lambda _: Forget(snapshots=numbers))

    def prune(self, grace_s: float = 0.0) -> Pruned:
        return prune(self.repository, self.reader(), grace_s=grace_s)

    def objects(self) -> set[str]:
        return {k for k in self.memory.contents() if "/packs/" in k or "/manifests/" in k}

    @staticmethod
    def of(upload: HandUpload, *, packs: Any = None) -> set[str]:
        named = upload.manifest.packs if packs is None else packs
        return {layout.pack_key(RUN, p.id) for p in named} | {layout.manifest_key(RUN, upload.manifest_id)}


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ---- the decision --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "packs", "manifests"),
    [
        (State(generation=1), ["1-lapsed"], ["1-forgotten"]),
        (State(generation=2), ["1-lapsed", "1-orphan"], ["1-forgotten", "1-orphan"]),
        (State(generation=1, terminal="complete"), ["1-lapsed", "1-orphan"], ["1-forgotten", "1-orphan"]),
        (State(), ["1-lapsed"], ["1-forgotten"]),
    ],
    ids=["current", "superseded", "ended", "unclaimed"],
)
def test_what_is_dead(state: State, packs: list[str], manifests: list[str]) -> None:
    evidence = Evidence(
        named_by_roots=frozenset({"1-root", "1-shared"}),
        root_manifests=frozenset({"1-root"}),
        forgotten={"1-forgotten": frozenset({"1-lapsed", "1-shared"})},
    )
    listed = ["1-root", "1-shared", "1-lapsed", "1-orphan", "3-future", "stranger"]

    assert dead(state, evidence, listed, ["1-root", "1-forgotten", "1-orphan", "3-future", "stranger"]) == (
        packs,
        manifests,
    )


# ---- the deed ------------------------------------------------------------------------------------------------------


def test_an_empty_run_and_one_without_garbage_lose_nothing(bench: Bench) -> None:
    assert bench.prune() == Pruned()
    _, upload = bench.save()

    assert bench.prune() == Pruned()
    assert bench.objects() == bench.of(upload)


def test_forgotten_snapshots_go_and_shared_packs_stay(bench: Bench) -> None:
    first = bench.save()
    second = bench.save(first)
    third = bench.save()
    bench.forget(first[0])
    assert bench.prune().deleted == [layout.manifest_key(RUN, first[1].manifest_id)]
    bench.forget(second[0])
    done = bench.prune()

    assert bench.objects() == bench.of(third[1])
    assert (done.packs, done.manifests, done.skipped, done.kept_for_grace) == (2, 1, "", 0)
    assert done.bytes > 0
    assert bench.prune().deleted == []


def test_rotation_alone_is_enough_to_forget(bench: Bench) -> None:
    saved = [bench.save(keep=1) for _ in range(4)]

    bench.prune()
    assert bench.objects() == bench.of(saved[-2][1]) | bench.of(saved[-1][1])


def test_the_log_is_never_touched(bench: Bench) -> None:
    for _ in range(3):
        bench.save(keep=1)
    before = {k: v for k, v in bench.memory.contents().items() if "/log/" in k}
    bench.prune()

    assert {k: v for k, v in bench.memory.contents().items() if "/log/" in k} == before
    assert not bench.store.count("put put_new", "/log/0000000005")


def test_an_upload_under_way_is_alive_until_its_generation_is_over(bench: Bench) -> None:
    _, kept = bench.save()
    orphan = bench.upload()

    assert bench.prune().deleted == []
    bench.claim()
    bench.prune()
    assert bench.objects() == bench.of(kept)
    assert not bench.objects() & bench.of(orphan)


def test_a_new_generations_upload_is_not_sought_among_the_old_ones(bench: Bench) -> None:
    first, last = bench.save(), bench.save()
    bench.forget(first[0])
    bench.claim()
    orphan = bench.upload()

    bench.prune()
    assert bench.objects() == bench.of(last[1]) | bench.of(orphan)


def test_the_end_of_the_run_ends_its_last_generation(bench: Bench) -> None:
    n, kept = bench.save()
    bench.upload()
    bench.log.append(lambda _: Complete(generation=1, snapshot=n))

    bench.prune()
    assert bench.objects() == bench.of(kept)


def test_what_a_fork_needs_stays_until_it_is_released(bench: Bench) -> None:
    first, last = bench.save(), bench.save()
    bench.reader("user").append(lambda _: Pin(child="child", snapshot=first[0]))
    bench.forget(first[0])
    assert bench.prune().deleted == []

    bench.reader("user").append(lambda _: Unpin(child="child"))
    bench.prune()
    assert bench.objects() == bench.of(last[1])


def test_packs_of_a_parent_are_the_parents_affair(bench: Bench) -> None:
    parent = SnapshotBuilder(run="parent")
    parent.file(b"f", b"theirs")
    theirs = parent.store_in(bench.memory, 1)
    bench.save((0, HandUpload(theirs.manifest_id, theirs.address, theirs.manifest, ())))
    bench.save(keep=1)
    bench.prune()

    assert layout.pack_key("parent", theirs.manifest.packs[0].id) in bench.memory.contents()


def test_the_evidence_goes_last(bench: Bench) -> None:
    first = bench.save()
    bench.save()
    bench.forget(first[0])
    bench.prune()

    deletes = [c.key for c in bench.store.calls if c.verb == "delete"]
    assert ["/packs/" in k for k in deletes] == [True, False]


def test_a_prune_that_was_cut_short_is_finished_by_the_next(bench: Bench) -> None:
    saved = [bench.save(keep=1) for _ in range(4)]
    bench.store.add(Fault("delete", skip=1, error=StoreUnavailable("503")))
    with pytest.raises(StoreUnavailable):
        bench.prune()

    bench.prune()
    assert bench.objects() == bench.of(saved[-2][1]) | bench.of(saved[-1][1])


# ---- what stops it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["gone", "flipped", "entry"])
def test_a_damaged_root_stops_everything(bench: Bench, damage: str) -> None:
    forgotten, root, _ = bench.save(), bench.save(), bench.save()
    bench.forget(forgotten[0])
    key = layout.log_key(RUN, root[0]) if damage == "entry" else layout.manifest_key(RUN, root[1].manifest_id)
    if damage == "gone":
        bench.memory.delete(key)
    else:
        bench.memory.put(key, bench.memory.get(key)[:-1] + b"?")
    before = bench.objects()

    done = bench.prune()

    assert done.skipped.startswith("a retained snapshot is damaged")
    assert (bench.objects(), done.deleted) == (before, [])


def test_a_root_that_is_no_snapshot_stops_everything(bench: Bench) -> None:
    for _ in range(2):
        bench.save()
    bench.memory.put(layout.log_key(RUN, 2), encode(Released(n=2, intent="i")))

    assert "entry 2 is retained but no snapshot" in bench.prune().skipped


def test_a_root_that_was_forgotten_and_pruned_meanwhile_is_no_damage(bench: Bench) -> None:
    first, last = bench.save(), bench.save()

    def faster() -> None:
        other = RunLog(bench.memory, RUN, life="user", clock=bench.clock, rng=SeededRng())
        other.append(lambda _: Forget(snapshots=(first[0],)))
        prune(Repository(bench.memory, bench.repository.identity), other, grace_s=0)

    bench.store.add(Fault("get", f"/manifests/{first[1].manifest_id}", hook=faster))

    assert bench.prune() == Pruned()
    assert bench.objects() == bench.of(last[1])


def test_a_log_that_is_not_understood_stops_everything(bench: Bench) -> None:
    for _ in range(2):
        bench.save(keep=1)
    head = bench.log.head()
    bench.memory.put(layout.log_key(RUN, head.n + 1), encode(Released(v=1, n=head.n + 1, intent="i")))

    done = bench.prune()

    assert "newer SpotWarp" in done.skipped
    assert done.deleted == []


def test_without_the_right_to_delete_it_says_so(bench: Bench) -> None:
    for _ in range(3):
        bench.save(keep=1)
    bench.store.add(deny_delete())
    before = bench.objects()

    done = bench.prune()

    assert "may not delete" in done.skipped
    assert (bench.objects(), done.packs, done.bytes) == (before, 0, 0)


def test_a_damaged_manifest_of_a_forgotten_snapshot_is_deleted_and_its_packs_wait_for_the_next_claim(
    bench: Bench,
) -> None:
    first, last = bench.save(), bench.save()
    bench.forget(first[0])
    bench.memory.put(layout.manifest_key(RUN, first[1].manifest_id), b"damaged")

    bench.prune()
    assert bench.objects() == bench.of(last[1]) | {layout.pack_key(RUN, first[1].new_packs[0].id)}
    bench.claim()
    bench.prune()
    assert bench.objects() == bench.of(last[1])


def test_a_damaged_entry_of_a_forgotten_snapshot_only_hides_what_it_named(bench: Bench) -> None:
    first, second, last = bench.save(), bench.save(), bench.save()
    bench.forget(first[0], second[0])
    bench.memory.put(layout.log_key(RUN, second[0]), b"damaged")

    assert bench.prune().skipped == ""
    bench.claim()
    bench.prune()
    assert bench.objects() == bench.of(last[1])


# ---- grace ---------------------------------------------------------------------------------------------------------


def test_what_was_forgotten_lately_is_kept_for_running_restores(bench: Bench) -> None:
    first = bench.save()
    last = bench.save()
    bench.clock.advance(10 * HOUR)
    bench.forget(first[0])

    done = bench.prune(GRACE_S)
    assert (done.deleted, done.kept_for_grace) == ([], 2)

    bench.clock.advance(5 * HOUR)
    bench.reader("x").append(lambda _: Released(intent="i"))
    assert bench.prune(GRACE_S).kept_for_grace == 2

    bench.clock.advance(2 * HOUR)
    bench.reader("x").append(lambda _: Released(intent="i"))
    assert bench.prune(GRACE_S).kept_for_grace == 0
    assert bench.objects() == bench.of(last[1])


def test_a_snapshot_that_lived_only_within_the_grace_is_kept_too(bench: Bench) -> None:
    bench.clock.advance(10 * HOUR)
    for _ in range(4):
        bench.save(keep=1)

    assert bench.prune(GRACE_S).kept_for_grace == 4
    assert bench.prune(0).packs == 2


def test_only_the_stores_time_counts_and_a_beat_is_enough_of_it(bench: Bench) -> None:
    for _ in range(3):
        bench.save(keep=1)
    bench.clock.advance(7 * HOUR)
    assert bench.prune(GRACE_S).kept_for_grace == 2  # nothing in the store tells that time has passed

    bench.memory.put(layout.beat_key(RUN, "life1"), b"")
    assert bench.prune(GRACE_S).packs == 1


def test_garbage_of_a_dead_generation_needs_no_grace(bench: Bench) -> None:
    bench.save()
    bench.upload()
    bench.claim()

    assert bench.prune(GRACE_S).packs == 1


def test_grace_for_what_another_prune_took_is_no_error(bench: Bench) -> None:
    first = bench.save()
    bench.save()
    bench.forget(first[0])
    bench.prune(0)

    assert bench.prune(GRACE_S) == Pruned()


def test_grace_in_a_run_without_a_log() -> None:
    clock = VirtualClock()
    repository, _ = create(MemoryStore(clock=clock), clock=clock, rng=SeededRng())

    assert prune(repository, repository.log("none", life="r", clock=clock, rng=SeededRng())) == Pruned()


class _Quota(MemoryStore):
    """A store that takes no byte beyond `room`, but always deletes."""

    room = 1 << 40

    def _check(self, key: str, data: object) -> None:
        held = {k: v for k, v in self.contents().items() if k != key}
        if sum(len(v) for v in held.values()) + len(data) > self.room:  # type: ignore[arg-type]
            raise StoreFull("quota")

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        self._check(key, data)
        super().put(key, data)

    def put_new(self, key: str, data: bytes | bytearray | memoryview) -> None:
        self._check(key, data)
        super().put_new(key, data)


def test_a_full_store_in_which_everything_is_alive_makes_room_out_of_its_ballast() -> None:
    bench = Bench.__new__(Bench)
    bench.clock = VirtualClock()
    bench.memory = _Quota(clock=bench.clock)
    bench.store = FaultyStore(bench.memory)
    bench.repository, _ = create(bench.store, clock=bench.clock, rng=SeededRng())
    bench.generation = bench.uploads = 0
    bench.claim()
    for _ in range(3):
        last, _upload = bench.save()
    held = sum(len(data) for data in bench.memory.contents().values())
    bench.memory.room = held + 10  # not even a log entry fits
    with pytest.raises(StoreFull):
        bench.forget(*bench.reader().head().state.retained[:1])

    done = make_room(bench.repository, bench.reader())

    assert (done.packs, done.manifests, done.skipped) == (2, 2, "")
    assert bench.reader().head().state.retained == (last,)
    assert layout.BALLAST in bench.memory.contents()
    assert sum(len(data) for data in bench.memory.contents().values()) <= bench.memory.room
