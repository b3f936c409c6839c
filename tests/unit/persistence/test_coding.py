"""What big files are coded against: earlier saves, and what was here under the same name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import xxhash

from spotwarp.errors import CorruptObject
from spotwarp.persistence.backup import BackupOptions, Mode, Uploaded, live, pages
from spotwarp.persistence.backup.coding import _as_before
from spotwarp.persistence.backup.saves import KEY_SAVES
from spotwarp.persistence.check import check
from spotwarp.persistence.codec import DELTA, PATCH, PLANES, RAW
from spotwarp.persistence.cuts import CHUNK
from spotwarp.persistence.held import Held, look
from spotwarp.persistence.manifest import FILE, NO_BASE, Blob, CheckpointFact, Entry, Extent, Manifest
from spotwarp.persistence.scan import Scanned
from spotwarp.testing.backups import Backups, noise
from spotwarp.testing.stores import Fault
from spotwarp.testing.trees import read_tree

KIB, MIB = 1 << 10, 1 << 20
PAGE = 4 * KIB


def judge(root: Path, entries: Sequence[Scanned]) -> list[CheckpointFact]:
    return [
        CheckpointFact(e.path, "resumable", step=int(e.path.rpartition(b"-")[2]))
        for e in entries
        if e.kind == 1 and e.path.startswith(b"checkpoint-") and b"/" not in e.path
    ]


def weights(step: int, count: int = MIB) -> np.ndarray:
    """Numbers that have moved a little with every step."""
    start = np.random.default_rng(1).standard_normal(count).astype("<f4")
    moved = np.random.default_rng(step).standard_normal(count).astype("<f4")
    return start + np.float32(1e-4) * moved * step


def save(root: Path, step: int, count: int = MIB) -> None:
    """A checkpoint as a trainer makes it: the header tells the step, and has not the same length in each."""
    place = root / f"checkpoint-{step}"
    place.mkdir()
    described = {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}
    header = json.dumps({"__metadata__": {"step": "x" * step}, "w": described}).encode()
    data = len(header).to_bytes(8, "little") + header + weights(step, count).tobytes()
    (place / "model.safetensors").write_bytes(data)


def backups(root: Path, mode: Mode = "delta", kept: Path | None = None) -> Backups:
    return Backups(root, judge=judge, options=BackupOptions(workers=2, pack_size=8 * MIB, coding=mode), pages=kept)


def blobs(taken: Uploaded | Manifest, path: bytes) -> list[Blob]:
    manifest = taken.manifest if isinstance(taken, Uploaded) else taken
    (entry,) = [entry for entry in manifest.entries if entry.path == path]
    return [manifest.blobs[extent.blob] for extent in entry.extents]


def of_step(taken: Uploaded, step: int) -> Blob:
    """The largest piece of a checkpoint."""
    return max(blobs(taken, b"checkpoint-%d/model.safetensors" % step), key=lambda blob: blob.raw)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "w"
    made.mkdir()
    return made


# ------------------------------------------------------------------------------------------------- earlier saves


def test_a_later_save_is_stored_as_the_difference(root: Path, tmp_path: Path) -> None:
    run = backups(root)
    save(root, 1)
    first = run.take()
    assert of_step(first, 1).codec == PLANES
    save(root, 2)
    second = run.take()
    coded = of_step(second, 2)
    assert (coded.codec, second.manifest.blobs[coded.base]) == (DELTA, of_step(second, 1))
    assert second.stored_bytes < 0.8 * first.stored_bytes
    assert run.restored(tmp_path / "r") == read_tree(root)


@pytest.mark.parametrize(("mode", "codec"), [("raw", RAW), ("planes", PLANES)])
def test_other_modes_need_no_earlier_save(root: Path, tmp_path: Path, mode: Mode, codec: int) -> None:
    run = backups(root, mode)
    save(root, 1)
    run.take()
    save(root, 2)
    assert {of_step(run.take(), step).codec for step in (1, 2)} == {codec}
    assert run.restored(tmp_path / "r") == read_tree(root)


def test_depth_is_one_and_a_key_save_comes_now_and_then(root: Path, tmp_path: Path) -> None:
    run = backups(root)
    kinds = []
    for step in range(1, KEY_SAVES + 3):
        save(root, step, 64 * KIB)
        taken = run.take()
        blob = of_step(taken, step)
        kinds.append("key" if blob.base == NO_BASE else "difference")
        assert blob.base == NO_BASE or taken.manifest.blobs[blob.base].base == NO_BASE
    assert kinds == ["key", *["difference"] * KEY_SAVES, "key"]
    assert run.restored(tmp_path / "r") == read_tree(root)


def test_a_save_outlives_what_it_was_coded_against(root: Path, tmp_path: Path) -> None:
    """The earlier checkpoint is deleted here; the snapshot still names the packs that hold its blobs."""
    run = backups(root)
    save(root, 1)
    run.take()
    save(root, 2)
    run.take()
    shutil.rmtree(root / "checkpoint-1")
    taken = run.take()
    base = taken.manifest.blobs[of_step(taken, 2).base]
    assert taken.manifest.packs[base.pack].id
    assert run.restored(tmp_path / "r") == read_tree(root)


@pytest.mark.parametrize("harm", ["rewritten", "gone", "shorter"])
def test_an_earlier_save_that_is_not_what_was_stored_is_no_base(root: Path, tmp_path: Path, harm: str) -> None:
    run = backups(root)
    save(root, 1)
    run.take()
    file = root / "checkpoint-1/model.safetensors"
    save(root, 2)
    if harm == "rewritten":
        data = bytearray(file.read_bytes())
        data[-4:] = b"\xff\xff\xff\xff"
        file.write_bytes(data)
    elif harm == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-4])
    assert of_step(run.take(), 2).codec == PLANES
    assert run.restored(tmp_path / "r") == read_tree(root)


def test_what_vanishes_at_its_turn_leaves_nothing_open(root: Path) -> None:
    run = backups(root)
    for step in (1, 2):
        save(root, step, 128 * KIB)
        run.take()
    before = len(list(Path("/proc/self/fd").iterdir()))

    def rotated(path: Path) -> Held:
        held = look(path)
        shutil.rmtree(root / "checkpoint-3")
        return held

    save(root, 3, 128 * KIB)
    assert run.take(look=rotated).vanished
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_damage_of_a_base_names_both(root: Path, tmp_path: Path) -> None:
    run = backups(root)
    save(root, 1)
    run.take()
    save(root, 2)
    taken = run.take()
    base = taken.manifest.blobs[of_step(taken, 2).base]
    pack = taken.manifest.packs[base.pack]
    shutil.rmtree(root / "checkpoint-1")
    run.take()
    run.calls.add(Fault("get_range", key=pack.id, corrupt=100_000, times=None))
    with pytest.raises(CorruptObject) as caught:
        run.restored(tmp_path / "r")
    assert pack.id in caught.value.message
    assert "checkpoint-2/model.safetensors" in caught.value.message


def test_a_damaged_base_is_the_fault_of_its_pack_alone(root: Path) -> None:
    run = backups(root)
    save(root, 1)
    run.take()
    save(root, 2)
    taken = run.take()
    base = taken.manifest.blobs[of_step(taken, 2).base]
    pack = taken.manifest.packs[base.pack]
    (key,) = [meta.key for meta in run.calls.list("") if meta.key.endswith(pack.id)]
    data = bytearray(run.calls.get(key))
    data[base.offset + base.stored // 2] ^= 1
    run.calls.put(key, bytes(data))
    snapshot = 2, taken.manifest_id, taken.address
    (problem,) = check(store=run.calls, run="main", snapshots=[snapshot], read_data=True).problems
    assert problem.key == key
    assert set(problem.files) == {b"checkpoint-%d/model.safetensors" % step for step in (1, 2)}


# ------------------------------------------------------------------------------------------ rewritten in places


def rewrite(file: Path, *pages: int, seed: int) -> None:
    with file.open("r+b") as opened:
        for page in pages:
            opened.seek(page * PAGE)
            opened.write(noise(PAGE, seed + page))


def test_of_what_is_rewritten_in_places_only_the_pages_are_stored(root: Path, tmp_path: Path) -> None:
    file = root / "table.db"
    file.write_bytes(noise(2 * CHUNK + 5, 1))
    run = backups(root, "planes", tmp_path / "pages")
    run.take()
    for turn in range(1, 4):
        rewrite(file, 3, 1030, seed=100 * turn)
        taken = run.take()
        assert taken.stored_bytes < 4 * PAGE
        assert [blob.codec for blob in blobs(taken, b"table.db")] == [PATCH, PATCH, RAW]
        assert run.restored(tmp_path / f"r{turn}") == read_tree(root)


def test_a_patch_that_is_left_alone_can_be_patched_again(root: Path, tmp_path: Path) -> None:
    file = root / "table.db"
    file.write_bytes(noise(2 * CHUNK, 1))
    run = backups(root, "planes", tmp_path / "pages")
    run.take()
    for turn, page in enumerate((3, 1030, 3), 1):
        rewrite(file, page, seed=100 * turn)
        assert run.take().stored_bytes < 4 * PAGE
    assert run.restored(tmp_path / "r") == read_tree(root)


def test_much_that_is_new_is_stored_whole(root: Path, tmp_path: Path) -> None:
    file = root / "table.db"
    file.write_bytes(noise(CHUNK, 1))
    run = backups(root, "planes", tmp_path / "pages")
    run.take()
    rewrite(file, *range(0, 1024, 3), seed=1)
    taken = run.take()
    assert [blob.base for blob in blobs(taken, b"table.db")] == [NO_BASE]
    rewrite(file, 5, seed=2)
    assert [blob.codec for blob in blobs(run.take(), b"table.db")] == [PATCH]


@pytest.mark.parametrize("harm", ["lost", "damaged", "another file's"])
def test_without_fingerprints_it_is_stored_whole(root: Path, tmp_path: Path, harm: str) -> None:
    place = tmp_path / "pages"
    file = root / "table.db"
    file.write_bytes(noise(CHUNK, 1))
    run = backups(root, "planes", place)
    run.take()
    (kept,) = place.iterdir()
    if harm == "lost":
        kept.unlink()
    elif harm == "damaged":
        kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    else:
        (root / "other").write_bytes(noise(CHUNK, 2))
        run.take()
        (other,) = [path for path in place.iterdir() if path != kept]
        kept.write_bytes(other.read_bytes())
    rewrite(file, 3, seed=1)
    assert [blob.codec for blob in blobs(run.take(), b"table.db")] == [RAW]
    assert run.restored(tmp_path / "r") == read_tree(root)


def test_fingerprints_go_with_their_file(root: Path, tmp_path: Path) -> None:
    place = tmp_path / "pages"
    (root / "table.db").write_bytes(noise(CHUNK, 1))
    (root / "other").write_bytes(noise(CHUNK, 2))
    run = backups(root, "planes", place)
    run.take()
    assert len(list(place.iterdir())) == 2
    (root / "other").unlink()
    run.take()
    assert len(list(place.iterdir())) == 1


def test_a_file_that_is_written_to_while_it_is_read_is_patched_from_the_last_reading(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there are more fingerprints than are kept: those of an earlier pass are no one's any more."""
    file = root / "table.db"
    file.write_bytes(noise(2 * CHUNK, 1))
    run = backups(root, "planes", tmp_path / "pages")
    run.take()
    monkeypatch.setattr(pages, "_MOST_OF_A_FILE", 40 * KIB)
    rewrite(file, 1, 1280, seed=1)
    passes: list[int] = []
    settled = live.BigContent.settled

    def written_to(big: live.BigContent) -> bool:
        passes.append(len(passes))
        if len(passes) <= 3:
            rewrite(file, 10 + len(passes), 1280 + len(passes), seed=100 * len(passes))
        return settled(big)

    monkeypatch.setattr(live.BigContent, "settled", written_to)
    run.take()
    assert len(passes) == live.PASSES
    assert run.restored(tmp_path / "r") == read_tree(root)


def test_pages_that_were_made_to_look_alike_are_told_apart(root: Path, tmp_path: Path) -> None:
    """Two pages can be made by hand that the plain hash takes for each other."""
    one, other = alike()
    file = root / "users.db"
    content = bytearray(noise(CHUNK, 1))
    content[2 * PAGE : 3 * PAGE] = one
    file.write_bytes(content)
    run = backups(root, "planes", tmp_path / "pages")
    run.take()
    with file.open("r+b") as opened:
        opened.seek(2 * PAGE)
        opened.write(other)
    run.take()
    assert run.restored(tmp_path / "r") == read_tree(root)


def alike() -> tuple[bytes, bytes]:
    """Two pages of one xxh3_128 under the seed that everybody knows."""
    secret = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1c")  # how XXH3's own begins
    made = [bytearray(noise(PAGE, 3)), bytearray(noise(PAGE, 3))]
    for page, highs in zip(made, ((1000, 2000), (1500, 1500)), strict=True):
        for stripe, high in enumerate(highs):  # the products of both stripes have one sum
            page[64 * stripe : 64 * stripe + 8] = secret[8 * stripe : 8 * stripe + 4] + high.to_bytes(4, "little")
    one, other = map(bytes, made)
    assert one != other
    assert xxhash.xxh3_128_digest(one) == xxhash.xxh3_128_digest(other)
    return one, other


# ------------------------------------------------------------------------------------------------------- appended


def lines(count: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    return b"".join(b"step %d loss %.4f\n" % (seed * 1000 + k, value) for k, value in enumerate(rng.random(count)))


def test_of_a_log_only_what_was_appended_is_stored(root: Path, tmp_path: Path) -> None:
    file = root / "train.log"
    file.write_bytes(lines(200_000, 0))
    run = backups(root)
    run.take()
    for turn in range(1, 4):
        added = lines(3000, turn)
        with file.open("ab") as log:
            log.write(added)
        taken = run.take()
        assert taken.stored_bytes < 0.6 * len(added)
        assert {blob.base for blob in blobs(taken, b"train.log")} == {NO_BASE}
        assert run.restored(tmp_path / f"r{turn}") == read_tree(root)


def test_many_small_pieces_become_one(root: Path, tmp_path: Path) -> None:
    file = root / "train.log"
    file.write_bytes(noise(300 * KIB, 1))
    run = backups(root)
    run.take()
    most = 0
    for turn in range(70):
        with file.open("ab") as log:
            log.write(noise(100, turn))
        most = max(most, len(blobs(run.take(), b"train.log")))
    assert 60 < most <= 64
    assert len(blobs(run.take(always=True), b"train.log")) < 10
    assert run.restored(tmp_path / "r") == read_tree(root)


def test_pieces_stay_within_a_chunk() -> None:
    """Also where many small ones before a large one become one."""
    step = CHUNK // 64
    lengths = [step] * 63 + [CHUNK]
    starts = [step * number for number in range(64)]
    size = starts[-1] + CHUNK
    known = [Blob(0, 0, 1, 0, length, bytes(16)) for length in lengths]
    extents = tuple(Extent(start, length, n, 0) for n, (start, length) in enumerate(zip(starts, lengths, strict=True)))
    cut = _as_before(Entry(b"x", FILE, 0, 0, size, extents), known, size)
    assert cut is not None
    assert max(map(cut.length, range(len(cut)))) <= CHUNK
    assert sum(map(cut.length, range(len(cut)))) == size


def test_a_log_that_begins_anew_is_cut_anew(root: Path, tmp_path: Path) -> None:
    file = root / "train.log"
    file.write_bytes(noise(CHUNK + 300 * KIB, 1))
    run = backups(root)
    run.take()
    with file.open("ab") as log:
        log.write(noise(1000, 2))
    assert len(blobs(run.take(), b"train.log")) == 3
    file.write_bytes(noise(CHUNK, 3))
    assert len(blobs(run.take(), b"train.log")) == 1
    assert run.restored(tmp_path / "r") == read_tree(root)
