"""Every file format of a checkpoint, fed hostile input: a verdict each time, in bounded time and memory, and never
`resumable` for what was damaged where it shows.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwarp.execution.checkpoints import CheckpointClass, Shape, examine_single, find, judge, pickles, walk
from spotwarp.execution.checkpoints.pickles import LEGACY_MAGIC
from spotwarp.execution.restoring.pointers import mend_pointers
from spotwarp.testing.checkpoints import deepspeed_files, huggingface_files, safetensors_file, torch_file, write_files
from spotwarp.testing.hostile import JSON_SPECIALS, bounded, mangled

ROUNDS = 150
TORN, RESUMABLE = CheckpointClass.TORN, CheckpointClass.RESUMABLE


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_files(tmp_path / "checkpoint-8", huggingface_files(8))


def header(text: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text)) + text + body


def tensor(shape: object, offsets: object, dtype: object = "U8") -> bytes:
    return json.dumps({"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode()


SAFETENSORS = {
    "huge header": struct.pack("<Q", 2**64 - 1) + b"{",
    "header of 90 MB that is not there": struct.pack("<Q", 90_000_000) + b"{",
    "deep": header(b'{"a":' * 50_000),
    "deep and closed": header(b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    "shape overflows": header(tensor([2**62, 2**62], [0, 4]), b"1234"),
    "huge rank": header(tensor([1] * 100_000, [0, 1]), b"1"),
    "huge numbers": header(b'{"w":{"dtype":"U8","shape":[' + b"9" * 4000 + b'],"data_offsets":[0,1]}}', b"1"),
    "numbers too long to be read": header(b'{"w":{"dtype":"U8","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,1]}}'),
    "negative": header(tensor([-1], [0, -1])),
    "backwards": header(tensor([1], [1, 0])),
    "not whole numbers": header(tensor([1.5], [0, True])),
    "NaN": header(b'{"w":{"dtype":"U8","shape":[NaN],"data_offsets":[0,1]}}', b"1"),
    "overlap": header(
        json.dumps({k: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} for k in "ab"}).encode(), b"1234"
    ),
    "a list": header(b"[]"),
    "not text": header(b"{\xff\xfe\xfd"),
    "half a surrogate": header(b'{"\\ud800":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}}', b"1"),
}


def zipped(**records: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in records.items():
            archive.writestr(f"archive/{name}", data)
    return out.getvalue()


def patched(data: bytes, signature: bytes, at: int, value: bytes) -> bytes:
    """`data` with `value` over the field `at` bytes behind the last `signature`."""
    place = data.rindex(signature) + at
    return data[:place] + value + data[place + len(value) :]


GOOD = zipped(a=b"1" * 100, b=b"2" * 100)
ARCHIVES = {
    "two records in one place": patched(GOOD, b"PK\1\2", 42, struct.pack("<L", 0)),
    "a directory of 4 GiB": patched(GOOD, b"PK\5\6", 12, struct.pack("<L", 2**32 - 1)),
    "65535 records": patched(GOOD, b"PK\5\6", 8, struct.pack("<2H", 65535, 65535)),
    "a record of 4 GiB": patched(GOOD, b"PK\1\2", 20, struct.pack("<2L", 2**32 - 2, 2**32 - 2)),
    "a record behind the end": patched(GOOD, b"PK\1\2", 42, struct.pack("<L", 2**32 - 2)),
    "only end records": b"PK\3\4" + b"PK\5\6" * 5_000,
    "a bomb": b"",
    "another crc": patched(GOOD, b"PK\1\2", 16, struct.pack("<L", zlib.crc32(b"x"))),
}


def bomb() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(50 << 20))
    return out.getvalue()


PICKLES = {
    "a string of 4 GiB": b"\x80\x02X\xff\xff\xff\xff",
    "a number of 2 GiB": b"\x80\x02\x8b\xff\xff\xff\x7f",
    "a number of a million digits": b"\x80\x02\x8b" + struct.pack("<L", 1_000_000) + b"\xff" * 1_000_000 + b".",
    "a text number": b"I" + b"9" * 5000 + b"\n.",
    "marks": b"\x80\x02" + b"(" * 50_000 + b".",
    "a memo far out": b"\x80\x02K\x01r\xff\xff\xff\xff.",
    "recalls of nothing": b"\x80\x02" + b"h\x05" * 100_000 + b".",
    "a call": b"cos\nsystem\n(S'true'\ntR.",
    "no text": b"\x80\x02X\x02\x00\x00\x00\xff\xfe.",
    "frames": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
}


def verdict(root: Path, name: str, data: bytes) -> CheckpointClass:
    (root / "checkpoint-8" / name).write_bytes(data)
    with bounded(seconds=5, memory=120 << 20):
        return judge(root, b"checkpoint-8").cls


@pytest.mark.parametrize("what", sorted(SAFETENSORS))
def test_safetensors(checkpoint: Path, what: str) -> None:
    assert verdict(checkpoint.parent, "model.safetensors", SAFETENSORS[what]) is TORN
    (checkpoint.parent / "last.ckpt").write_bytes(SAFETENSORS[what])
    with bounded():
        found = examine_single(checkpoint.parent, b"last.ckpt", len(SAFETENSORS[what]), prove=True)
    assert found.shape is not Shape.WHOLE


@pytest.mark.parametrize("what", sorted(ARCHIVES))
def test_archives(checkpoint: Path, what: str) -> None:
    data = ARCHIVES[what] or bomb()
    cls = verdict(checkpoint.parent, "optimizer.pt", data)
    assert cls is (RESUMABLE if what == "a bomb" else TORN)  # nothing is ever unpacked: a bomb is a small whole file
    (checkpoint.parent / "last.ckpt").write_bytes(data)
    with bounded():
        found = examine_single(checkpoint.parent, b"last.ckpt", len(data), prove=True)
    assert not found.proven


@pytest.mark.parametrize("what", sorted(PICKLES))
@pytest.mark.parametrize("where", ["legacy", "plain", "metadata", "model states"])
def test_pickles(tmp_path: Path, what: str, where: str) -> None:
    body = PICKLES[what]
    files = huggingface_files(8)
    if where == "legacy":
        files["optimizer.pt"] = LEGACY_MAGIC + body * 4
    elif where == "plain":
        files["optimizer.pt"] = body
    elif where == "metadata":
        del files["optimizer.pt"]
        files |= {"optimizer_0/.metadata": body, "optimizer_0/__0_0.distcp": b"1"}
    else:
        files = {f"../global_step8/{k.partition('/')[2]}": v for k, v in deepspeed_files(8).items() if "/" in k}
        files["../global_step8/mp_rank_00_model_states.pt"] = torch_file(b"w", dumped=body)
    write_files(tmp_path / "checkpoint-8", files)
    with bounded(seconds=10, memory=200 << 20):
        for path in find(walk(tmp_path)):
            judge(tmp_path, path)


def test_a_pickle_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "MAX_OPCODES", 10_000)
    write_files(tmp_path / "checkpoint-8", huggingface_files(8) | {"optimizer.pt": b"\x80\x02" + b"(" * 10_100 + b"."})
    assert "too long to be read" in judge(tmp_path, b"checkpoint-8").reason


def test_a_metadata_of_any_content(tmp_path: Path) -> None:
    body = pickle.dumps({"relative_path": "__0_0.distcp", "offset": 0, "length": 4, "optimizer.state": 1}, protocol=2)
    place = write_files(tmp_path / "step-4", {"__0_0.distcp": b"1234", ".metadata": body})
    assert judge(tmp_path, b"step-4").cls is RESUMABLE
    for data in mangled(body, 1, ROUNDS):
        (place / ".metadata").write_bytes(data)
        with bounded(seconds=2, memory=32 << 20):
            judge(tmp_path, b"step-4")


FILES = huggingface_files(8, shards=2)
LEGACY = LEGACY_MAGIC + b"".join(pickle.dumps(part, 2) for part in (1001, {"little_endian": True}, {}, []))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*sorted(FILES), "legacy.bin"])
def test_any_damage_gets_a_verdict(tmp_path: Path, name: str) -> None:
    """An old torch file has no checksums: damage inside its object need not show."""
    good = LEGACY if name == "legacy.bin" else FILES[name]
    name = "optimizer.pt" if name == "legacy.bin" else name
    write_files(tmp_path / "checkpoint-8", FILES | {name: good})
    assert judge(tmp_path, b"checkpoint-8").cls is RESUMABLE
    for data in mangled(good, 2, ROUNDS):
        cls = verdict(tmp_path, name, data)
        if len(data) < len(good) and good is not LEGACY and name != "training_args.bin" and not _still_json(name, data):
            assert cls is not RESUMABLE, data


def _still_json(name: str, data: bytes) -> bool:
    if not name.endswith(".json"):
        return False
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", ["trainer_state.json", "model.safetensors.index.json", "config.json"])
def test_documents(tmp_path: Path, name: str) -> None:
    write_files(tmp_path / "checkpoint-8", FILES)
    extra = [
        b'{"global_step": 8, "global_step": 9}',
        b'{"global_step": 1e400}',
        b'{"global_step": true}',
        b'{"global_step": -8}',
        b'{"global_step": 8.0}',
        b'{"weight_map": {"a": "../../../etc/passwd", "b": "\\u0000", "c": ""}}',
        b'{"weight_map": {"a": ["x"]}}',
        b'{"weight_map": {}}',
        b'{"global_step": 8, "log_history": [{"loss": NaN}, {"loss": 1e999}, 5, null, {"loss": "x"}]}',
    ]
    for data in (*JSON_SPECIALS, *extra):
        cls = verdict(tmp_path, name, data)
        if name == "trainer_state.json" and not data.startswith(b'{"global_step": 8, "log'):
            assert cls is TORN, data[:60]
        if name == "model.safetensors.index.json":
            assert cls is TORN, data[:60]


def pointers() -> Iterator[bytes]:
    yield from (b"", b"\0", b"..", b"../..", b"/etc/passwd", b"a\nb", b"x" * 5000, b"\xff\xfe", b"global_step9" * 30)
    yield from mangled(b"global_step200", 3, 60)


def test_pointers_of_any_content_lead_nowhere_else(tmp_path: Path) -> None:
    write_files(tmp_path / "out", deepspeed_files(100))
    outside = {p.name for p in tmp_path.iterdir()}
    for data in pointers():
        (tmp_path / "out" / "latest").write_bytes(data)
        with bounded(seconds=2, memory=16 << 20):
            mend_pointers(tmp_path, 1, lambda _: None)
        now = (tmp_path / "out" / "latest").read_bytes()
        assert now in (b"global_step100", data)
    assert {p.name for p in tmp_path.iterdir()} == outside


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_a_single_file_of_any_content(kind: str) -> None:
    good = torch_file(b"1" * 500) if kind == "torch" else safetensors_file({"w": b"1" * 500})
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "last.ckpt"
        for data in mangled(good, 4, ROUNDS * 2):
            path.write_bytes(data)
            with bounded(seconds=2, memory=16 << 20):
                found = examine_single(Path(place), b"last.ckpt", len(data), prove=True)
            assert not (found.proven and b"1" * 500 not in data)
