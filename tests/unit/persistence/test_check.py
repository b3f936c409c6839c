"""Check: every problem found, each with the snapshots and files it costs, no snapshot blamed for another's."""

from __future__ import annotations

import os
import threading

import pytest

from spotwarp.errors import Interrupted, StoreUnavailable
from spotwarp.persistence.check import FILES_NAMED, CheckProgress, CheckReport, check
from spotwarp.persistence.layout import manifest_key, pack_key
from spotwarp.testing.snapshots import SnapshotBuilder, Stored
from spotwarp.testing.stores import Fault, FaultyStore, MemoryStore

BLOCK = os.urandom(30_000)


class History:
    """Three snapshots: 2 adds to 1, 3 shares nothing with them."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        first = SnapshotBuilder()
        first.file(b"shared", BLOCK, chunk=10_000)
        first.new_pack()
        first.bundle({b"old": b"old" * 100})
        self.one = first.store_in(self.store, 1)
        second = SnapshotBuilder(base=self.one.manifest)
        second.entries.append(self.one.manifest.entries[0])
        second.bundle({b"new": b"new" * 100})
        self.two = second.store_in(self.store, 2)
        third = SnapshotBuilder()
        third.file(b"alone", BLOCK[::-1], chunk=10_000)
        self.three = third.store_in(self.store, 3)

    @property
    def all(self) -> list[Stored]:
        return [self.one, self.two, self.three]

    def pack(self, made: Stored, number: int = -1) -> str:
        return pack_key("main", made.manifest.packs[number].id)

    def check(self, *, read_data: bool = False, store: object = None, **more: object) -> CheckReport:
        snapshots = [(made.n, made.manifest_id, made.address) for made in self.all]
        return check(
            store=store or self.store,  # type: ignore[arg-type]
            run="main",
            snapshots=snapshots,
            read_data=read_data,
            **more,  # type: ignore[arg-type]
        )

    def damage(self, key: str, at: int) -> None:
        data = bytearray(self.store.get(key))
        data[at] ^= 0x55
        self.store.put(key, bytes(data))


@pytest.fixture
def history() -> History:
    return History()


def test_all_is_well(history: History) -> None:
    plain, thorough = history.check(), history.check(read_data=True)
    for report in (plain, thorough):
        assert report.problems == ()
        assert report.fine == (1, 2, 3)
        assert (report.objects, report.unreferenced) == (7, 0)
    assert thorough.bytes - plain.bytes >= 2 * len(BLOCK)


def test_each_pack_is_listed_once_and_each_blob_read_once(history: History) -> None:
    faulty = FaultyStore(history.store)
    history.check(read_data=True, store=faulty)
    assert faulty.count("list", "packs") == 1
    assert faulty.count("head") == 0
    assert faulty.count("get", "manifests") == 3
    assert faulty.count("get_range") == 2 * 4  # table and blobs of each of four packs


def test_a_missing_pack(history: History) -> None:
    history.store.delete(history.pack(history.one, 0))
    report = history.check()
    assert [(p.kind, p.key, p.snapshots, p.files) for p in report.problems] == [
        ("pack-missing", history.pack(history.one, 0), (1, 2), (b"shared",))
    ]
    assert report.fine == (3,)


def test_a_pack_that_only_an_older_snapshot_needs(history: History) -> None:
    history.store.delete(history.pack(history.one, 1))
    report = history.check()
    assert [(p.snapshots, p.files) for p in report.problems] == [((1,), (b"old",))]
    assert report.fine == (2, 3)


@pytest.mark.parametrize("read_data", [False, True])
def test_a_truncated_pack(history: History, read_data: bool) -> None:
    key = history.pack(history.three)
    history.store.put(key, history.store.get(key)[:15_000])
    report = history.check(read_data=read_data)
    assert {p.key for p in report.problems} == {key}
    assert "pack-size" in {p.kind for p in report.problems}
    assert report.fine == (1, 2)


def test_a_damaged_blob_is_found_by_reading(history: History) -> None:
    history.damage(history.pack(history.one, 0), 12_345)
    assert history.check().problems == ()
    report = history.check(read_data=True)
    assert [(p.kind, p.snapshots, p.files) for p in report.problems] == [("blob", (1, 2), (b"shared",))]
    assert "1 of 3 blobs" in report.problems[0].what


def test_a_damaged_table_costs_nothing_once_the_data_is_proven(history: History) -> None:
    key = history.pack(history.three)
    history.damage(key, len(history.store.get(key)) - 40)
    plain, thorough = history.check(), history.check(read_data=True)
    assert [(p.kind, p.snapshots) for p in plain.problems] == [("pack-table", (3,))]
    assert [(p.kind, p.snapshots) for p in thorough.problems] == [("pack-table", ())]
    assert (plain.fine, thorough.fine) == ((1, 2), (1, 2, 3))


def test_another_pack_under_the_name(history: History) -> None:
    """Whole, of the right size, and not what was written."""
    other = SnapshotBuilder()
    other.file(b"alone", BLOCK, chunk=10_000)
    impostor = MemoryStore()
    made = other.store_in(impostor, 3)
    assert made.manifest.packs == history.three.manifest.packs
    history.store.put(history.pack(history.three), impostor.get(history.pack(made)))
    report = history.check()
    assert [(p.kind, p.snapshots, p.files) for p in report.problems] == [("pack-table", (3,), (b"alone",))]


@pytest.mark.parametrize("what", ["missing", "damaged", "another"])
def test_a_manifest(history: History, what: str) -> None:
    key = manifest_key("main", history.two.manifest_id)
    if what == "missing":
        history.store.delete(key)
    elif what == "damaged":
        history.damage(key, 50)
    else:
        history.store.put(key, history.store.get(manifest_key("main", history.one.manifest_id)))
    report = history.check()
    kind = "manifest-missing" if what == "missing" else "manifest-damaged"
    assert [(p.kind, p.key, p.snapshots) for p in report.problems] == [(kind, key, (2,))]
    assert report.fine == (1, 3)


def test_a_manifest_that_leads_out_of_the_workspace(history: History) -> None:
    build = SnapshotBuilder()
    build.bundle({b"../x": b"x"})
    history.three = build.store_in(history.store, 3)
    assert [(p.kind, p.snapshots) for p in history.check().problems] == [("manifest-damaged", (3,))]


def test_one_damage_hides_no_other(history: History) -> None:
    history.store.delete(manifest_key("main", history.two.manifest_id))
    history.store.delete(history.pack(history.one, 1))
    history.damage(history.pack(history.one, 0), 100)
    history.damage(history.pack(history.three), 25_000)
    found = {(p.kind, p.snapshots) for p in history.check(read_data=True).problems}
    assert found == {("manifest-missing", (2,)), ("pack-missing", (1,)), ("blob", (1,)), ("blob", (3,))}


def test_files_are_named_up_to_a_bound(history: History) -> None:
    build = SnapshotBuilder()
    build.bundle({b"f%03d" % number: b"x" * 50 for number in range(100)})
    history.three = build.store_in(history.store, 3)
    history.store.delete(history.pack(history.three))
    (problem,) = history.check().problems
    assert (len(problem.files), problem.files_total) == (FILES_NAMED, 100)


def test_garbage_is_counted_not_blamed(history: History) -> None:
    history.store.put(pack_key("main", "1-dead"), b"12345")
    history.store.put(manifest_key("main", "1-dead"), b"123")
    report = history.check()
    assert (report.problems, report.unreferenced, report.unreferenced_bytes) == ((), 2, 8)


def test_damage_on_the_way_is_not_damage(history: History) -> None:
    for verb, where in (("get", "manifests"), ("get_range", "packs")):
        faulty = FaultyStore(history.store, Fault(verb, where, corrupt=-5))
        assert history.check(read_data=True, store=faulty).problems == ()


def test_a_store_that_does_not_answer_is_an_error(history: History) -> None:
    faulty = FaultyStore(history.store, Fault("get_range", error=StoreUnavailable("no answer"), times=None))
    with pytest.raises(StoreUnavailable):
        history.check(store=faulty)


def test_a_pack_of_the_run_it_was_forked_from(history: History) -> None:
    fork = SnapshotBuilder(run="fork", base=history.one.manifest)
    fork.entries.append(history.one.manifest.entries[0])
    fork.bundle({b"own": b"own"})
    made = fork.store_in(history.store, 1)
    report = check(store=history.store, run="fork", snapshots=[(1, made.manifest_id, made.address)])
    assert (report.problems, report.fine, report.unreferenced) == ((), (1,), 0)
    history.store.delete(history.pack(history.one, 0))
    report = check(store=history.store, run="fork", snapshots=[(1, made.manifest_id, made.address)])
    assert [(p.kind, p.files) for p in report.problems] == [("pack-missing", (b"shared",))]


def test_cancel_and_progress(history: History) -> None:
    seen: list[CheckProgress] = []
    report = history.check(read_data=True, progress=seen.append)
    assert [item.packs for item in seen] == [1, 2, 3, 4]
    assert seen[-1].bytes == report.bytes
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Interrupted):
        history.check(cancel=cancel)


def test_nothing_is_written(history: History) -> None:
    faulty = FaultyStore(history.store)
    history.check(read_data=True, store=faulty)
    assert faulty.count("put put_new delete") == 0
