"""Restore as an ordinary user: read-only files and directories must neither stop it nor a repeat of it.

Root may write anywhere, so these tests give up root for their length.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock
from spotwarp.errors import CorruptObject, WorkspaceFault
from spotwarp.persistence.install import install, set_aside, settle
from spotwarp.persistence.restore import FetchOptions, FetchReport, fetch
from spotwarp.testing.snapshots import SnapshotBuilder, Stored
from spotwarp.testing.stores import MemoryStore
from spotwarp.testing.trees import read_tree

NOBODY = 65534
CONTENT = os.urandom(40_000)


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory of an ordinary user, and this process as that user."""
    path = Path(tempfile.mkdtemp())
    root = os.geteuid() == 0
    if root:
        os.chown(path, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield path
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(path)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def read_only(store: MemoryStore) -> Stored:
    build = SnapshotBuilder()
    build.directory(b"locked", mode=0o555, mtime_ns=1)
    build.directory(b"locked/inner", mode=0o500, mtime_ns=2)
    build.file(b"locked/inner/large", CONTENT, chunk=10_000, mode=0o400)
    build.file(b"locked/secret", b"x" * 100, mode=0o000)
    build.new_pack()
    build.bundle({b"locked/small": b"small"}, mode=0o444)
    return build.store_in(store)


def restore(store: MemoryStore, made: Stored, staging: Path) -> FetchReport:
    options = FetchOptions(workers=1, sync=False)
    return fetch(store=store, manifest=made.manifest, staging=staging, clock=SystemClock(), options=options)


def modes(root: Path) -> dict[bytes, int]:
    os.seteuid(os.getuid())
    try:
        return {path: node.mode for path, node in read_tree(root).items()}
    finally:
        os.seteuid(NOBODY if os.getuid() == 0 else os.getuid())


def test_read_only_things_are_restored_and_installed(store: MemoryStore, base: Path) -> None:
    made = read_only(store)
    restore(store, made, base / "staging")
    install(base / "staging", base / "work", aside=base / "aside", sync=False)
    assert modes(base / "work") == {entry.path: entry.mode for entry in made.manifest.entries}


def test_an_interrupted_fetch_of_read_only_things_goes_on(store: MemoryStore, base: Path) -> None:
    made = read_only(store)
    key = next(key for key in store.contents() if key.endswith("1"))
    whole = store.get(key)
    store.delete(key)
    with pytest.raises(CorruptObject):
        restore(store, made, base / "staging")
    store.put(key, whole)
    report = restore(store, made, base / "staging")
    assert report.kept_bytes >= len(CONTENT)
    damaged = base / "staging/locked/inner/large"
    damaged.chmod(0o600)
    damaged.write_bytes(CONTENT[:10_000] + bytes(10_000) + CONTENT[20_000:])
    damaged.chmod(0o400)
    restore(store, made, base / "staging")
    assert damaged.read_bytes() == CONTENT
    assert modes(base / "staging")[b"locked/inner/large"] == 0o400


def test_read_only_local_directories_are_merged_and_set_aside(store: MemoryStore, base: Path) -> None:
    made = read_only(store)
    (base / "work/locked/inner").mkdir(parents=True)
    (base / "work/locked/small").mkdir()
    (base / "work/locked/small/own").write_text("own")
    for path in ("locked/small", "locked/inner", "locked"):
        (base / "work" / path).chmod(0o555)
    restore(store, made, base / "staging")
    install(base / "staging", base / "work", aside=base / "aside", sync=False)
    assert modes(base / "work") == {entry.path: entry.mode for entry in made.manifest.entries}
    assert (base / "aside/locked/small/own").read_text() == "own"
    (base / "work/locked").chmod(0o755)
    assert set_aside(base / "work", [b"locked/inner"], base / "aside") == {b"locked/inner": b"locked/inner"}


def test_what_may_not_be_written_is_told_in_words(store: MemoryStore, base: Path) -> None:
    (base / "closed").mkdir(mode=0o555)
    with pytest.raises(WorkspaceFault, match="cannot be filled: Permission denied"):
        restore(store, read_only(store), base / "closed/staging")


def test_settle_gives_kept_things_their_modes_and_times(store: MemoryStore, base: Path) -> None:
    build = SnapshotBuilder()
    build.directory(b"d", mode=0o750, mtime_ns=5)
    build.bundle({b"d/kept": b"x", b"d/absent": b"x", b"d/now-a-link": b"x"}, mode=0o640, mtime_ns=7)
    (base / "d").mkdir()
    (base / "d/kept").write_text("x")
    (base / "d/now-a-link").symlink_to("kept")
    settle(base, build.entries)
    tree = read_tree(base)
    assert (tree[b"d"].mode, tree[b"d"].mtime_ns) == (0o750, 5)
    assert (tree[b"d/kept"].mode, tree[b"d/kept"].mtime_ns) == (0o640, 7)
    assert set(tree) == {b"d", b"d/kept", b"d/now-a-link"}
