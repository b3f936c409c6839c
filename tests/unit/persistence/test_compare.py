"""What separates a workspace from a snapshot: content decides."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock
from spotwarp.persistence.compare import LocalFile, hash_local, plan
from spotwarp.persistence.manifest import DIRECTORY, FILE, SYMLINK, Entry
from spotwarp.persistence.restore import FetchOptions, fetch
from spotwarp.testing.snapshots import SnapshotBuilder
from spotwarp.testing.stores import MemoryStore

RANDOM = os.urandom(100_000)


def test_plan_sorts_every_path_into_its_place() -> None:
    def entry(path: bytes, kind: int = FILE, size: int = 3, target: bytes = b"") -> Entry:
        return Entry(path, kind, 0o644, 0, size, (), target)

    entries = [
        entry(b"same"),
        entry(b"changed"),
        entry(b"longer"),
        entry(b"missing"),
        entry(b"dir", DIRECTORY),
        entry(b"was-dir"),
        entry(b"link", SYMLINK, 0, b"x"),
        entry(b"link-elsewhere", SYMLINK, 0, b"x"),
    ]
    asked: list[bytes] = []

    def holds(answer: bool) -> LocalFile:
        return LocalFile(FILE, 3, holds=lambda entry: asked.append(entry.path) is None and answer)

    local = {
        b"same": holds(True),
        b"changed": holds(False),
        b"longer": LocalFile(FILE, 4, holds=lambda entry: bool(asked.append(entry.path)) or True),
        b"dir": LocalFile(DIRECTORY),
        b"was-dir": LocalFile(DIRECTORY),
        b"link": LocalFile(SYMLINK, target=b"x"),
        b"link-elsewhere": LocalFile(SYMLINK, target=b"y"),
        b"mine": holds(True),
        b"dropped": holds(True),
    }
    found = plan(entries, local, {b"dropped", b"same"})
    assert [entry.path for entry in found.keep] == [b"same", b"dir", b"link"]
    assert [entry.path for entry in found.fetch] == [b"changed", b"longer", b"missing", b"was-dir", b"link-elsewhere"]
    assert found.differing == (b"changed", b"longer", b"was-dir", b"link-elsewhere")
    assert found.gone == (b"dropped",)
    assert found.extra == (b"mine",)
    assert asked == [b"same", b"changed"]  # the expensive question only where kind and size agree


@pytest.fixture
def build() -> SnapshotBuilder:
    made = SnapshotBuilder()
    made.bundle({b"small": b"hello", b"empty": b""})
    made.file(b"large", RANDOM + bytes(100_000) + RANDOM, chunk=50_000)
    made.link(b"link", b"small")
    made.directory(b"dir")
    return made


@pytest.fixture
def root(build: SnapshotBuilder, tmp_path: Path) -> Path:
    store = MemoryStore()
    made = build.store_in(store)
    options = FetchOptions(workers=1, sync=False)
    fetch(store=store, manifest=made.manifest, staging=tmp_path / "w", clock=SystemClock(), options=options)
    build.base = made.manifest
    return tmp_path / "w"


def same(root: Path, build: SnapshotBuilder, path: str) -> bool:
    assert build.base is not None
    entry = next(entry for entry in build.base.entries if entry.path == os.fsencode(path))
    return hash_local(root, entry, build.base.blobs)


def test_what_was_restored_matches(root: Path, build: SnapshotBuilder) -> None:
    for path in ("small", "empty", "large", "link", "dir"):
        assert same(root, build, path), path


@pytest.mark.parametrize("at", [0, 49_999, 99_999, 150_000, 199_999, 200_000, 299_999])
def test_one_changed_byte_is_seen_also_in_a_hole(root: Path, build: SnapshotBuilder, at: int) -> None:
    with (root / "large").open("r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ 1]))
    assert not same(root, build, "large")


def test_zeros_written_out_equal_a_hole(root: Path, build: SnapshotBuilder) -> None:
    (root / "large").write_bytes(RANDOM + bytes(100_000) + RANDOM)
    assert same(root, build, "large")


def test_same_size_and_time_prove_nothing(root: Path, build: SnapshotBuilder) -> None:
    """A45."""
    before = (root / "small").stat()
    (root / "small").write_bytes(b"HELLO")
    os.utime(root / "small", ns=(before.st_mtime_ns, before.st_mtime_ns))
    assert not same(root, build, "small")


def test_another_kind_or_length_or_nothing(root: Path, build: SnapshotBuilder) -> None:
    (root / "small").write_bytes(b"hello, world")
    assert not same(root, build, "small")
    (root / "empty").unlink()
    assert not same(root, build, "empty")
    (root / "empty").symlink_to("large")
    assert not same(root, build, "empty")
    (root / "link").unlink()
    (root / "link").symlink_to("large")
    assert not same(root, build, "link")
    (root / "dir").rmdir()
    (root / "dir").write_bytes(b"")
    assert not same(root, build, "dir")
    (root / "large").unlink()
    os.mkfifo(root / "large")  # opening it would hang
    assert not same(root, build, "large")
