"""Backup: what is put, in which order, what is not put again, and what a failure leaves."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock
from spotwarp.errors import Interrupted, StoreUnavailable, WorkspaceFault
from spotwarp.persistence.backup import BackupOptions, Judge, Progress, Uploaded, unchanged
from spotwarp.persistence.excludes import Excludes
from spotwarp.persistence.held import Held
from spotwarp.persistence.layout import generation_of, manifest_key, pack_key
from spotwarp.persistence.manifest import FILE, CheckpointFact, Entry, Manifest, decode
from spotwarp.persistence.pack import parse_pack
from spotwarp.persistence.scan import Scanned
from spotwarp.persistence.statcache import StatCache
from spotwarp.testing.backups import Backups
from spotwarp.testing.stores import Crash, Fault, MemoryStore
from spotwarp.testing.trees import read_tree

KIB, MIB = 1 << 10, 1 << 20
OLD_NS = 1_600_000_000_000_000_000
SLOW = BackupOptions(workers=1, uploads=1, pack_size=8 * MIB)
"""One thing after the other, so that the same happens each time."""


def noise(size: int, seed: int) -> bytes:
    """Bytes that do not compress, the same for the same seed."""
    import random

    return random.Random(seed).randbytes(size)


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def judge(**classes: str) -> Judge:
    """Sees `checkpoint-<step>` directories, of the classes named (`c10="torn"`), else resumable."""

    def say(root: Path, entries: Sequence[Scanned]) -> list[CheckpointFact]:
        found = [e.path for e in entries if e.kind == 1 and e.path.rpartition(b"/")[2].startswith(b"checkpoint-")]
        steps = [int(path.rpartition(b"-")[2]) for path in found]
        return [
            CheckpointFact(path, classes.get(f"c{step}", "resumable"), step=step)
            for path, step in zip(found, steps, strict=True)
        ]

    return say


@pytest.fixture
def work(tmp_path: Path) -> Path:
    root = tmp_path / "w"
    root.mkdir()
    return root


@pytest.fixture
def filled(work: Path) -> Path:
    """A workspace with something of everything."""
    for step in (10, 20):
        write(work / f"out/checkpoint-{step}/model.bin", noise(5 * MIB + step, step))
        write(work / f"out/checkpoint-{step}/state.json", b'{"step": %d}' % step)
    for k in range(30):
        write(work / f"src/{k % 3}/m{k}.py", b"import this\n" * k)
    write(work / "data.bin", noise(3 * MIB, 1))
    (work / "empty").mkdir(mode=0o700)
    (work / "latest").symlink_to("out/checkpoint-20")
    return work


def entry(backups: Backups, path: bytes) -> Entry:
    assert backups.base is not None
    return next(found for found in backups.base.entries if found.path == path)


def nobody(_: Path) -> Held:
    """Who holds files for writing."""
    return Held()


def age(root: Path, backups: Backups) -> None:
    """Back up until the time stamps of what is there are old enough to be believed."""
    deadline = threading.Event()
    for _ in range(200):
        if backups.take().read_bytes == 0:
            return
        deadline.wait(0.02)
    raise AssertionError("the time stamps are never believed")


def test_everything_comes_back(filled: Path, tmp_path: Path) -> None:
    (filled / "src/0").chmod(0o555)
    os.utime(filled / "src/1", ns=(OLD_NS, OLD_NS + 1))
    write(filled / "zeros", bytes(9 * MIB))
    with (filled / "sparse").open("wb") as file:
        file.seek(50 * MIB + 3)
        file.write(b"x")
    backups = Backups(filled, judge=judge())
    uploaded = backups.take()
    assert backups.restored(tmp_path / "r") == read_tree(filled)
    assert (uploaded.files, uploaded.changed_files) == (37, 37)
    files = [path for path in filled.rglob("*") if path.is_file() and not path.is_symlink()]
    assert uploaded.bytes == sum(path.stat().st_size for path in files)
    assert uploaded.vanished == uploaded.unstable == uploaded.skipped == ()
    assert uploaded.stored_bytes == sum(len(data) for data in stored(backups).values())


def test_written_zeros_come_back_written_and_holes_as_holes(tmp_path: Path) -> None:
    """A tensor of zeros is data: restored as a hole it would make its checkpoint look torn."""
    root = tmp_path / "w"
    write(root / "written", bytes(9 * MIB))
    with (root / "hole").open("wb") as file:
        file.truncate(9 * MIB)
    restored = tmp_path / "r"
    backups = Backups(root, judge=judge())
    backups.take()
    backups.restored(restored)
    assert (restored / "written").stat().st_blocks * 512 >= 9 * MIB
    assert (restored / "hole").stat().st_blocks == 0


def stored(backups: Backups) -> dict[str, bytes]:
    inner = backups.calls._inner
    assert isinstance(inner, MemoryStore)
    return inner.contents()


def test_nothing_but_packs_and_last_the_manifest_is_put_each_once(filled: Path) -> None:
    backups = Backups(filled, judge=judge())
    uploaded = backups.take()
    puts = [call.key for call in backups.calls.calls]
    assert {call.verb for call in backups.calls.calls} == {"put"}
    assert puts[-1] == manifest_key("main", uploaded.manifest_id)
    assert sorted(puts[:-1]) == sorted(pack_key("main", pack.id) for pack in uploaded.new_packs)
    assert {generation_of(pack.id) for pack in uploaded.new_packs} == {1} == {generation_of(uploaded.manifest_id)}
    objects = stored(backups)
    assert decode(objects[puts[-1]], "m", expected=uploaded.address) == uploaded.manifest
    assert len(objects[puts[-1]]) == uploaded.manifest_size
    for pack in uploaded.new_packs:
        assert len(objects[pack_key("main", pack.id)]) == pack.size


def test_an_unchanged_workspace_puts_nothing_and_reads_nothing(filled: Path) -> None:
    backups = Backups(filled, judge=judge())
    first = backups.take()
    age(filled, backups)
    calls = len(backups.calls.calls)
    again = backups.take()
    assert again.unchanged
    assert (again.manifest_id, again.stored_bytes, again.read_bytes, again.new_packs) == ("", 0, 0, ())
    assert (again.files, again.bytes, again.changed_files) == (first.files, first.bytes, 0)
    assert again.manifest == first.manifest
    assert len(backups.calls.calls) == calls


def test_a_lost_cache_costs_reading_only(filled: Path) -> None:
    backups = Backups(filled, judge=judge())
    first = backups.take()
    backups.cache = StatCache()
    again = backups.take()
    assert again.unchanged
    assert again.read_bytes == first.read_bytes > 0


def test_a_stale_cache_makes_no_snapshot_point_at_nothing(filled: Path, tmp_path: Path) -> None:
    backups = Backups(filled)
    backups.take()
    age(filled, backups)
    backups.base = None  # the run is another one; the cache knows all files
    uploaded = backups.take()
    assert uploaded.read_bytes == uploaded.bytes > 0
    assert backups.restored(tmp_path / "r") == read_tree(filled)


def test_a_final_snapshot_is_put_even_when_nothing_changed(filled: Path) -> None:
    backups = Backups(filled)
    first = backups.take()
    final = backups.take(always=True)
    assert not final.unchanged
    assert final.manifest_id not in ("", first.manifest_id)
    assert (final.new_packs, final.manifest) == ((), first.manifest)


def test_a_final_snapshot_of_what_is_known_to_be_stored_names_it_again(filled: Path, tmp_path: Path) -> None:
    backups = Backups(filled, judge=judge())
    backups.take()
    age(filled, backups)
    first = backups.take(always=True)
    final = backups.take(always=True)
    assert not final.unchanged
    assert final.manifest_id not in ("", first.manifest_id)
    assert (final.new_packs, final.read_bytes, final.manifest) == ((), 0, first.manifest)
    assert (final.files, final.bytes, final.stored_bytes) == (first.files, first.bytes, final.manifest_size)
    assert backups.restored(tmp_path / "r") == read_tree(filled)
    assert backups.take().unchanged


def test_another_process_knows_that_nothing_is_new(filled: Path, tmp_path: Path) -> None:
    backups = Backups(filled, judge=judge())
    backups.take()
    age(filled, backups)
    stored = backups.take(always=True, look=nobody)
    backups.cache.known_as(stored.manifest, stored.manifest_id)
    assert backups.cache.save(tmp_path / "stat", filled)
    other = StatCache.load(tmp_path / "stat", filled)

    def proven(base: Manifest) -> Uploaded | None:
        rules = {"excludes": Excludes(), "judge": judge(), "clock": SystemClock(), "recheck_s": 0.0, "look": nobody}
        return unchanged(root=filled, base=base, cache=other, **rules)

    assert proven(stored.manifest) is None  # which manifest that is, nobody has said yet
    other.known_as(stored.manifest, "1-another")
    assert proven(stored.manifest) is None
    other.known_as(stored.manifest, stored.manifest_id)
    found = proven(stored.manifest)
    assert found is not None
    assert (found.files, found.bytes, found.unchanged) == (stored.files, stored.bytes, True)
    (filled / "new").touch()
    assert proven(stored.manifest) is None


def test_a_touched_file_is_a_new_manifest_only(filled: Path, tmp_path: Path) -> None:
    backups = Backups(filled)
    backups.take()
    packs = backups.packs_put()
    os.utime(filled / "data.bin", ns=(OLD_NS, OLD_NS))
    uploaded = backups.take()
    assert not uploaded.unchanged
    assert (uploaded.changed_files, uploaded.new_packs, backups.packs_put()) == (1, (), packs)
    assert backups.restored(tmp_path / "r") == read_tree(filled)


def test_an_edit_that_puts_size_and_time_back_is_seen(work: Path, tmp_path: Path) -> None:
    write(work / "h", b"Hello world\n")
    os.utime(work / "h", ns=(OLD_NS, OLD_NS))
    backups = Backups(work)
    backups.take()
    age(work, backups)
    write(work / "h", b"hELLO WORLD\n")
    os.utime(work / "h", ns=(OLD_NS, OLD_NS))
    assert not backups.take().unchanged
    assert backups.restored(tmp_path / "r") == read_tree(work)


def test_rotation_and_renames_put_no_pack(filled: Path, tmp_path: Path) -> None:
    backups = Backups(filled, judge=judge())
    backups.take()
    age(filled, backups)
    packs = backups.packs_put()
    (filled / "out/checkpoint-10").rename(filled / "out/checkpoint-30")
    (filled / "src").rename(filled / "lib")
    (filled / "data.bin").rename(filled / "data.old")
    renamed = backups.take()
    assert renamed.read_bytes == (filled / "data.old").stat().st_size  # a renamed file's own status moves
    for path in (filled / "out/checkpoint-30").iterdir():
        path.unlink()
    (filled / "out/checkpoint-30").rmdir()
    rotated = backups.take()
    assert (renamed.new_packs, rotated.new_packs, backups.packs_put()) == ((), (), packs)
    assert len(rotated.manifest.packs) < len(renamed.manifest.packs)
    assert backups.restored(tmp_path / "r") == read_tree(filled)


def test_a_small_edit_in_a_big_file_puts_one_chunk(work: Path, tmp_path: Path) -> None:
    write(work / "big", noise(20 * MIB, 3))
    backups = Backups(work)
    backups.take()
    with (work / "big").open("r+b") as file:
        file.seek(9 * MIB)
        file.write(b"edit")
    assert backups.take().stored_bytes < 4.1 * MIB
    assert backups.restored(tmp_path / "r") == read_tree(work)


def test_the_same_content_is_stored_once(work: Path, tmp_path: Path) -> None:
    big, small = noise(9 * MIB, 4), noise(100 * KIB, 5)
    for k in range(3):
        write(work / f"big{k}", big)
        write(work / f"small{k}", small)
    write(work / "tail", big[: 8 * MIB] + small)
    backups = Backups(work)
    assert backups.take().stored_bytes < 9.3 * MIB
    assert backups.restored(tmp_path / "r") == read_tree(work)


def test_packs_never_mix_checkpoints(filled: Path) -> None:
    backups = Backups(filled, judge=judge())
    uploaded = backups.take()
    inside: dict[int, set[bytes]] = {}
    for found in uploaded.manifest.entries:
        for extent in found.extents:
            group = found.path.rpartition(b"/")[0] if b"checkpoint-" in found.path else b""
            inside.setdefault(uploaded.manifest.blobs[extent.blob].pack, set()).add(group)
    assert all(len(groups) == 1 for groups in inside.values())
    assert len(set.union(*inside.values())) == 3


def test_the_newest_resumable_checkpoint_goes_first_and_the_bulk_last(filled: Path) -> None:
    write(filled / "out/checkpoint-30/model.bin", noise(MIB, 30))
    write(filled / "huge", noise(12 * MIB, 31))
    backups = Backups(filled, judge=judge(c30="torn"), options=BackupOptions(workers=1, uploads=1, pack_size=4 * MIB))
    uploaded = backups.take()
    first: dict[bytes, int] = {}
    order = {call.key: call.number for call in backups.calls.calls}
    for found in uploaded.manifest.entries:
        if found.extents:
            pack = uploaded.manifest.packs[uploaded.manifest.blobs[found.extents[0].blob].pack]
            first[found.path] = order[pack_key("main", pack.id)]
    sequence = [b"out/checkpoint-20/model.bin", b"src/0/m3.py"]
    sequence += [b"out/checkpoint-10/model.bin", b"out/checkpoint-30/model.bin", b"huge"]
    assert [first[path] for path in sequence] == sorted({first[path] for path in sequence})


def test_packs_hold_what_the_manifest_says(filled: Path) -> None:
    backups = Backups(filled)
    uploaded = backups.take()
    objects = stored(backups)
    for number, pack in enumerate(uploaded.manifest.packs):
        rows = {row.digest: row for row in parse_pack(objects[pack_key("main", pack.id)], pack.id)}
        blobs = [blob for blob in uploaded.manifest.blobs if blob.pack == number]
        assert {(b.digest, b.offset, b.stored, b.codec, b.raw) for b in blobs} <= {
            (r.digest, r.offset, r.stored, r.codec, r.raw) for r in rows.values()
        }


# ------------------------------------------------------------------------------------------------ failures


def test_a_failed_put_fails_the_backup_and_leaves_no_trace(filled: Path, tmp_path: Path) -> None:
    total = Backups(filled, judge=judge(), options=SLOW)
    total.take()
    for k in range(len(total.calls.calls)):
        backups = Backups(filled, judge=judge(), options=SLOW)
        backups.calls.add(Fault("put", skip=k, error=StoreUnavailable("no answer")))
        with pytest.raises(StoreUnavailable):
            backups.take()
        assert len(backups.cache) == 0
        assert not [key for key in stored(backups) if "/packs/" not in key]
        backups.calls.heal()
        assert backups.take().read_bytes > 0
        assert backups.restored(tmp_path / f"r{k}") == read_tree(filled)


def test_a_manifest_whose_reply_is_lost_is_a_failure(filled: Path) -> None:
    backups = Backups(filled)
    backups.calls.add(Fault("put", key="/manifests/", lost_reply=True))
    with pytest.raises(StoreUnavailable):
        backups.take()
    assert len(backups.cache) == 0


def test_after_a_crash_at_any_write_there_are_only_packs(filled: Path) -> None:
    total = Backups(filled, options=SLOW)
    total.take()
    for k in range(len(total.calls.calls)):
        backups = Backups(filled, options=SLOW)
        backups.calls.add(Fault("put", skip=k, crash=True))
        with pytest.raises(Crash):
            backups.take()
        assert not [key for key in stored(backups) if "/packs/" not in key]


def test_a_stop_ends_it_without_a_manifest(filled: Path) -> None:
    cancel = threading.Event()
    backups = Backups(filled, judge=judge())
    with pytest.raises(Interrupted):
        backups.take(progress=lambda now: cancel.set(), cancel=cancel)
    with pytest.raises(Interrupted):
        backups.take(cancel=cancel)
    assert not [key for key in stored(backups) if "/packs/" not in key]
    assert not backups.take().unchanged
    age(filled, backups)
    with pytest.raises(Interrupted):
        backups.take(cancel=cancel)


def test_the_reading_threads_step_back_and_nobody_else(filled: Path) -> None:
    seen: set[int] = set()
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    backups = Backups(filled)

    def note(now: Progress) -> None:
        if now.files_total:
            seen.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    backups.take(progress=note)
    assert seen == {max(10, mine)}
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine


def test_a_stop_does_not_wait_for_a_free_buffer(filled: Path) -> None:
    cancel, release = threading.Event(), threading.Event()
    store = Fault("put", times=None, hook=lambda: (cancel.set(), release.wait(60)))
    backups = Backups(filled, options=BackupOptions(workers=1, uploads=1, pack_size=MIB))
    backups.calls.add(store)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            backups.take(cancel=cancel)
        except Interrupted as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert cancel.wait(60)
    release.set()
    thread.join(60)
    assert not thread.is_alive()
    assert len(raised) == 1


def test_a_failing_judge_is_the_callers_error(filled: Path) -> None:
    def fail(root: Path, entries: Sequence[Scanned]) -> Sequence[CheckpointFact]:
        raise WorkspaceFault("no")

    backups = Backups(filled, judge=fail)
    with pytest.raises(WorkspaceFault):
        backups.take()
    assert backups.calls.calls == ()


def test_a_workspace_replaced_after_the_scan_is_a_fault(filled: Path) -> None:
    def replace(root: Path, entries: Sequence[Scanned]) -> Sequence[CheckpointFact]:
        root.rename(root.with_name("old"))
        root.mkdir()
        return ()

    with pytest.raises(WorkspaceFault, match="replaced"):
        Backups(filled, judge=replace).take()


def test_no_descriptor_is_left_open(filled: Path) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    backups = Backups(filled)
    gc.collect()  # what other tests left is closed before, not meanwhile
    before = count()
    backups.take()
    backups.calls.add(Fault("put", error=StoreUnavailable("no answer")))
    write(filled / "data.bin", noise(30 * MIB, 8))
    with pytest.raises(StoreUnavailable):
        backups.take()
    assert count() == before


def test_progress_reaches_the_total(filled: Path) -> None:
    seen: list[Progress] = []
    Backups(filled).take(progress=seen.append)
    assert seen == sorted(seen, key=lambda now: (now.bytes, now.files))
    assert (seen[-1].files, seen[-1].bytes) == (seen[-1].files_total, seen[-1].bytes_total)


# ----------------------------------------------------------------------------------------------- live files


def once(act: Callable[[], object], *, after_bytes: int = 1) -> Callable[[Progress], None]:
    """A progress callback that acts when so much has been read, that is: while a big file is."""
    done: list[bool] = []

    def report(now: Progress) -> None:
        if now.bytes >= after_bytes and not done:
            done.append(True)
            act()

    return report


def test_a_file_rewritten_while_it_is_read_is_read_again(work: Path, tmp_path: Path) -> None:
    write(work / "big", noise(10 * MIB, 1))
    backups = Backups(work, options=SLOW)
    uploaded = backups.take(progress=once(lambda: write(work / "big", noise(10 * MIB, 2))))
    assert uploaded.unstable == ()
    assert backups.restored(tmp_path / "r")[b"big"].content == read_tree(work)[b"big"].content


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], object]) -> None:
    """Let something happen right after each read of a small file, given how many there were before."""
    real, reads = os.pread, iter(range(1000))

    def pread(fd: int, length: int, offset: int) -> bytes:
        data = real(fd, length, offset)
        act(next(reads))
        return data

    monkeypatch.setattr(os, "pread", pread)


def test_a_small_file_rewritten_while_it_is_read_is_read_again(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work / "small", b"a" * 5000)
    backups = Backups(work)
    with monkeypatch.context() as patch:
        meanwhile(patch, lambda k: write(work / "small", b"b" * 5000) if k == 0 else None)
        assert backups.take().unstable == ()
    assert backups.restored(tmp_path / "r") == read_tree(work)


def test_a_small_file_that_never_holds_still_is_kept_as_read(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work / "small", b"a" * 5000)
    backups = Backups(work)
    with monkeypatch.context() as patch:
        meanwhile(patch, lambda k: write(work / "small", b"b%d" % k * 1000))
        uploaded = backups.take()
    assert uploaded.unstable == (b"small",)
    backups.restored(tmp_path / "r")
    assert (tmp_path / "r" / "small").read_bytes() == b"b2" * 1000
    assert not backups.take().unchanged


def test_a_small_log_appended_to_all_the_time_is_its_prefix(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work / "log", b"a" * 5000)
    backups = Backups(work)
    reads: list[int] = []

    def append(k: int) -> None:
        reads.append(k)
        with (work / "log").open("ab") as file:
            file.write(b"more")

    with monkeypatch.context() as patch:
        meanwhile(patch, append)
        backups.take()
    assert reads == [0, 1]
    backups.restored(tmp_path / "r")
    assert (tmp_path / "r" / "log").read_bytes() == b"a" * 5000


def test_a_file_appended_to_while_it_is_read_is_kept_as_its_prefix(work: Path, tmp_path: Path) -> None:
    first, more = noise(10 * MIB, 1), noise(MIB, 2)
    write(work / "log", first)

    def append() -> None:
        with (work / "log").open("ab") as file:
            file.write(more)

    backups = Backups(work, options=SLOW)

    def always(now: Progress) -> None:
        append()

    backups.take(progress=always)
    kept = entry(backups, b"log").size
    backups.restored(tmp_path / "r")
    assert kept == len(first)
    assert (tmp_path / "r" / "log").read_bytes() == first
    backups.take()
    assert backups.restored(tmp_path / "r2")[b"log"] == read_tree(work)[b"log"]


def test_a_file_truncated_while_it_is_read_is_what_remained(work: Path, tmp_path: Path) -> None:
    write(work / "big", noise(10 * MIB, 1))
    backups = Backups(work, options=SLOW)
    backups.take(progress=once(lambda: os.truncate(work / "big", 5 * MIB + 1)))
    assert backups.restored(tmp_path / "r")[b"big"] == read_tree(work)[b"big"]


def test_a_file_that_never_holds_still_is_kept_as_read(work: Path, tmp_path: Path) -> None:
    write(work / "busy", noise(10 * MIB, 1))
    rounds = iter(range(10_000))

    def scribble(now: Progress) -> None:
        k = next(rounds)
        os.truncate(work / "busy", 10 * MIB - k * 1000)
        with (work / "busy").open("r+b") as file:
            file.write(noise(1000, k))

    backups = Backups(work, options=SLOW)
    uploaded = backups.take(progress=scribble)
    assert uploaded.unstable == (b"busy",)
    assert uploaded.read_bytes <= 4 * 10 * MIB
    backups.restored(tmp_path / "r")
    assert (tmp_path / "r" / "busy").stat().st_size == entry(backups, b"busy").size
    settled = backups.take()
    assert settled.unstable == ()
    assert backups.restored(tmp_path / "r2") == read_tree(work)


def change_after_scan(act: Callable[[Path], object], facts: Judge | None = None) -> Judge:
    """A judge that lets something happen between the scan and the reading."""

    def say(root: Path, entries: Sequence[Scanned]) -> Sequence[CheckpointFact]:
        said = facts(root, entries) if facts else ()
        act(root)
        return said

    return say


def test_what_vanishes_after_the_scan_is_noted_and_left_out(filled: Path) -> None:
    backups = Backups(filled)

    def vanish(root: Path) -> None:
        (root / "data.bin").unlink()
        (root / "src/0/m3.py").unlink()

    uploaded = backups.take(judge=change_after_scan(vanish))
    assert uploaded.vanished == (b"data.bin", b"src/0/m3.py")
    assert uploaded.skipped == ()
    assert uploaded.files == 33
    assert backups.take().files == 33


def test_what_is_no_file_any_more_is_never_opened(filled: Path) -> None:
    def turn(root: Path) -> None:
        for name in ("data.bin", "src/0/m3.py", "src/0/m6.py"):
            (root / name).unlink()
        os.mkfifo(root / "data.bin")
        os.mkfifo(root / "src/0/m3.py")
        (root / "src/0/m6.py").symlink_to("m9.py")

    uploaded = Backups(filled).take(judge=change_after_scan(turn))
    assert uploaded.vanished == (b"data.bin", b"src/0/m3.py", b"src/0/m6.py")


def test_a_small_file_that_outgrows_a_bundle_is_its_prefix_for_now(work: Path, tmp_path: Path) -> None:
    write(work / "f", b"a" * 1000)
    backups = Backups(work)
    backups.take(judge=change_after_scan(lambda root: write(root / "f", b"a" * MIB)))
    assert entry(backups, b"f").size == 1000
    backups.take()
    assert backups.restored(tmp_path / "r") == read_tree(work)


def test_a_file_that_shrank_since_the_scan_is_what_it_is(work: Path, tmp_path: Path) -> None:
    for k, size in enumerate((0, 10, 100 * KIB, 5 * MIB)):
        write(work / f"f{k}", noise(20 * MIB, k))
        backups = Backups(work)
        backups.take(judge=change_after_scan(lambda root, k=k, size=size: write(root / f"f{k}", noise(size, 9))))
        assert backups.restored(tmp_path / f"r{k}") == read_tree(work)
        assert backups.take().unchanged


def facts_of(backups: Backups) -> dict[bytes, tuple[str, str]]:
    assert backups.base is not None
    return {fact.path: (fact.cls, fact.reason) for fact in backups.base.checkpoints}


@pytest.mark.parametrize("cached", [False, True], ids=["read", "known"])
@pytest.mark.parametrize("how", ["changed", "vanished", "added", "replaced"])
def test_a_checkpoint_that_moves_while_it_is_stored_is_torn(filled: Path, how: str, cached: bool) -> None:
    here = filled / "out/checkpoint-10"
    acts: dict[str, Callable[[Path], object]] = {
        "changed": lambda root: write(here / "state.json", b"{}"),
        "vanished": lambda root: (here / "model.bin").unlink(),
        "added": lambda root: write(here / "more", b"x"),
        "replaced": lambda root: (write(here / "new", b"x"), (here / "new").rename(here / "model.bin")),
    }
    backups = Backups(filled, judge=judge())
    if cached:
        backups.take()
        age(filled, backups)
    backups.take(judge=change_after_scan(acts[how], judge()))
    facts = facts_of(backups)
    if how == "vanished" and cached:  # no loss: its content is in the snapshot
        assert facts[b"out/checkpoint-10"] == ("resumable", "")
    else:
        assert facts[b"out/checkpoint-10"][0] == "torn"
        assert "while it was being stored" in facts[b"out/checkpoint-10"][1]
    assert facts[b"out/checkpoint-20"] == ("resumable", "")
    backups.take()
    assert facts_of(backups)[b"out/checkpoint-10"] == ("resumable", "")


def test_a_checkpoint_that_moves_while_others_are_read_is_torn_too(filled: Path) -> None:
    backups = Backups(filled, judge=judge(), options=SLOW)
    late = once(lambda: write(filled / "out/checkpoint-20/state.json", b"{}"), after_bytes=12 * MIB)
    backups.take(progress=late)
    assert facts_of(backups)[b"out/checkpoint-20"][0] == "torn"


def test_what_is_no_file_is_named_once_and_no_news(work: Path, tmp_path: Path) -> None:
    write(work / "fine", b"1")
    write(work / "checkpoint-1/x", b"2")
    (work / "checkpoint-1/loop").symlink_to("loop")
    backups = Backups(work, judge=judge())
    assert backups.take().skipped == ()
    os.mkfifo(work / "pipe")
    uploaded = backups.take()
    assert [skip.path for skip in uploaded.skipped] == [b"pipe"]
    assert uploaded.manifest.skipped == uploaded.skipped
    assert backups.take().unchanged


def test_a_file_that_may_not_be_read_is_named_and_its_checkpoint_is_not_resumable() -> None:
    with tempfile.TemporaryDirectory() as made:  # pytest's own directories are closed to other users
        root = Path(made)
        root.chmod(0o755)
        for path in ("checkpoint-1/a", "checkpoint-2/a", "small", "big"):
            write(root / path, noise(400 * KIB if path == "big" else 100, 1))
        for path in ("checkpoint-1/a", "big"):
            (root / path).chmod(0)
        backups = Backups(root, judge=judge())
        was = os.geteuid()
        os.seteuid(was or 65534)  # root may read everything
        try:
            uploaded = backups.take()
        finally:
            os.seteuid(was)
    assert [skip.path for skip in uploaded.skipped] == [b"big", b"checkpoint-1/a"]
    assert uploaded.vanished == ()
    assert uploaded.files == 2
    assert facts_of(backups) == {
        b"checkpoint-1": ("torn", "a could not be read"),
        b"checkpoint-2": ("resumable", ""),
    }


def test_entries_hold_files_only_with_content(filled: Path) -> None:
    backups = Backups(filled)
    backups.take()
    assert backups.base is not None
    for found in backups.base.entries:
        if found.kind != FILE:
            assert (found.extents, found.digest) == ((), b"")
    assert entry(backups, b"data.bin").digest == b""
    assert len(entry(backups, b"src/0/m3.py").digest) == 16


CHILD = """
import sys
from pathlib import Path
from spotwarp.clock import SystemClock, SystemRng
from spotwarp.persistence.backup import BackupOptions
from spotwarp.persistence.store.local import LocalStore
from spotwarp.testing.backups import Backups

store = LocalStore(Path(sys.argv[2]), clock=SystemClock(), rng=SystemRng())
uploaded = Backups(Path(sys.argv[1]), store=store, options=BackupOptions(workers=4)).take()
(peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
print(uploaded.read_bytes, int(peak) << 10)  # ru_maxrss would count the parent's memory
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_workspace(work: Path, tmp_path: Path) -> None:
    block = noise(MIB, 1)
    with (work / "weights").open("wb") as file:
        for k in range(1024):
            file.write(block[k:] + block[:k])
    ran = subprocess.run([sys.executable, "-c", CHILD, work, tmp_path / "store"], capture_output=True, check=True)
    read, peak = map(int, ran.stdout.split())
    assert read == 1 << 30
    assert peak < 280 * MIB
