"""Cases of restoring: full disks, kills half-way, sparse files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock, SystemRng
from spotwarp.errors import WorkspaceFault
from spotwarp.persistence import restore as restoring
from spotwarp.persistence import staging as stage
from spotwarp.persistence.install import install
from spotwarp.persistence.layout import manifest_key
from spotwarp.persistence.manifest import Extent, decode
from spotwarp.persistence.restore import FetchOptions, fetch
from spotwarp.persistence.store.local import LocalStore
from spotwarp.testing.backups import Backups
from spotwarp.testing.checkpoints import huggingface_files, write_files
from spotwarp.testing.snapshots import SnapshotBuilder, Stored
from spotwarp.testing.stores import MemoryStore
from spotwarp.testing.trees import read_tree

MIB = 1 << 20


def large(store: object, size: int = 6 * MIB) -> Stored:
    """A snapshot of `size` bytes in packs of half a MiB."""
    build = SnapshotBuilder()
    build.directory(b"out")
    for number in range(size // (MIB // 2)):
        build.new_pack()
        build.file(b"out/part-%d" % number, os.urandom(MIB // 2), chunk=100_000)
    build.link(b"latest", b"out/part-0")
    return build.store_in(store)  # type: ignore[arg-type]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8M", "spotwarp-test", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


@pytest.mark.deep
def test_A10_a_sparse_file_fits_a_small_disk(small_disk: Path) -> None:
    store, build = MemoryStore(), SnapshotBuilder()
    build.extents(b"sparse", 300 << 30, [Extent(1 << 30, 4096, build.blob(os.urandom(4096)), 0)])
    made = build.store_in(store)
    fetch(store=store, manifest=made.manifest, staging=small_disk / "staging", clock=SystemClock())
    install(small_disk / "staging", small_disk / "work", aside=small_disk / "aside")
    about = (small_disk / "work/sparse").stat()
    assert (about.st_size, about.st_blocks * 512) == (300 << 30, 4096)


@pytest.mark.deep
def test_A11_a_linked_tree_fits_where_its_copies_would_not(small_disk: Path, tmp_path: Path) -> None:
    work = tmp_path / "w"
    (work / "c").mkdir(parents=True)
    (work / "c/a").write_bytes(os.urandom(5 * MIB))
    shutil.copytree(work / "c", work / "venv", copy_function=os.link)
    backups = Backups(work)
    backups.take()
    assert backups.restored(small_disk / "w") == read_tree(work)
    assert (small_disk / "w/c/a").stat().st_nlink == 2


@pytest.mark.parametrize("owner", [0, 1234, 65534])
def test_A46_owners_are_nobodys_business(owner: int) -> None:
    """Whoever restores owns what is restored; content and modes are right, and nothing fails for it."""
    with tempfile.TemporaryDirectory() as made:
        base = Path(made)
        base.chmod(0o777)
        (base / "w/d").mkdir(parents=True)
        for name, mode in (("d/f", 0o640), ("g", 0o4755), ("h", 0o400)):
            (base / "w" / name).write_bytes(os.urandom(1000))
            if os.geteuid() == 0:
                os.chown(base / "w" / name, owner, owner)
            (base / "w" / name).chmod(mode)
        backups = Backups(base / "w")
        backups.take()
        was, restorer = os.geteuid(), 65534 if owner != 65534 else 0
        os.seteuid(restorer if was == 0 else was)
        try:
            restored = backups.restored(base / "r")
            assert {path.stat().st_uid for path in (base / "r").rglob("*")} == {os.geteuid()}
            again = Backups(base / "r")
            assert again.take().skipped == (), "and it can be stored again from there"
        finally:
            os.seteuid(was)
        assert restored == read_tree(base / "w")


def test_B03_times_come_back_to_the_nanosecond_directories_last(tmp_path: Path) -> None:
    """A trainer that rotates by time deletes what it would have deleted before."""
    work, order = tmp_path / "w", [3, 1, 7, 5, 2, 8, 4, 6]
    for rank, step in enumerate(order):
        place = work / f"out/checkpoint-{step}"
        write_files(place, huggingface_files(step))
        for path in (*place.iterdir(), place):
            os.utime(path, ns=(0, 1_700_000_000_000_000_000 + rank))
    os.utime(work / "out", ns=(0, 1_600_000_000_123_456_789))
    backups = Backups(work)
    backups.take()
    assert backups.base is not None
    options = FetchOptions(workers=8)
    fetch(store=backups.calls, manifest=backups.base, staging=tmp_path / "s", clock=SystemClock(), options=options)
    install(tmp_path / "s", tmp_path / "r", aside=tmp_path / "aside")
    assert read_tree(tmp_path / "r") == read_tree(work)
    by_time = sorted((tmp_path / "r/out").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert [path.name for path in by_time] == [f"checkpoint-{step}" for step in order]


@pytest.mark.deep
def test_A43_too_small_a_disk_is_refused_up_front(small_disk: Path) -> None:
    store = MemoryStore()
    made = large(store, 12 * MIB)
    with pytest.raises(WorkspaceFault, match=r"needs 12\.\d MiB, has [78]\.\d MiB; nothing was written"):
        fetch(store=store, manifest=made.manifest, staging=small_disk / "staging", clock=SystemClock())
    assert list((small_disk / "staging").iterdir()) == []


@pytest.mark.deep
def test_A43_a_disk_that_fills_up_meanwhile(small_disk: Path) -> None:
    """No file under its final name; with room made, the same call continues."""
    store = MemoryStore()
    made = large(store)
    other = small_disk / "other"

    def fill(_: restoring.FetchProgress) -> None:
        if not other.exists():
            free = os.statvfs(small_disk).f_bavail * 4096
            other.write_bytes(bytes(max(free - MIB, 0)))

    options = FetchOptions(workers=1)
    args = {"store": store, "manifest": made.manifest, "staging": small_disk / "staging", "clock": SystemClock()}
    with pytest.raises(WorkspaceFault, match="No space left"):
        fetch(**args, options=options, progress=fill)  # type: ignore[arg-type]
    with pytest.raises(WorkspaceFault, match="not complete"):
        install(small_disk / "staging", small_disk / "work", aside=small_disk / "aside")
    assert not (small_disk / "work").exists()
    other.unlink()
    report = fetch(**args, options=options)  # type: ignore[arg-type]
    assert report.kept_bytes > 0
    install(small_disk / "staging", small_disk / "work", aside=small_disk / "aside")
    assert {e.path for e in made.manifest.entries} == set(read_tree(small_disk / "work"))


CHILD = """
import os, signal, sys
from pathlib import Path
from spotwarp.clock import SystemClock, SystemRng
from spotwarp.persistence.layout import manifest_key
from spotwarp.persistence.manifest import decode
from spotwarp.persistence.restore import FetchOptions, fetch
from spotwarp.persistence.store.local import LocalStore
from spotwarp.testing.stores import Fault, FaultyStore

remote, manifest, staging, call = sys.argv[1:]
store = LocalStore(Path(remote), clock=SystemClock(), rng=SystemRng())
dies = FaultyStore(store, Fault("get_range", skip=int(call), hook=lambda: os.kill(os.getpid(), signal.SIGKILL)))
fetch(
    store=dies,
    manifest=decode(store.get(manifest_key("main", manifest)), "manifest"),
    staging=Path(staging),
    clock=SystemClock(),
    options=FetchOptions(workers=2),
)
"""


@pytest.mark.parametrize("percent", [0, 20, 50, 90])
def test_A44_a_killed_restore_continues(tmp_path: Path, percent: int) -> None:
    store = LocalStore(tmp_path / "remote", clock=SystemClock(), rng=SystemRng())
    made = large(store)
    manifest = decode(store.get(manifest_key("main", made.manifest_id)), "manifest", expected=made.address)
    staging = tmp_path / "staging"
    skip = len(manifest.packs) * percent // 100
    child = [sys.executable, "-c", textwrap.dedent(CHILD), tmp_path / "remote", made.manifest_id, staging, str(skip)]
    died = subprocess.run(child, check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    assert stage.ready(staging) is None
    with pytest.raises(WorkspaceFault, match="not complete"):
        install(staging, tmp_path / "work", aside=tmp_path / "aside")
    report = fetch(store=store, manifest=manifest, staging=staging, clock=SystemClock())
    assert (report.kept_bytes > 0) == (percent > 0)
    install(staging, tmp_path / "work", aside=tmp_path / "aside")
    fetch(store=store, manifest=manifest, staging=tmp_path / "fresh", clock=SystemClock())
    assert read_tree(tmp_path / "work") == read_tree(tmp_path / "fresh")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "fresh.ready", "remote", "work"]
