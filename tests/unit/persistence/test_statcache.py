"""The stat cache: believed only where a change must have shown, and never a reason to fail."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from spotwarp.persistence.manifest import FILE
from spotwarp.persistence.scan import Scanned
from spotwarp.persistence.statcache import Record, StatCache
from spotwarp.persistence.table import Table

SECOND = 1_000_000_000
WRITTEN = 1_700_000_000 * SECOND + 123_456_789
ENTRY = Scanned(b"a/f", FILE, 0o644, WRITTEN, WRITTEN, 10, 77, 5, 8)
DIGESTS = b"d" * 16


def record(entry: Scanned = ENTRY, *, read_ns: int = WRITTEN + 60 * SECOND) -> Record:
    return Record(entry.path, entry.size, entry.mtime_ns, entry.ctime_ns, entry.ino, entry.dev, read_ns, DIGESTS)


def changed(**fields: int | bytes) -> Scanned:
    return msgspec.structs.replace(ENTRY, **fields)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "w").mkdir()
    return tmp_path / "w"


def test_an_unchanged_file_has_its_hashes() -> None:
    assert StatCache([record()]).lookup(ENTRY) == DIGESTS


@pytest.mark.parametrize("field", ["size", "mtime_ns", "ctime_ns", "ino", "dev"])
def test_whatever_moved_the_file_is_read_again(field: str) -> None:
    assert StatCache([record()]).lookup(changed(**{field: getattr(ENTRY, field) + 1})) is None


def test_a_file_below_a_renamed_directory_keeps_its_hashes() -> None:
    assert StatCache([record()]).lookup(changed(path=b"b/f")) == DIGESTS


@pytest.mark.parametrize(
    ("written", "read_after", "trusted"),
    [
        (WRITTEN, 0, False),
        (WRITTEN, SECOND // 20, False),
        (WRITTEN, SECOND, True),
        (WRITTEN // SECOND * SECOND, SECOND, False),  # a file system that counts whole seconds, or even ones
        (WRITTEN // SECOND * SECOND, 2 * SECOND, False),
        (WRITTEN // SECOND * SECOND, 3 * SECOND, True),
    ],
)
def test_a_file_written_just_before_it_was_read_may_have_been_written_again(
    written: int, read_after: int, trusted: bool
) -> None:
    entry = changed(mtime_ns=written, ctime_ns=written)
    cache = StatCache([record(entry, read_ns=written + read_after)])
    assert (cache.lookup(entry) is not None) == trusted


def test_an_unknown_time_of_reading_is_never_trusted() -> None:
    assert StatCache([record(read_ns=0)]).lookup(ENTRY) is None


def test_a_time_in_the_future_is_never_trusted() -> None:
    entry = changed(mtime_ns=WRITTEN + 1000 * SECOND)
    assert StatCache([record(entry)]).lookup(entry) is None


def test_it_is_the_same_after_saving(root: Path) -> None:
    path = root / ".spotwarp" / "cache" / "stat"
    assert StatCache([record(), record(changed(path=b"\xff\n"))]).save(path, root)
    loaded = StatCache.load(path, root)
    assert len(loaded) == 2
    assert loaded.lookup(ENTRY) == DIGESTS
    assert [item.name for item in path.parent.iterdir()] == ["stat"]


def test_after_a_reboot_nothing_is_believed(root: Path) -> None:
    StatCache([record()]).save(root / "stat", root)
    assert len(StatCache.load(root / "stat", root, boot="another")) == 0


def test_of_another_file_system_nothing_is_believed(root: Path) -> None:
    StatCache([record()]).save(root / "stat", root)
    assert len(StatCache.load(root / "stat", Path("/proc"))) == 0


def test_a_damaged_cache_is_an_empty_one(root: Path) -> None:
    path = root / "stat"
    StatCache([record()]).save(path, root)
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good[:at])
        assert len(StatCache.load(path, root)) == 0
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert len(StatCache.load(path, root)) == 0


def test_no_cache_is_an_empty_one(root: Path) -> None:
    assert len(StatCache.load(root / "none", root)) == 0
    (root / "dir").mkdir()
    assert len(StatCache.load(root / "dir", root)) == 0


def test_a_cache_that_cannot_be_written_is_no_error(root: Path) -> None:
    (root / "file").write_bytes(b"")
    assert not StatCache([record()]).save(root / "file" / "stat", root)
    (root / "stat").mkdir()
    assert not StatCache([record()]).save(root / "stat", root)
    assert sorted(item.name for item in root.iterdir()) == ["file", "stat"]


def test_a_cache_that_learnt_nothing_is_not_written_again(root: Path) -> None:
    path = root / "stat"
    cache = StatCache([record()])
    cache.save(path, root)
    before = path.stat().st_ino
    cache.save(path, root)
    assert path.stat().st_ino == before
    cache.replace(Table.of(Record, [record(changed(path=b"a/g"))]))
    cache.save(path, root)
    assert StatCache.load(path, root).lookup(changed(path=b"a/g")) == DIGESTS
