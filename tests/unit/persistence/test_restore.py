"""Restore: everything verified in a staging directory, or nothing that looks whole."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from spotwarp.clock import SystemClock
from spotwarp.errors import CorruptObject, Interrupted, StoreUnavailable, UnsupportedFormat, WorkspaceFault
from spotwarp.persistence import staging as stage
from spotwarp.persistence.manifest import FILE, CheckpointFact, Entry, Extent
from spotwarp.persistence.restore import FetchOptions, FetchProgress, FetchReport, fetch
from spotwarp.testing.snapshots import MTIME_NS, SnapshotBuilder, Stored
from spotwarp.testing.stores import Crash, Fault, FaultyStore, MemoryStore
from spotwarp.testing.trees import read_tree

KIB = 1 << 10
NOISE = os.urandom(1 << 20)


def noise(size: int, seed: int) -> bytes:
    """Bytes that do not compress, different for each seed."""
    start = seed * 7919 % (len(NOISE) // 2)
    return (NOISE[start:] + NOISE[:start])[:size]


def restore(store: object, made: Stored, staging: Path, **more: object) -> FetchReport:
    more.setdefault("options", FetchOptions(workers=2, sync=False))
    return fetch(store=store, manifest=made.manifest, staging=staging, clock=SystemClock(), **more)  # type: ignore[arg-type]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "staging"
    yield path
    stage.discard(path)  # pytest itself cannot remove trees as deep as some of these
    assert not path.exists()


def small(store: MemoryStore) -> Stored:
    """Every kind of thing a snapshot has, in three packs."""
    build = SnapshotBuilder()
    build.directory(b"out", mode=0o750, mtime_ns=5)
    build.directory(b"out/checkpoint-10", mtime_ns=6)
    build.directory(b"out/empty", mode=0o555, mtime_ns=7)
    build.file(b"out/checkpoint-10/model", noise(300 * KIB, 1), chunk=100 * KIB, mode=0o600, mtime_ns=8)
    build.new_pack()
    build.file(b"out/checkpoint-10/optimizer", noise(200 * KIB, 2) + bytes(200 * KIB), chunk=100 * KIB)
    build.new_pack()
    build.bundle({b"a.py": b"print(1)\n", b"b.py": b"", b"out/log": b"x" * 9000})
    build.file(b"zeros", bytes(50 * KIB), mode=0o444)
    build.link(b"latest", b"out/checkpoint-10", mtime_ns=9)
    build.link(b"dangling", b"/nowhere/\xff")
    build.checkpoints.append(CheckpointFact(b"out/checkpoint-10", "resumable", 10))
    return build.store_in(store)


def test_everything_comes_back(store: MemoryStore, staging: Path) -> None:
    made = small(store)
    report = restore(store, made, staging)
    tree = read_tree(staging)
    assert set(tree) == {entry.path for entry in made.manifest.entries}
    for entry in made.manifest.entries:
        node = tree[entry.path]
        assert node.mtime_ns == entry.mtime_ns
        if entry.kind == FILE:
            assert (node.mode, (staging / os.fsdecode(entry.path)).stat().st_size) == (entry.mode, entry.size)
    model = (staging / "out/checkpoint-10/model").read_bytes()
    assert model == noise(300 * KIB, 1)
    assert (staging / "out/checkpoint-10/optimizer").read_bytes() == noise(200 * KIB, 2) + bytes(200 * KIB)
    assert (staging / "a.py").read_bytes() == b"print(1)\n"
    assert (staging / "b.py").read_bytes() == b""
    assert (staging / "zeros").read_bytes() == bytes(50 * KIB)
    assert tree[b"dangling"].content == b"/nowhere/\xff"
    assert [entry.path for entry in stage.ready(staging) or ()] == sorted(entry.path for entry in made.manifest.entries)
    assert report.bytes == 500 * KIB + 9 + 9000
    assert report.kept_bytes == 0


def test_a_part_of_a_snapshot(store: MemoryStore, staging: Path) -> None:
    made = small(store)
    log = next(entry for entry in made.manifest.entries if entry.path == b"out/log")
    restore(store, made, staging, wanted=[log])
    assert set(read_tree(staging)) == {b"out", b"out/log"}


def test_holes_stay_holes(store: MemoryStore, staging: Path) -> None:
    """A10: 300 GiB with 4 KiB of content."""
    build = SnapshotBuilder()
    data = noise(4 * KIB, 3)
    build.extents(b"sparse", 300 << 30, [Extent(1 << 30, len(data), build.blob(data), 0)])
    restore(store, build.store_in(store), staging)
    about = (staging / "sparse").stat()
    assert about.st_size == 300 << 30
    assert about.st_blocks * 512 < 1 << 20
    with (staging / "sparse").open("rb") as file:
        file.seek(1 << 30)
        assert file.read(4 * KIB + 1) == data + b"\0"


def test_one_blob_fills_many_files(store: MemoryStore, staging: Path) -> None:
    build = SnapshotBuilder()
    number = build.blob(noise(1000, 4))
    for name in (b"one", b"two"):
        build.extents(name, 1000, [Extent(0, 1000, number, 0)])
    build.extents(b"middle", 3000, [Extent(500, 100, number, 7), Extent(1000, 1000, number, 0)])
    faulty = FaultyStore(store)
    restore(faulty, build.store_in(store), staging)
    assert (staging / "one").read_bytes() == (staging / "two").read_bytes() == noise(1000, 4)
    expected = bytes(500) + noise(1000, 4)[7:107] + bytes(400) + noise(1000, 4) + bytes(1000)
    assert (staging / "middle").read_bytes() == expected
    assert faulty.count("get_range") == 1


def test_names_of_any_bytes_and_paths_of_any_length(store: MemoryStore, staging: Path) -> None:
    """A12, A13: also a path longer than the system takes in one call."""
    build = SnapshotBuilder()
    names = [b"caf\xe9.pt", b"a\nb", b"-rf", b"a\\b", b"trail ", b"n" * 255, "é".encode(), "é".encode()]
    build.bundle({name: name for name in names})
    deep = b"/".join([b"d" * 200] * 25)
    for level in range(1, 26):
        build.directory(deep[: level * 201 - 1], mtime_ns=level)
    build.bundle({deep + b"/leaf": b"leaf"})
    build.file(deep + b"/large", noise(9000, 5), chunk=4000)
    build.link(deep + b"/link", b"leaf")
    made = build.store_in(store)
    restore(store, made, staging)
    tree = read_tree(staging)
    assert {path: node.mtime_ns for path, node in tree.items()} == {
        entry.path: entry.mtime_ns for entry in made.manifest.entries
    }


def test_deeper_than_the_stack(store: MemoryStore, staging: Path) -> None:
    build = SnapshotBuilder()
    build.bundle({b"/".join([b"d"] * 1100) + b"/leaf": b"leaf"})
    restore(store, build.store_in(store), staging)
    assert sum(stat.S_ISREG(node.kind) for node in read_tree(staging).values()) == 1


# ------------------------------------------------------------------------------------------------ unsafe entries


@pytest.mark.parametrize(
    "path", [b"/etc/x", b"../x", b"a/../../x", b"a//b", b"", b"a/", b".", b"./a", b"a\0b", b"n" * 256]
)
def test_a_path_that_leads_out_is_refused(store: MemoryStore, staging: Path, path: bytes) -> None:
    build = SnapshotBuilder()
    build.bundle({path: b"x"})
    with pytest.raises(CorruptObject):
        restore(store, build.store_in(store), staging)
    assert not staging.exists()


@pytest.mark.parametrize("link_first", [True, False])
def test_nothing_is_written_through_a_link(store: MemoryStore, staging: Path, tmp_path: Path, link_first: bool) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    build = SnapshotBuilder()
    steps: list[Callable[[], None]] = [
        lambda: build.link(b"a", os.fsencode(outside)),
        lambda: build.bundle({b"a/deep/passwd": b"x"}),
    ]
    for step in steps if link_first else reversed(steps):
        step()
    with pytest.raises(CorruptObject, match="not a directory"):
        restore(store, build.store_in(store), staging)
    assert list(outside.iterdir()) == []


def test_a_link_put_in_the_way_meanwhile_is_not_followed(store: MemoryStore, staging: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    build = SnapshotBuilder()
    build.bundle({b"a/file": b"x"})
    made = build.store_in(store)

    def swap() -> None:
        (staging / "a").rename(staging / "b")
        (staging / "a").symlink_to(outside)

    with pytest.raises(WorkspaceFault):
        restore(FaultyStore(store, Fault("get_range", hook=swap)), made, staging)
    assert list(outside.iterdir()) == []


def test_a_path_twice_is_refused(store: MemoryStore, staging: Path) -> None:
    build = SnapshotBuilder()
    build.bundle({b"a": b"x"})
    build.link(b"a", b"/etc/passwd")
    with pytest.raises(CorruptObject, match="twice"):
        restore(store, build.store_in(store), staging)


def test_overlapping_pieces_are_refused(store: MemoryStore, staging: Path) -> None:
    build = SnapshotBuilder()
    number = build.blob(b"x" * 100)
    build.extents(b"a", 150, [Extent(0, 100, number, 0), Extent(50, 100, number, 0)])
    with pytest.raises(CorruptObject, match="overlap"):
        restore(store, build.store_in(store), staging)


def test_a_kind_of_the_future_is_not_guessed_at(store: MemoryStore, staging: Path) -> None:
    build = SnapshotBuilder()
    build.entries.append(Entry(b"a", 9, 0o644, 0, 0))
    with pytest.raises(UnsupportedFormat):
        restore(store, build.store_in(store), staging)


# -------------------------------------------------------------------------------------------------------- damage


def pack_keys(store: MemoryStore) -> list[str]:
    return [key for key in store.contents() if "/packs/" in key]


def test_a_damaged_blob_names_pack_and_files(store: MemoryStore, staging: Path) -> None:
    made = small(store)
    key = pack_keys(store)[0]
    data = bytearray(store.get(key))
    data[150 * KIB] ^= 1
    store.put(key, bytes(data))
    with pytest.raises(CorruptObject, match="out/checkpoint-10/model") as caught:
        restore(store, made, staging)
    assert key in caught.value.message
    assert caught.value.hint is not None
    assert stage.ready(staging) is None


def test_damage_on_the_way_is_read_again(store: MemoryStore, staging: Path) -> None:
    made = small(store)
    faulty = FaultyStore(store, Fault("get_range", corrupt=5000))
    restore(faulty, made, staging)
    assert (staging / "out/checkpoint-10/model").read_bytes() == noise(300 * KIB, 1)


def test_a_missing_pack(store: MemoryStore, staging: Path) -> None:
    made = small(store)
    store.delete(pack_keys(store)[1])
    with pytest.raises(CorruptObject, match=r"is missing; .*: 1 \(out/checkpoint-10/optimizer\)"):
        restore(store, made, staging)
    assert stage.ready(staging) is None


def test_a_truncated_pack(store: MemoryStore, staging: Path) -> None:
    made = small(store)
    key = pack_keys(store)[0]
    store.put(key, store.get(key)[: 150 * KIB])
    with pytest.raises(CorruptObject, match="model"):
        restore(store, made, staging)


def test_a_store_that_does_not_answer_is_not_damage(store: MemoryStore, staging: Path) -> None:
    faulty = FaultyStore(store, Fault("get_range", error=StoreUnavailable("no answer"), times=None))
    with pytest.raises(StoreUnavailable):
        restore(faulty, small(store), staging)


# --------------------------------------------------------------------------------------------------- interrupted


def test_a_killed_fetch_is_continued_at_every_point(store: MemoryStore, tmp_path: Path) -> None:
    """A44: whatever call it dies at, the next fetch ends in the same tree, and reads only what is missing."""
    made = small(store)
    restore(store, made, tmp_path / "whole")
    expected = read_tree(tmp_path / "whole")
    counting = FaultyStore(store)
    restore(counting, made, tmp_path / "counted", options=FetchOptions(workers=1, sync=False))
    calls = counting.count()
    assert calls >= 3
    for call in range(1, calls + 1):
        staging = tmp_path / f"staging-{call}"
        with pytest.raises(Crash):
            restore(FaultyStore(store, Fault(at=call, crash=True)), made, staging, options=FetchOptions(1, False))
        assert stage.ready(staging) is None
        again = FaultyStore(store)
        report = restore(again, made, staging)
        assert read_tree(staging) == expected
        assert again.count("get_range") == calls - call + 1
        assert (report.kept_bytes > 0) == (call > 1)


def test_what_a_crash_left_half_written_is_fetched_again(store: MemoryStore, staging: Path, tmp_path: Path) -> None:
    """Right size and time prove nothing: a power cut can leave zeros under both."""
    made = small(store)
    restore(store, made, staging)
    expected = read_tree(staging)
    model, script = staging / "out/checkpoint-10/model", staging / "a.py"
    with model.open("r+b") as file:
        file.seek(100 * KIB)
        file.write(bytes(100 * KIB))
    script.write_bytes(bytes(9))
    for path in (model, script):
        os.utime(path, ns=(MTIME_NS, MTIME_NS))
    (staging / "b.py").unlink()
    (staging / "latest").unlink()
    os.utime(staging / "out/log")  # died between writing and this
    (staging / "out/log").chmod(0o600)
    report = restore(store, made, staging)
    assert read_tree(staging) == expected
    assert report.bytes - report.kept_bytes == 100 * KIB + 9


def test_what_another_restore_left_is_removed(store: MemoryStore, staging: Path) -> None:
    other = SnapshotBuilder(generation=2)
    other.bundle({b"old": b"old", b"a.py": b"print(2)\n"})
    restore(store, other.store_in(store, 2), staging)
    made = small(store)
    restore(store, made, staging)
    assert set(read_tree(staging)) == {entry.path for entry in made.manifest.entries}
    assert (staging / "a.py").read_bytes() == b"print(1)\n"


@pytest.mark.parametrize("damage", ["zeros", "one bit", "half", "empty"])
def test_a_damaged_mark_starts_again(store: MemoryStore, staging: Path, damage: str) -> None:
    """A51: the mark is a cache like every local file."""
    made = small(store)
    restore(store, made, staging)
    expected = read_tree(staging)
    mark = staging.with_name("staging.ready")
    data = mark.read_bytes()
    at = data.index(b"checkpoint-10")
    mark.write_bytes(
        {
            "zeros": bytes(len(data)),
            "one bit": data[:at] + b"b" + data[at + 1 :],
            "half": data[: len(data) // 2],
            "empty": b"",
        }[damage]
    )
    assert stage.ready(staging) is None
    restore(store, made, staging)
    assert read_tree(staging) == expected


def test_a_directory_that_is_not_ours_is_left_alone(store: MemoryStore, staging: Path) -> None:
    staging.mkdir()
    (staging / "thesis").write_text("precious")
    with pytest.raises(WorkspaceFault, match="not empty"):
        restore(store, small(store), staging)
    assert (staging / "thesis").read_text() == "precious"


def test_cancel_ends_it(store: MemoryStore, staging: Path) -> None:
    made, cancel = small(store), threading.Event()
    with pytest.raises(Interrupted):
        restore(FaultyStore(store, Fault("get_range", hook=cancel.set)), made, staging, cancel=cancel)
    assert stage.ready(staging) is None
    restore(store, made, staging)
    assert stage.ready(staging) is not None


def test_progress_ends_at_the_total(store: MemoryStore, staging: Path) -> None:
    seen: list[FetchProgress] = []
    report = restore(store, small(store), staging, progress=seen.append)
    assert [item.done for item in seen] == sorted(item.done for item in seen)
    assert seen[-1] == FetchProgress(report.bytes, report.bytes)


# ---------------------------------------------------------------------------------------------------------- room


def test_no_room_is_told_before_anything_is_written(store: MemoryStore, staging: Path) -> None:
    build = SnapshotBuilder()
    number = build.blob(b"x" * 4096)
    pieces = [Extent(at << 20, 4096, number, 0) for at in range(3)]
    build.extents(b"a", 3 << 20, pieces)
    made = build.store_in(store)
    huge = msgspec.structs.replace(
        made.manifest,
        blobs=tuple(msgspec.structs.replace(blob, raw=1 << 60) for blob in made.manifest.blobs),
        entries=(Entry(b"a", FILE, 0o644, 0, 1 << 60, (Extent(0, 1 << 60, 0, 0),)),),
    )
    faulty = FaultyStore(store)
    with pytest.raises(WorkspaceFault, match=r"needs 1073741824\.0 GiB, has [\d.]+ [GM]iB; nothing was written"):
        fetch(store=faulty, manifest=huge, staging=staging, clock=SystemClock())
    assert list(staging.iterdir()) == []
    assert faulty.count() == 0


def test_the_resumable_checkpoint_comes_first(store: MemoryStore, staging: Path) -> None:
    build = SnapshotBuilder()
    build.bundle({b"junk": noise(1000, 1)})
    build.new_pack()
    build.bundle({b"checkpoint-9/model": noise(1000, 2)})
    build.new_pack()
    build.bundle({b"checkpoint-10/model": noise(1000, 3)})
    build.checkpoints += [
        CheckpointFact(b"checkpoint-9", "resumable", 9),
        CheckpointFact(b"checkpoint-10", "resumable", 10),
    ]
    made = build.store_in(store)
    faulty = FaultyStore(store)
    restore(faulty, made, staging, options=FetchOptions(workers=1, sync=False))
    order = [pack_keys(store).index(call.key) for call in faulty.calls if call.verb == "get_range"]
    assert order == [2, 0, 1]


def test_neighbours_are_read_together(store: MemoryStore, staging: Path) -> None:
    build = SnapshotBuilder()
    for number in range(8):
        build.file(b"f%d" % number, noise(100 * KIB, number))
    faulty = FaultyStore(store)
    restore(faulty, build.store_in(store), staging)
    assert faulty.count("get_range") == 1


# ---------------------------------------------------------------------------------------------- over an older copy


def older_and_newer(store: MemoryStore, tmp_path: Path) -> tuple[Path, Stored]:
    """A directory with a big file and a log, and a snapshot in which one piece differs and the log has grown."""
    old = noise(400 * KIB, 1)
    here = tmp_path / "here"
    (here / "out").mkdir(parents=True)
    (here / "out/model").write_bytes(old)
    (here / "log").write_bytes(noise(250 * KIB, 2))
    build = SnapshotBuilder()
    build.directory(b"out")
    build.file(b"out/model", old[: 100 * KIB] + noise(100 * KIB, 3) + old[200 * KIB :], chunk=100 * KIB, mode=0o640)
    build.file(b"log", noise(250 * KIB, 2)[: 200 * KIB] + noise(150 * KIB, 4), chunk=100 * KIB)
    build.bundle({b"a.py": b"print(1)\n", b"b.py": b"print(2)\n"})
    return here, build.store_in(store)


def test_only_what_differs_from_an_older_copy_is_fetched(store: MemoryStore, staging: Path, tmp_path: Path) -> None:
    here, made = older_and_newer(store, tmp_path)
    before = read_tree(here)
    report = restore(store, made, staging, older=here)
    assert (report.kept_bytes, report.bytes) == (500 * KIB, 750 * KIB + 18)
    assert report.read_bytes < 260 * KIB
    restore(store, made, plain := tmp_path / "plain")
    assert read_tree(staging) == read_tree(plain)
    assert read_tree(here) == before


def test_an_older_copy_is_not_followed_out_of_its_directory(store: MemoryStore, staging: Path, tmp_path: Path) -> None:
    here, made = older_and_newer(store, tmp_path)
    (here / "out").rename(tmp_path / "elsewhere")
    (here / "out").symlink_to(tmp_path / "elsewhere")
    (here / "log").unlink()
    os.mkfifo(here / "log")
    report = restore(store, made, staging, older=here)
    assert report.kept_bytes == 0
    assert (staging / "out/model").read_bytes()[: 100 * KIB] == noise(400 * KIB, 1)[: 100 * KIB]


def test_a_killed_fetch_over_an_older_copy_is_continued(store: MemoryStore, staging: Path, tmp_path: Path) -> None:
    here, made = older_and_newer(store, tmp_path)
    faulty = FaultyStore(store, Fault("get_range", crash=True))
    with pytest.raises(Crash):
        restore(faulty, made, staging, older=here, options=FetchOptions(workers=1, sync=False))
    (here / "log").write_bytes(b"gone")
    report = restore(store, made, staging, older=here)
    assert report.kept_bytes >= 500 * KIB, "what had been copied, or fetched, stands in the staging"
    restore(store, made, plain := tmp_path / "plain")
    assert read_tree(staging) == read_tree(plain)
