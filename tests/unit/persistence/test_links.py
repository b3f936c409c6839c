"""Hard links: read once, sent once, recorded, and one file again after a restore; a copy where that cannot be."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from spotwarp.clock import SystemClock
from spotwarp.errors import CorruptObject
from spotwarp.persistence.entries import checked, linked, renamed_for_torn
from spotwarp.persistence.install import install
from spotwarp.persistence.manifest import FILE, CheckpointFact, Entry
from spotwarp.persistence.restore import FetchOptions, FetchReport, fetch
from spotwarp.persistence.scan import Scanned
from spotwarp.testing.backups import Backups
from spotwarp.testing.stores import Crash, Fault
from spotwarp.testing.trees import read_tree

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def work(tmp_path: Path) -> Path:
    root = tmp_path / "w"
    for name in ("cache", "venv/lib"):
        (root / name).mkdir(parents=True)
    for name, size in (("big", 9 * MIB), ("small", 10 * KIB), ("empty", 0)):
        (root / "cache" / name).write_bytes(os.urandom(size))
        os.link(root / "cache" / name, root / "venv/lib" / name)
    os.link(root / "cache/big", root / "a-third-name")
    return root


def companies(root: Path) -> set[frozenset[bytes]]:
    """The paths beneath `root` that are one file."""
    found: dict[int, set[bytes]] = {}
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            found.setdefault(path.stat().st_ino, set()).add(os.fsencode(path.relative_to(root)))
    return {frozenset(names) for names in found.values() if len(names) > 1}


def links(backups: Backups) -> dict[bytes, bytes]:
    assert backups.base is not None
    return {entry.path: entry.link for entry in backups.base.entries if entry.link}


def test_links_are_read_once_sent_once_and_links_again(work: Path, tmp_path: Path) -> None:
    backups = Backups(work)
    uploaded = backups.take()
    assert uploaded.read_bytes == 9 * MIB + 10 * KIB
    assert uploaded.stored_bytes < 9.2 * MIB
    assert uploaded.bytes == 3 * 9 * MIB + 2 * 10 * KIB
    assert links(backups) == {
        b"cache/big": b"a-third-name",
        b"venv/lib/big": b"a-third-name",
        b"venv/lib/small": b"cache/small",
        b"venv/lib/empty": b"cache/empty",
    }
    assert backups.restored(tmp_path / "r") == read_tree(work)
    assert companies(tmp_path / "r") == companies(work)
    assert backups.take().unchanged


def test_a_new_name_or_a_lost_one_puts_no_pack(work: Path, tmp_path: Path) -> None:
    backups = Backups(work)
    backups.take()
    packs = backups.packs_put()
    os.link(work / "cache/small", work / "another")
    (work / "a-third-name").unlink()
    assert not backups.take().unchanged
    assert backups.packs_put() == packs
    assert links(backups)[b"venv/lib/big"] == b"cache/big"
    assert backups.restored(tmp_path / "r") == read_tree(work)
    assert companies(tmp_path / "r") == companies(work)


def test_other_names_outside_or_excluded_make_a_plain_file(tmp_path: Path) -> None:
    work = tmp_path / "w"
    (work / "skip").mkdir(parents=True)
    (work / "f").write_bytes(b"content")
    os.link(work / "f", tmp_path / "outside")
    os.link(work / "f", work / "skip/f")
    backups = Backups(work, exclude=["skip/"])
    backups.take()
    assert links(backups) == {}
    assert backups.restored(tmp_path / "r").keys() == {b"f"}


def after_scan(*acts: tuple[str, str]) -> object:
    """A judge in whose time names are renamed (or, with an empty new one, removed)."""

    def say(root: Path, entries: Sequence[Scanned]) -> tuple[()]:
        for old, new in acts:
            (root / old).replace(root / new) if new else (root / old).unlink()
        return ()

    return say


@pytest.mark.parametrize("name", ["big", "small"])
def test_a_name_that_goes_before_it_is_read_takes_no_other_with_it(work: Path, tmp_path: Path, name: str) -> None:
    backups = Backups(work)
    first = "a-third-name" if name == "big" else f"cache/{name}"
    backups.take(judge=after_scan((first, "")))  # type: ignore[arg-type]
    restored = backups.restored(tmp_path / "r")
    assert restored[b"venv/lib/" + name.encode()] == read_tree(work)[b"venv/lib/" + name.encode()]
    assert first.encode() not in restored


@pytest.mark.parametrize("size", [9 * MIB + 1, 20 * KIB])
def test_a_name_that_becomes_another_file_lends_no_content(work: Path, tmp_path: Path, size: int) -> None:
    """By the time of reading, what was the first name of a file is that of another file."""
    (work / "new").write_bytes(os.urandom(size))
    backups = Backups(work)
    backups.take(judge=after_scan(("new", "a-third-name"), ("cache/small", "gone")))  # type: ignore[arg-type]
    restored, now = backups.restored(tmp_path / "r"), read_tree(work)
    for path in (b"a-third-name", b"cache/big", b"venv/lib/big", b"venv/lib/small"):
        assert restored[path].content == now[path].content, path
    assert restored[b"a-third-name"].content != restored[b"cache/big"].content


def test_a_checkpoint_made_of_links_goes_first_under_its_own_name(work: Path) -> None:
    (work / "checkpoint-9").mkdir()
    os.link(work / "cache/big", work / "checkpoint-9/model.bin")
    (work / "first").write_bytes(os.urandom(MIB))

    def judge(root: Path, entries: Sequence[Scanned]) -> list[CheckpointFact]:
        return [CheckpointFact(b"checkpoint-9", "resumable", step=9)]

    backups = Backups(work)
    uploaded = backups.take(judge=judge)
    model = next(entry for entry in uploaded.manifest.entries if entry.path == b"checkpoint-9/model.bin")
    packs = {uploaded.manifest.blobs[extent.blob].pack for extent in model.extents}
    others = {
        uploaded.manifest.blobs[extent.blob].pack
        for entry in uploaded.manifest.entries
        if entry.path in (b"first", b"cache/small")
        for extent in entry.extents
    }
    assert not packs & others


# ------------------------------------------------------------------------------------------------------- restoring


def restore(backups: Backups, into: Path, *wanted: bytes) -> FetchReport:
    assert backups.base is not None
    staging = into.with_name(into.name + ".staging")
    report = fetch(
        store=backups.calls,
        manifest=backups.base,
        wanted=[e for e in backups.base.entries if e.path in wanted] if wanted else None,
        staging=staging,
        clock=SystemClock(),
        options=FetchOptions(workers=2, sync=False),
    )
    install(staging, into, aside=into.with_name(into.name + ".aside"), sync=False)
    return report


def test_parts_of_a_file_with_many_names_are_restored_as_a_copy_and_counted(work: Path, tmp_path: Path) -> None:
    backups = Backups(work)
    backups.take()
    report = restore(backups, tmp_path / "one", b"venv/lib/big")
    assert (report.copies, report.bytes) == (1, 9 * MIB)
    assert (tmp_path / "one/venv/lib/big").read_bytes() == (work / "cache/big").read_bytes()
    report = restore(backups, tmp_path / "two", b"venv/lib/big", b"cache/big", b"cache/small")
    assert (report.copies, report.bytes) == (1, 9 * MIB + 10 * KIB)
    assert companies(tmp_path / "two") == {frozenset({b"cache/big", b"venv/lib/big"})}
    assert restore(backups, tmp_path / "all").copies == 0


def test_into_a_tree_that_has_some_of_it(work: Path, tmp_path: Path) -> None:
    """What is there keeps its own file; nobody else's file is written through a link of it."""
    backups = Backups(work)
    backups.take()
    into = tmp_path / "r"
    (into / "cache").mkdir(parents=True)
    (into / "cache/small").write_bytes(b"old")
    os.link(into / "cache/small", tmp_path / "kept")
    restore(backups, into)
    assert (tmp_path / "kept").read_bytes() == b"old"
    assert {path: node.content for path, node in read_tree(into).items()} == {
        path: node.content for path, node in read_tree(work).items()
    }
    assert companies(into) == companies(work)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EMLINK])
def test_where_no_link_can_be_made_there_is_a_copy(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with (work / "cache/holes").open("wb") as file:
        file.truncate(64 * MIB)
        file.seek(20 * MIB)
        file.write(b"x")
    (work / "cache/holes").chmod(0o400)
    os.link(work / "cache/holes", work / "venv/holes")
    backups = Backups(work)
    backups.take()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    assert restore(backups, tmp_path / "r").copies == 5
    assert read_tree(tmp_path / "r") == read_tree(work)
    assert companies(tmp_path / "r") == set()
    assert (tmp_path / "r/venv/holes").stat().st_blocks * 512 <= 8 * MIB


def test_an_interrupted_restore_goes_on_to_the_same_links(work: Path, tmp_path: Path) -> None:
    backups = Backups(work)
    backups.take()
    for skip in range(3):
        backups.calls.add(Fault("get_range", skip=skip, crash=True))
        try:
            restore(backups, tmp_path / f"r{skip}")
        except Crash:
            backups.calls.heal()
            restore(backups, tmp_path / f"r{skip}")
        assert read_tree(tmp_path / f"r{skip}") == read_tree(work)
        assert companies(tmp_path / f"r{skip}") == companies(work)


def test_killed_between_two_links_it_goes_on(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backups = Backups(work)
    backups.take()
    real, left = os.link, iter([True, False])

    def link(*words: object, **more: object) -> None:
        if not next(left, True):
            raise Crash
        real(*words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(Crash):
        restore(backups, tmp_path / "r")
    restore(backups, tmp_path / "r")
    assert read_tree(tmp_path / "r") == read_tree(work)
    assert companies(tmp_path / "r") == companies(work)


# ------------------------------------------------------------------------------------------------ what is accepted


A = Entry(b"a", FILE, 0o644, 1, 0)
B = Entry(b"b", FILE, 0o644, 1, 0, link=b"a")
C = Entry(b"c", FILE, 0o644, 1, 0, link=b"a")


def test_the_first_that_is_wanted_leads() -> None:
    assert linked([A, B, C]) == {b"b": b"a", b"c": b"a"}
    assert linked([B, C]) == {b"c": b"b"}
    assert linked([C]) == {}


@pytest.mark.parametrize("change", [{"mode": 0o600}, {"mtime_ns": 2}, {"size": 5}, {"digest": b"d" * 16}])
def test_names_of_one_file_that_differ_are_damage(change: dict[str, object]) -> None:
    with pytest.raises(CorruptObject, match="said to be one file"):
        checked([A, msgspec.structs.replace(B, **change)])


def test_links_of_links_lead_nowhere_bad() -> None:
    entries = [msgspec.structs.replace(A, link=b"c"), B, msgspec.structs.replace(C, link=b"b")]
    checked(entries)
    assert set(linked(entries).values()) <= {entry.path for entry in entries}


def test_links_move_with_a_torn_checkpoint(work: Path) -> None:
    backups = Backups(work)
    uploaded = backups.take()
    torn = msgspec.structs.replace(uploaded.manifest, checkpoints=(CheckpointFact(b"cache", "torn"),))
    renamed = renamed_for_torn(torn, 7)
    checked(renamed.entries)
    assert linked(renamed.entries)[b"venv/lib/small"] == b"cache.torn-7/small"
