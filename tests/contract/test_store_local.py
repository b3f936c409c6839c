"""What the directory store promises beyond the contract: durability, refusal, and what a crash leaves."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock, SystemRng
from spotwarp.errors import (
    AlreadyExists,
    BucketMissing,
    ObjectMissing,
    StoreDenied,
    StoreFull,
    StoreUnavailable,
    StoreUnsupported,
)
from spotwarp.persistence.store.local import LocalStore


def local(root: Path) -> LocalStore:
    return LocalStore(root, clock=SystemClock(), rng=SystemRng())


def temporaries(root: Path) -> list[str]:
    return sorted(path.name for path in (root / ".tmp").iterdir())


def test_a_missing_parent_is_a_missing_bucket_for_every_verb(tmp_path: Path) -> None:
    store = local(tmp_path / "not-mounted" / "project")
    verbs = [
        lambda: store.put("a", b""),
        lambda: store.put_new("a", b""),
        lambda: store.get("a"),
        lambda: store.get_range("a", 0, 1),
        lambda: store.head("a"),
        lambda: store.list("a"),
        lambda: store.delete("a"),
    ]
    for verb in verbs:
        with pytest.raises(BucketMissing):
            verb()
    assert not (tmp_path / "not-mounted").exists()


def test_reading_makes_no_directory(tmp_path: Path) -> None:
    store = local(tmp_path / "typo")
    assert list(store.list("")) == []
    with pytest.raises(ObjectMissing):
        store.get("config")
    assert not (tmp_path / "typo").exists()


def test_a_root_that_vanishes_is_not_made_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = local(root)
    store.put("a", b"1")
    root.rename(tmp_path / "elsewhere")
    for verb in (lambda: store.put("b", b"2"), lambda: store.get("a"), lambda: store.list("")):
        with pytest.raises(BucketMissing):
            verb()
    root.mkdir()
    with pytest.raises(BucketMissing):
        store.put("b", b"2")
    assert list(root.iterdir()) == []


def test_a_file_where_the_root_should_be(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("x")
    with pytest.raises(BucketMissing):
        local(tmp_path / "root").put("a", b"1")
    with pytest.raises(BucketMissing):
        local(tmp_path / "root").get("a")


def test_a_directory_removed_under_us_is_made_again(tmp_path: Path) -> None:
    store = local(tmp_path / "root")
    store.put("runs/main/a", b"1")
    (tmp_path / "root/runs/main/a").unlink()
    (tmp_path / "root/runs/main").rmdir()
    (tmp_path / "root/runs").rmdir()
    store.put("runs/main/b", b"2")
    store.put_new("runs/main/c", b"3")
    (tmp_path / "root/.tmp").rmdir()
    store.put_new("runs/main/d", b"4")
    assert [meta.key for meta in store.list("")] == ["runs/main/b", "runs/main/c", "runs/main/d"]


def test_foreign_things_in_the_way_are_named_not_overwritten(tmp_path: Path) -> None:
    store = local(tmp_path / "root")
    store.put("file", b"1")
    for verb in (lambda: store.put("file/below", b"2"), lambda: store.put_new("file/below", b"2")):
        with pytest.raises(StoreUnsupported):
            verb()
    store.put("dir/x", b"1")
    with pytest.raises(StoreUnsupported):
        store.put("dir", b"2")
    os.mkfifo(tmp_path / "root/dir/pipe")
    (tmp_path / "root/dir/link").symlink_to("x")
    with pytest.raises(ObjectMissing):
        store.get("dir/pipe")
    assert [meta.key for meta in store.list("dir")] == ["dir/x"]


def test_two_stores_of_one_directory_are_one_store(tmp_path: Path) -> None:
    one, other = local(tmp_path / "root"), local(tmp_path / "root")
    one.put_new("log/1", b"one")
    with pytest.raises(AlreadyExists):
        other.put_new("log/1", b"other")
    assert other.get("log/1") == b"one"


def test_nothing_temporary_is_left_or_listed(tmp_path: Path) -> None:
    store = local(tmp_path / "root")
    store.put("a", b"1")
    store.put_new("b", b"2")
    with pytest.raises(AlreadyExists):
        store.put_new("b", b"3")
    assert temporaries(tmp_path / "root") == []
    (tmp_path / "root/.tmp/4711-half").write_bytes(b"torn")
    assert [meta.key for meta in store.list("")] == ["a", "b"]
    with pytest.raises(ValueError, match="not a key"):
        store.get(".tmp/4711-half")


def test_only_the_old_leftovers_of_dead_writers_are_swept(tmp_path: Path) -> None:
    local(tmp_path / "root").put("a", b"1")
    old, young = tmp_path / "root/.tmp/1-old", tmp_path / "root/.tmp/2-young"
    old.write_bytes(b"x")
    young.write_bytes(b"x")
    day = SystemClock().wall().timestamp() - 25 * 3600
    os.utime(old, (day, day))
    local(tmp_path / "root").put("b", b"2")
    assert temporaries(tmp_path / "root") == ["2-young"]


@pytest.fixture
def small_files() -> Iterator[int]:
    """No file may grow beyond this many bytes: the nearest to a full disk without being root."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield 4096
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_said_so_and_harms_nothing(tmp_path: Path, small_files: int) -> None:
    store = local(tmp_path / "root")
    store.put("a", b"old")
    for verb in (store.put, store.put_new):
        with pytest.raises(StoreFull):
            verb("a" if verb == store.put else "b", b"x" * (small_files + 1))
    assert store.get("a") == b"old"
    assert [meta.key for meta in store.list("")] == ["a"]
    assert temporaries(tmp_path / "root") == []
    store.delete("a")
    store.put("a", b"room again")


def fail_with(code: int):  # type: ignore[no-untyped-def]
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errno.EROFS, StoreDenied),
        (errno.EACCES, StoreDenied),
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EIO, StoreUnavailable),
        (errno.ESTALE, StoreUnavailable),
    ],
)
@pytest.mark.parametrize("call", ["open", "write", "fsync", "link"])
def test_what_the_system_refuses_is_typed_and_leaves_the_old_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, error: type[Exception]
) -> None:
    store = local(tmp_path / "root")
    store.put("a", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail_with(code))
        with pytest.raises(error):
            store.put_new("b", b"new")
        if call != "link":
            with pytest.raises(error):
                store.put("a", b"new")
    assert store.get("a") == b"old"
    assert temporaries(tmp_path / "root") == []


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_without_hard_links_an_exclusive_rename_creates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    store = local(tmp_path / "root")
    monkeypatch.setattr(os, "link", fail_with(code))
    store.put_new("a", b"first")
    with pytest.raises(AlreadyExists):
        store.put_new("a", b"second")
    assert store.get("a") == b"first"
    assert temporaries(tmp_path / "root") == []


def test_a_lost_reply_to_link_is_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = local(tmp_path / "root")
    link = os.link

    def link_and_forget(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)  # what an NFS client does when the first answer is lost

    monkeypatch.setattr(os, "link", link_and_forget)
    store.put_new("a", b"mine")
    assert store.get("a") == b"mine"


def test_the_order_of_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content before name, name before return, and every new directory's own name too (I1)."""
    steps: list[str] = []
    root = tmp_path / "root"

    def path_of(fd: int) -> str:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        return "temporary" if path.parent.name == ".tmp" else path.relative_to(tmp_path).as_posix()

    fsync, link, rename = os.fsync, os.link, Path.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (steps.append(f"sync {path_of(fd)}"), fsync(fd))[1])
    monkeypatch.setattr(os, "link", lambda *args: (steps.append("link"), link(*args))[1])
    monkeypatch.setattr(Path, "rename", lambda self, target: (steps.append("rename"), rename(self, target))[1])
    store = local(root)
    store.put_new("runs/main/1", b"x")
    assert steps == ["sync .", "sync root", "sync root/runs", "sync temporary", "link", "sync root/runs/main"]
    steps.clear()
    store.put("runs/main/2", b"x")
    assert steps == ["sync temporary", "rename", "sync root/runs/main"]
    steps.clear()
    with pytest.raises(AlreadyExists):
        store.put_new("runs/main/1", b"x")
    assert steps == ["sync temporary", "link", "sync root/runs/main"], "another's entry may not be durable yet"
    steps.clear()
    local(root).put("runs/main/3", b"x")  # another process cannot know whether the first one synced the names
    assert steps == ["sync .", "sync root", "sync root/runs", "sync temporary", "rename", "sync root/runs/main"]


WRITER = """
import sys
from pathlib import Path
from spotwarp.clock import SystemClock, SystemRng
from spotwarp.persistence.store.local import LocalStore
store = LocalStore(Path(sys.argv[1]), clock=SystemClock(), rng=SystemRng())
n = 0
while True:
    n += 1
    store.put_new(f"log/{n:010d}", (b"%d." % n) * 100_000)
    store.put("beat", (b"%d." % n) * 100_000)
    print(n, flush=True)
"""


@pytest.mark.parametrize("acknowledged", [1, 7, 23])
def test_a_writer_killed_at_any_time_leaves_only_whole_objects(tmp_path: Path, acknowledged: int) -> None:
    root = tmp_path / "root"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    for _ in range(acknowledged):
        assert writer.stdout.readline(), "the writer died by itself"
    writer.kill()
    last = acknowledged + writer.stdout.read().count(b"\n")
    writer.wait()
    writer.stdout.close()
    store = local(root)
    entries = [meta.key for meta in store.list("log")]
    assert len(entries) in (last, last + 1)
    for n, key in enumerate(entries, 1):
        assert store.get(key) == (b"%d." % n) * 100_000
    assert store.get("beat") in [(b"%d." % n) * 100_000 for n in (last, last + 1)]
    store.put_new(f"log/{len(entries) + 1:010d}", b"life goes on")


@pytest.mark.deep
def test_a_small_disk_that_is_really_full(tmp_path: Path) -> None:
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", mount], check=True)
    try:
        store = local(mount / "root")
        store.put("a", b"x" * 400_000)
        with pytest.raises(StoreFull):
            store.put_new("b", b"x" * 800_000)
        assert [meta.key for meta in store.list("")] == ["a"]
        store.delete("a")
        store.put_new("b", b"x" * 800_000)
    finally:
        subprocess.run(["umount", "-l", mount], check=True)


@pytest.mark.deep
def test_a_read_only_disk_is_denied_and_still_read(tmp_path: Path) -> None:
    root = tmp_path / "root"
    local(root).put("a", b"1")
    subprocess.run(["mount", "--bind", root, root], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", root], check=True)
        store = local(root)
        assert store.get("a") == b"1"
        for verb in (lambda: store.put("b", b""), lambda: store.put_new("b", b""), lambda: store.delete("a")):
            with pytest.raises(StoreDenied):
                verb()
    finally:
        subprocess.run(["umount", "-l", root], check=True)
