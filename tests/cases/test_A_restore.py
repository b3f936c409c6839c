"""Cases of restoring: full disks, kills half-way, sparse files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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
