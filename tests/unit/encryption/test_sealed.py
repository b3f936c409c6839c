"""A store that seals: what is above sees none of it, what is below sees nothing else."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock
from spotwarp.errors import CorruptObject, ObjectMissing, UnsupportedFormat
from spotwarp.persistence import layout
from spotwarp.persistence.backup import sharing
from spotwarp.persistence.encryption.cipher import BOX_EXTRA, Cipher
from spotwarp.persistence.encryption.sealed import SealedStore, box_for
from spotwarp.persistence.envelope import HEADER_SIZE, Kind, check_header, digest, seal, unseal
from spotwarp.persistence.pack import PackBuilder, blob_context, read_trailer
from spotwarp.persistence.store.retrying import Patient, RetryingStore
from spotwarp.persistence.store.single_writer import SingleWriterStore
from spotwarp.testing.backups import Backups
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.stores import MemoryStore
from spotwarp.testing.trees import read_tree

CIPHER = Cipher(bytes(range(32)), "repository")
ENTRY = seal(Kind.ENTRY, b"content that is secret")
LOG = layout.log_key("secret-run", 1)
PACK = layout.pack_key("secret-run", "1-" + "0" * 32)


@pytest.fixture
def below() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def store(below: MemoryStore) -> SealedStore:
    return SealedStore(below, CIPHER)


def test_objects_come_back_as_they_were_put(store: SealedStore, below: MemoryStore) -> None:
    store.put(LOG, ENTRY)
    store.put_new(layout.name_key("secret-run"), seal(Kind.CONFIG, b"{}"))
    assert store.get(LOG) == ENTRY
    assert unseal(store.get(LOG), Kind.ENTRY, LOG) == b"content that is secret"
    assert store.get_range(LOG, 8, 7) == b"content"
    assert [meta.key for meta in store.list("runs/secret-run/log")] == [LOG]
    assert [meta.key for meta in store.list(layout.NAMES)] == ["names/secret-run"]
    assert store.head(LOG).key == LOG
    assert store.head(LOG).size == len(ENTRY) + HEADER_SIZE + BOX_EXTRA
    for key, data in below.contents().items():
        assert b"secret" not in key.encode() + data
    store.delete(LOG)
    with pytest.raises(ObjectMissing):
        store.get(LOG)


def test_objects_cannot_be_swapped_renamed_changed_or_cut(store: SealedStore, below: MemoryStore) -> None:
    other = layout.log_key("secret-run", 2)
    store.put(LOG, ENTRY)
    store.put(other, seal(Kind.ENTRY, b"another entry, as secret"))
    mine, theirs = (CIPHER.hide("secret-run").join(("runs/", f"/log/{n:010d}")) for n in (1, 2))
    good = below.get(mine)
    below.put(mine, below.get(theirs))
    with pytest.raises(CorruptObject, match=f"{LOG} cannot be decrypted"):
        store.get(LOG)
    for at in range(len(good)):
        changed = bytearray(good)
        changed[at] ^= 1
        for bad in (bytes(changed), good[:at]):
            below.put(mine, bad)
            with pytest.raises((CorruptObject, UnsupportedFormat)):
                store.get(LOG)
    below.put(mine, good)
    assert store.get(LOG) == ENTRY


def test_what_is_not_encrypted_does_not_belong_here(store: SealedStore, below: MemoryStore) -> None:
    key = "runs/" + CIPHER.hide("secret-run") + "/log/0000000001"
    below.put(key, ENTRY)
    with pytest.raises(CorruptObject, match="is not encrypted"):
        store.get(LOG)
    with pytest.raises(ValueError, match="is not encrypted"):
        store.put(PACK, seal(Kind.PACK, b""))
    with pytest.raises(ValueError, match="not an object of ours"):
        store.put(LOG, b"anything")
    with pytest.raises(CorruptObject, match="is encrypted, which nothing in this repository"):
        check_header(b"SPWPL\0\1\n", Kind.ENTRY, "it")
    below.put("names/somebody", b"")
    assert list(store.list(layout.NAMES)) == []


def test_it_is_as_patient_as_what_it_stands_on() -> None:
    stop = threading.Event()
    retrying = RetryingStore(MemoryStore(), clock=VirtualClock(), rng=SeededRng(), cancel=stop)
    for inner in (retrying, SingleWriterStore(retrying)):
        store = SealedStore(inner, CIPHER)
        assert isinstance(store, Patient)
        assert store.cancel is stop
        store.press_on()
        hasty = store.with_budget(1.0)
        hasty.put(LOG, ENTRY)
        assert store.get(LOG) == ENTRY


def test_it_may_stand_on_anything(store: SealedStore) -> None:
    assert store.with_budget(1.0) is store
    assert not store.cancel.is_set()
    assert box_for(MemoryStore(), PACK) is None


# --- packs


def packed(store: SealedStore, *blobs: bytes, key: str = PACK) -> bytes:
    builder = PackBuilder(1 << 16, box=box_for(store, key))
    for blob in blobs:
        builder.add(digest(blob), 0, len(blob), blob[: len(blob) // 2], blob[len(blob) // 2 :])
    with builder.seal() as sealed:
        store.put(key, sealed)
        return bytes(sealed)


def test_blobs_and_tables_are_closed_each_by_itself(store: SealedStore) -> None:
    blobs = (b"a secret blob", b"", b"another secret blob" * 100)
    data = packed(store, *blobs)
    assert b"secret" not in data
    assert not any(digest(blob) in data for blob in blobs)
    rows = read_trailer(store, PACK, len(data))
    box = CIPHER.box(PACK)
    for row, blob in zip(rows, blobs, strict=True):
        part = store.get_range(PACK, row.offset, row.stored)
        assert box.open(part, blob_context(row.offset), "it") == blob
    with pytest.raises(CorruptObject):
        box.open(store.get_range(PACK, rows[0].offset, rows[0].stored), blob_context(rows[1].offset), "it")


def test_a_full_pack_that_is_closed_fits_its_buffer(store: SealedStore) -> None:
    builder = PackBuilder(4096, box=box_for(store, PACK))
    while builder.fits(100):
        builder.add(b"d" * 16, 0, 100, b"x" * 100)
    with builder.seal() as sealed:
        assert sealed.nbytes <= 4096
        store.put(PACK, sealed)
        assert len(read_trailer(store, PACK, sealed.nbytes)) == len(builder.rows)
    builder.reset()
    builder.add(b"d" * 16, 0, 5, b"plain")
    with builder.seal() as sealed:
        assert b"plain" in bytes(sealed)


def test_a_pack_under_another_name_is_refused(store: SealedStore, below: MemoryStore) -> None:
    size = len(packed(store, b"blob"))
    other = layout.pack_key("secret-run", "1-" + "1" * 32)
    store.put(other, store.get(PACK))
    with pytest.raises(CorruptObject, match=f"the table of pack {other} cannot be decrypted"):
        read_trailer(store, other, size)
    plain = PackBuilder(1 << 16)
    plain.add(digest(b"blob"), 0, 4, b"blob")
    with plain.seal() as sealed:
        below.put(layout.renamed(PACK, CIPHER.hide) or "", sealed)
        with pytest.raises(CorruptObject, match="is not encrypted"):
            read_trailer(store, PACK, sealed.nbytes)


def test_a_backup_is_restored_and_shows_nothing(
    store: SealedStore, below: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "_LARGE", 500)  # also what a large manifest has in packs
    monkeypatch.setattr("spotwarp.persistence.table._MASK", 15)
    root = tmp_path / "ws"
    contents = {
        "secret-name.txt": b"a secret content",
        "dir/secret-large.bin": b"compressible secret " * 400_000,
        "weights.bin": SeededRng().token(3 << 20).encode(),
    }
    contents |= {f"many/secret-{n}": b"secret %d" % n for n in range(100)}
    for name, data in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    backups = Backups(root, store=store, clock=SystemClock())
    backups.calls = store  # type: ignore[assignment]  # a store that only records would hide that this one seals
    uploaded = backups.take()
    (root / "secret-name.txt").write_bytes(b"a secret that changed")
    backups.take()
    assert backups.restored(tmp_path / "out") == read_tree(root)
    assert uploaded.manifest.shared
    everything = b"".join(key.encode() + data for key, data in below.contents().items())
    assert len(everything) > 3 << 20
    assert b"secret" not in everything
    digests = {blob.digest for blob in uploaded.manifest.blobs} | {entry.digest for entry in uploaded.manifest.entries}
    for found in digests - {b""}:
        assert found not in everything
        assert found.hex().encode() not in everything
