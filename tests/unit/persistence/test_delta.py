"""Save after save of one model, coded against each other: smaller, no chain, and nothing less restores."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from spotwarp.persistence import codec
from spotwarp.persistence.backup import BackupOptions
from spotwarp.persistence.backup.saves import KEY_SAVES
from spotwarp.persistence.manifest import NO_BASE, Blob, Manifest
from spotwarp.testing.backups import Backups
from spotwarp.testing.trees import read_tree

ITEMS = 1 << 20


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "w").mkdir()
    return tmp_path / "w"


class Trainer:
    """Weights in bfloat16 of which each save changes a few in their last bits."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._rng = np.random.default_rng(0)
        weights = self._rng.normal(0, 0.02, ITEMS).astype(np.float32)
        self._weights = (weights.view(np.uint32) >> 16).astype(np.uint16)

    def save(self, step: int) -> Path:
        """Write `checkpoint-<step>/model.safetensors`."""
        at = self._rng.choice(ITEMS, ITEMS // 50, replace=False)
        self._weights[at] += self._rng.integers(1, 3, at.size).astype(np.uint16)
        body = self._weights.tobytes()
        entry = {"dtype": "BF16", "shape": [ITEMS], "data_offsets": [0, len(body)]}
        header = json.dumps({"__metadata__": {"step": str(step)}, "w": entry}).encode()
        path = self._work / f"checkpoint-{step}" / "model.safetensors"
        path.parent.mkdir()
        path.write_bytes(struct.pack("<Q", len(header)) + header + body)
        return path


def weights(manifest: Manifest, step: int) -> Blob:
    """The blob with a save's weights: the file's last."""
    path = f"checkpoint-{step}/model.safetensors".encode()
    entry = next(entry for entry in manifest.entries if entry.path == path)
    return manifest.blobs[entry.extents[-1].blob]


def taken(backups: Backups) -> Manifest:
    backups.take()
    assert backups.base is not None
    return backups.base


def delta(work: Path) -> Backups:
    return Backups(work, options=BackupOptions(workers=1, coding="delta"))


def test_a_save_is_coded_against_the_one_before_and_comes_back(work: Path, tmp_path: Path) -> None:
    trainer, backups = Trainer(work), delta(work)
    trainer.save(9)
    first = weights(taken(backups), 9)
    trainer.save(10)  # its header is longer
    manifest = taken(backups)
    second = weights(manifest, 10)
    assert (first.base, second.codec) == (NO_BASE, codec.DELTA)
    assert manifest.blobs[second.base].digest == first.digest
    assert second.stored < first.stored / 3
    assert backups.restored(tmp_path / "out") == read_tree(work)


def test_there_is_no_chain_and_a_key_serves_only_some(work: Path) -> None:
    trainer, backups = Trainer(work), delta(work)
    bases = []
    for step in range(1, KEY_SAVES + 4):
        trainer.save(step)
        manifest = taken(backups)
        base = weights(manifest, step).base
        bases.append(None if base == NO_BASE else manifest.blobs[base].digest)
    key, new = weights(manifest, 1).digest, weights(manifest, KEY_SAVES + 2).digest
    assert bases == [None, *[key] * KEY_SAVES, None, new]


def test_the_base_outlives_its_file(work: Path, tmp_path: Path) -> None:
    trainer, backups = Trainer(work), delta(work)
    for step in (1, 2):
        trainer.save(step)
        backups.take()
    shutil.rmtree(work / "checkpoint-1")
    trainer.save(3)
    manifest = taken(backups)
    assert weights(manifest, 2).base != NO_BASE
    assert weights(manifest, 3).base == NO_BASE, "what it could be coded against is not here"
    assert backups.restored(tmp_path / "out") == read_tree(work)


def test_an_earlier_file_that_is_not_what_was_stored_is_no_base(work: Path, tmp_path: Path) -> None:
    trainer, backups = Trainer(work), delta(work)
    path = trainer.save(1)
    backups.take()
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    trainer.save(2)
    assert weights(taken(backups), 2).base == NO_BASE
    assert backups.restored(tmp_path / "out") == read_tree(work)


def test_where_no_difference_is_wanted_none_is_made(work: Path) -> None:
    trainer, backups = Trainer(work), Backups(work, options=BackupOptions(workers=1, coding="planes"))
    for step in (1, 2):
        trainer.save(step)
        backups.take()
    assert backups.base is not None
    assert weights(backups.base, 2).base == NO_BASE
