"""A damaged snapshot gets a whole one in its place, as far as the store goes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from spotwarp.persistence.backup import BackupOptions, Uploaded
from spotwarp.persistence.layout import manifest_key, pack_key
from spotwarp.persistence.manifest import Blob, CheckpointFact, Manifest, decode
from spotwarp.persistence.reads import whole
from spotwarp.persistence.repair import LOST, Repaired, damaged, repair
from spotwarp.persistence.scan import Scanned
from spotwarp.testing.backups import Backups, noise
from spotwarp.testing.clocks import SeededRng
from spotwarp.testing.trees import read_tree

KIB, MIB = 1 << 10, 1 << 20


def judge(root: Path, entries: Sequence[Scanned]) -> list[CheckpointFact]:
    return [CheckpointFact(e.path, "resumable", step=10) for e in entries if e.path == b"checkpoint-10"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "w"
    (made / "checkpoint-10").mkdir(parents=True)
    (made / "checkpoint-10/model").write_bytes(noise(5 * MIB, 1))
    (made / "checkpoint-10/config.json").write_bytes(b"{}")
    (made / "data.bin").write_bytes(noise(5 * MIB, 2))
    (made / "train.py").write_bytes(b"train\n")
    return made


@pytest.fixture
def run(root: Path, tmp_path: Path) -> Backups:
    options = BackupOptions(workers=1, pack_size=8 * MIB)
    return Backups(root, judge=judge, options=options, pages=tmp_path / "pages")


def blob_of(manifest: Manifest, path: bytes) -> Blob:
    (entry,) = [entry for entry in manifest.entries if entry.path == path]
    return manifest.blobs[entry.extents[0].blob]


def harm(run: Backups, manifest: Manifest, blob: Blob) -> None:
    key = pack_key("main", manifest.packs[blob.pack].id)
    data = bytearray(run.calls.get(key))
    data[blob.offset + blob.stored // 2] ^= 1
    run.calls.put(key, bytes(data))


def in_vain(run: Backups, root: Path) -> None:
    """A backup of the same content whose packs no snapshot will name."""
    other = Backups(root, store=run.calls, judge=judge, options=BackupOptions(workers=1, pack_size=8 * MIB))
    other._rng = SeededRng("another")
    other.take()


def repaired(run: Backups, taken: Uploaded) -> Repaired:
    done = repair(run.calls, "main", 2, taken.manifest, damaged(run.calls, taken.manifest), SeededRng("repair"))
    data = run.calls.get(manifest_key("main", done.manifest_id))
    read = decode(data, "it", expected=done.address, fetch=whole(run.calls))
    assert read == done.manifest
    assert not damaged(run.calls, read)
    run.base = read
    return done


def test_what_is_whole_has_nothing_to_repair(run: Backups) -> None:
    assert damaged(run.calls, run.take().manifest) == frozenset()


def test_a_file_that_is_nowhere_whole_is_left_out_and_named(run: Backups, root: Path, tmp_path: Path) -> None:
    taken = run.take()
    harm(run, taken.manifest, blob_of(taken.manifest, b"data.bin"))
    done = repaired(run, taken)
    assert (done.lost, done.found) == ((b"data.bin",), 0)
    assert [(skip.path, skip.reason) for skip in done.manifest.skipped] == [(b"data.bin", LOST)]
    assert done.manifest.checkpoints == taken.manifest.checkpoints
    (root / "data.bin").unlink()
    assert {p: n.content for p, n in run.restored(tmp_path / "r").items()} == {
        p: n.content for p, n in read_tree(root).items()
    }


def test_a_checkpoint_that_lacks_a_file_is_torn(run: Backups) -> None:
    taken = run.take()
    harm(run, taken.manifest, blob_of(taken.manifest, b"checkpoint-10/model"))
    done = repaired(run, taken)
    assert [(fact.path, fact.cls) for fact in done.manifest.checkpoints] == [(b"checkpoint-10", "torn")]


def test_what_another_pack_has_is_put_again(run: Backups, root: Path, tmp_path: Path) -> None:
    """Also one that no snapshot names: another run of the same backup had put it in vain."""
    taken = run.take()
    in_vain(run, root)
    harm(run, taken.manifest, blob_of(taken.manifest, b"data.bin"))
    done = repaired(run, taken)
    assert (done.lost, done.found) == ((), 1)
    assert len(done.new_packs) == 1
    assert done.new_packs[0] in done.manifest.packs
    assert run.restored(tmp_path / "r") == read_tree(root)


def test_a_pack_that_is_gone(run: Backups, root: Path, tmp_path: Path) -> None:
    taken = run.take()
    pack = taken.manifest.packs[blob_of(taken.manifest, b"checkpoint-10/model").pack]
    run.calls.delete(pack_key("main", pack.id))
    done = repaired(run, taken)
    assert set(done.lost) == {b"checkpoint-10/model", b"checkpoint-10/config.json"}
    assert pack not in done.manifest.packs
    shutil.rmtree(root / "checkpoint-10")
    assert {b"data.bin", b"train.py"} <= set(run.restored(tmp_path / "r"))


@pytest.mark.parametrize("copy", [False, True], ids=["nowhere else", "elsewhere"])
def test_what_is_coded_against_what_is_damaged_shares_its_fate(
    run: Backups, root: Path, tmp_path: Path, copy: bool
) -> None:
    first = run.take()
    if copy:
        in_vain(run, root)
    with (root / "data.bin").open("r+b") as file:
        file.write(b"a page of another kind")
    second = run.take()
    base = blob_of(first.manifest, b"data.bin")
    assert second.manifest.blobs[blob_of(second.manifest, b"data.bin").base].digest == base.digest
    harm(run, first.manifest, base)
    done = repaired(run, second)
    assert done.lost == (() if copy else (b"data.bin",))
    if copy:
        assert run.restored(tmp_path / "r") == read_tree(root)
