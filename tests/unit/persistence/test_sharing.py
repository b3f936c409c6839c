"""Snapshots of a large workspace share what has not changed of their manifests."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwarp.errors import CorruptObject
from spotwarp.persistence.backup import Cutoff, Uploaded, own_size, sharing
from spotwarp.persistence.encryption.cipher import Cipher
from spotwarp.persistence.encryption.sealed import SealedStore
from spotwarp.persistence.envelope import digest
from spotwarp.persistence.layout import pack_key
from spotwarp.persistence.manifest import Manifest, Records, decode, encode, without_packs
from spotwarp.persistence.reads import whole
from spotwarp.testing.backups import Backups
from spotwarp.testing.clocks import VirtualClock
from spotwarp.testing.stores import MemoryStore
from spotwarp.testing.trees import read_tree

FILES = 600


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest is large from 5 KB on, and its segments are small."""
    monkeypatch.setattr(sharing, "_LARGE", 5_000)
    monkeypatch.setattr("spotwarp.persistence.table._MASK", 15)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "w"
    made.mkdir()
    for number in range(FILES):
        (made / f"file-{number:05}").write_text(f"{number}\n")
    return made


def again(backups: Backups, taken: Uploaded) -> Manifest:
    """The manifest as somebody reads it who has only the store."""
    data = encode(taken.manifest)
    return decode(data, "it", expected=taken.address, fetch=whole(backups.calls))


def segments(manifest: Manifest) -> int:
    assert isinstance(manifest.entries, Records)
    return len(manifest.entries.segments)


def test_what_did_not_change_is_not_put_again(root: Path, tmp_path: Path) -> None:
    backups = Backups(root)
    first = backups.take()
    assert len(first.manifest.shared) == segments(first.manifest) > 10
    assert first.manifest_size > 0
    (root / "file-00250").write_text("changed\n")
    backups.base = again(backups, first)  # a base that was read, as after a restart
    second = backups.take()
    assert len(second.manifest.shared) == segments(second.manifest) - 1
    assert second.stored_bytes < 0.1 * first.stored_bytes
    assert again(backups, second) == second.manifest
    assert backups.restored(tmp_path / "r") == read_tree(root)


def test_a_reader_sees_what_the_writer_wrote(root: Path) -> None:
    backups = Backups(root)
    taken = backups.take()
    read = again(backups, taken)
    assert read == taken.manifest
    assert not backups.take().stored_bytes
    backups.base = read
    assert backups.take().unchanged


def test_the_packs_of_shared_segments_are_named_and_new(root: Path) -> None:
    taken = Backups(root).take()
    (pack,) = {one.pack for one in taken.manifest.shared}
    assert pack in taken.manifest.packs
    assert pack in taken.new_packs


def test_what_is_new_goes_into_a_pack_when_it_is_much(root: Path, tmp_path: Path) -> None:
    backups = Backups(root)
    backups.take()
    inside = []
    for turn in range(4):
        for number in range(turn * 100, turn * 100 + 60):
            (root / f"file-{number:05}").write_text(f"turn {turn}\n")
        taken = backups.take()
        inside.append(segments(taken.manifest) - len(taken.manifest.shared))
        assert len({one.pack for one in taken.manifest.shared}) <= 1 + turn + 1
    assert 0 in inside
    assert again(backups, taken) == taken.manifest
    assert backups.restored(tmp_path / "r") == read_tree(root)


def test_before_a_cut_no_pack_is_put_for_later_snapshots(root: Path, tmp_path: Path) -> None:
    """After the cut only the manifest is on its way: what is new lies in it, and what lies in packs is left there."""
    soon = Cutoff(VirtualClock(), lambda: 1e6)
    backups = Backups(root)
    assert backups.take(cutoff=soon).manifest.shared == ()
    backups.base = None
    before = backups.take(always=True).manifest.shared
    assert before
    for number in range(FILES // 2):
        (root / f"file-{number:05}").write_text("changed\n")
    taken = backups.take(cutoff=soon)
    assert taken.manifest.shared
    assert set(taken.manifest.shared) < set(before)
    assert again(backups, taken) == taken.manifest
    assert own_size(taken.manifest) == pytest.approx(taken.manifest_size, rel=0.2)
    assert backups.take(cutoff=soon, always=True).manifest.shared == taken.manifest.shared
    assert backups.restored(tmp_path / "r") == read_tree(root)


def test_segments_do_not_scatter_over_packs_for_ever(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_LARGE", 100)
    monkeypatch.setattr(sharing, "_NEW", 1 << 20)
    monkeypatch.setattr(sharing, "_MOST_PACKS", 3)
    backups = Backups(root)
    for turn in range(6):
        (root / f"file-{turn * 90:05}").write_text(f"turn {turn}\n")
        taken = backups.take()
        assert len({one.pack for one in taken.manifest.shared}) <= 3
        assert again(backups, taken) == taken.manifest


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_damage_of_a_shared_part_is_named(root: Path, harm: str) -> None:
    backups = Backups(root)
    taken = backups.take()
    (pack,) = {one.pack for one in taken.manifest.shared}
    key = pack_key(pack.run, pack.id)
    data = bytearray(backups.calls.get(key))
    if harm == "missing":
        backups.calls.delete(key)
    else:
        data[taken.manifest.shared[3].offset + 5] ^= 1
        backups.calls.put(key, bytes(data))
    with pytest.raises(CorruptObject, match=pack.id):
        again(backups, taken)


def test_without_a_pack_nothing_in_it_is_shared(root: Path) -> None:
    backups = Backups(root)
    taken = backups.take()
    (pack,) = {one.pack for one in taken.manifest.shared}
    backups.base = without_packs(taken.manifest, frozenset((pack.id,)))
    assert not backups.base.shared
    after = backups.take(always=True)
    assert pack not in {one.pack for one in after.manifest.shared}
    assert again(backups, after) == after.manifest


def test_a_common_manifest_is_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    (tmp_path / "w").mkdir()
    (tmp_path / "w/a").write_bytes(b"a")
    taken = Backups(tmp_path / "w").take()
    assert taken.manifest.shared == ()
    assert taken.address == digest(encode(taken.manifest)).hex()
    assert decode(encode(taken.manifest), "it") == taken.manifest


def test_shared_segments_are_encrypted_like_everything(root: Path, tmp_path: Path) -> None:
    bucket = MemoryStore()
    backups = Backups(root)
    backups.calls = SealedStore(bucket, Cipher(bytes(range(32)), "repository"))  # type: ignore[assignment]
    taken = backups.take()
    assert taken.manifest.shared
    backups.base = again(backups, taken)
    assert backups.base == taken.manifest
    for meta in bucket.list(""):
        assert b"file-0" not in bucket.get(meta.key)
    assert backups.restored(tmp_path / "r") == read_tree(root)
