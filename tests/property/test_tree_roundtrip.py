"""Any tree comes back: by path bytes, kind, content, mode, mtime in ns and link target (TREE)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwarp.clock import SystemClock, SystemRng
from spotwarp.persistence.backup import BackupOptions, Uploaded, backup
from spotwarp.persistence.check import check
from spotwarp.persistence.compare import hash_local
from spotwarp.persistence.excludes import Excludes
from spotwarp.persistence.install import install
from spotwarp.persistence.manifest import Manifest
from spotwarp.persistence.restore import FetchOptions, fetch
from spotwarp.persistence.statcache import StatCache
from spotwarp.testing.stores import MemoryStore
from spotwarp.testing.trees import Node, read_tree

KIB = 1 << 10


@dataclass(frozen=True)
class File:
    """Pieces at offsets; what lies between them and up to `size` is a hole."""

    pieces: tuple[tuple[int, int, int], ...]
    size: int
    mode: int
    mtime_ns: int


@dataclass(frozen=True)
class Directory:
    children: dict[bytes, object]
    mode: int
    mtime_ns: int


@dataclass(frozen=True)
class Link:
    target: bytes
    mtime_ns: int


names = st.one_of(
    st.sampled_from([b"a", b"b", b"a-b", b"a.b", b"A", b"checkpoint-10", b"checkpoint-9", "é".encode(), b"n" * 255]),
    st.binary(min_size=1, max_size=12).map(lambda name: name.replace(b"/", b"_").replace(b"\0", b"_")),
).filter(lambda name: name not in (b".", b"..", b".spotwarp"))

times = st.integers(min_value=0, max_value=1 << 62).map(lambda ns: ns % 4_000_000_000_000_000_000)

pieces = st.tuples(
    st.integers(0, 6 << 20), st.sampled_from([1, 100, 4 * KIB, 255 * KIB, 256 * KIB, 700 * KIB]), st.integers(0, 5)
)
files = st.builds(
    lambda parts, beyond, mode, mtime: File(
        tuple(parts), max((at + length for at, length, _ in parts), default=0) + beyond, mode, mtime
    ),
    st.lists(pieces, max_size=3),
    st.sampled_from([0, 0, 0, 1, 5 << 20, 1 << 40]),
    st.sampled_from([0o644, 0o600, 0o444, 0o755, 0o000, 0o7777]),
    times,
)
small_files = st.builds(
    lambda length, seed, mode, mtime: File(((0, length, seed),) if length else (), length, mode, mtime),
    st.integers(0, 2000),
    st.integers(0, 5),
    st.sampled_from([0o644, 0o600, 0o755]),
    times,
)
links = st.builds(Link, st.binary(min_size=1, max_size=40).map(lambda to: to.replace(b"\0", b"x")), times)
trees = st.recursive(
    st.one_of(small_files, small_files, files, links),
    lambda inner: st.builds(
        Directory, st.dictionaries(names, inner, max_size=4), st.sampled_from([0o755, 0o700, 0o555, 0o1777]), times
    ),
    max_leaves=12,
)
workspaces = st.builds(Directory, st.dictionaries(names, trees, max_size=4), st.just(0o755), times)


def build(path: bytes, node: object) -> None:
    if isinstance(node, Directory):
        os.makedirs(path, exist_ok=True)  # noqa: PTH103 - bytes
        for name, child in node.children.items():
            build(path + b"/" + name, child)
        os.chmod(path, node.mode)  # noqa: PTH101 - bytes
        os.utime(path, ns=(node.mtime_ns, node.mtime_ns))
    elif isinstance(node, Link):
        os.symlink(node.target, path)  # noqa: PTH211 - bytes
        os.utime(path, ns=(node.mtime_ns, node.mtime_ns), follow_symlinks=False)
    elif isinstance(node, File):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        for at, length, seed in node.pieces:
            os.pwrite(fd, bytes([seed, 0, seed * 7, 1]) * (length // 4) + b"x" * (length % 4), at)
        os.ftruncate(fd, node.size)
        os.fchmod(fd, node.mode)
        os.utime(fd, ns=(node.mtime_ns, node.mtime_ns))
        os.close(fd)


@contextmanager
def scratch() -> Iterator[Path]:
    """A fresh directory for every example."""
    path = Path(tempfile.mkdtemp())
    try:
        yield path
    finally:
        shutil.rmtree(path)


def back_up(store: MemoryStore, root: Path, base: Manifest | None, cache: StatCache, generation: int = 1) -> Uploaded:
    return backup(
        store=store,
        run="main",
        generation=generation,
        root=root,
        base=base,
        cache=cache,
        excludes=Excludes(defaults=()),
        judge=lambda root, entries: (),
        clock=SystemClock(),
        rng=SystemRng(),
        options=BackupOptions(workers=2),
    )


def restored(store: MemoryStore, manifest: Manifest, base: Path) -> dict[bytes, Node]:
    root = base / "restored"
    options = FetchOptions(workers=2, sync=False)
    fetch(store=store, manifest=manifest, staging=base / "staging", clock=SystemClock(), options=options)
    install(base / "staging", root, aside=base / "aside", sync=False)
    assert all(hash_local(root, entry, manifest.blobs) for entry in manifest.entries)
    return read_tree(root)


@settings(max_examples=60)
@given(workspaces)
def test_a_tree_comes_back(tree: Directory) -> None:
    with scratch() as base:
        root = base / "work"
        build(os.fsencode(root), tree)
        store = MemoryStore()
        made = back_up(store, root, None, StatCache())
        assert made.skipped == ()
        assert restored(store, made.manifest, base) == read_tree(root)


@pytest.mark.slow
@settings(max_examples=40)
@given(workspaces, workspaces)
def test_a_tree_built_on_another_comes_back(before: Directory, after: Directory) -> None:
    """Whatever the second snapshot reuses of the first; and both stay whole."""
    with scratch() as base:
        store, cache = MemoryStore(), StatCache()
        (base / "one").mkdir()
        (base / "two").mkdir()
        root = base / "work"
        build(os.fsencode(root), before)
        first = back_up(store, root, None, cache)
        expected = read_tree(root)
        root.rename(base / "old")
        build(os.fsencode(root), after)
        second = back_up(store, root, first.manifest, cache)
        assert restored(store, first.manifest, base / "one") == expected
        found = restored(store, second.manifest, base / "two")
        if second.unchanged:  # the times of directories alone are no reason for a snapshot
            assert found.keys() == read_tree(root).keys()
        else:
            assert found == read_tree(root)
        snapshots = [(1, first.manifest_id, first.address)]
        if not second.unchanged:
            snapshots.append((2, second.manifest_id, second.address))
        assert check(store=store, run="main", snapshots=snapshots, read_data=True).problems == ()
