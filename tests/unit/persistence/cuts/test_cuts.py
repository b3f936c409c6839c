"""The formats of checkpoints, made by hand or by numpy: where their tensors lie."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from spotwarp.persistence.cuts import Cuts, cuts, grid, lined_up, pickled
from spotwarp.testing.checkpoints import safetensors_file, torch_file

KIB, MIB = 1 << 10, 1 << 20
Part = tuple[str, int, int]


def cut(path: Path, content: bytes) -> Cuts:
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    try:
        found = cuts(fd, len(content))
    finally:
        os.close(fd)
    ends = [start + found.length(number) for number, start in enumerate(found.starts)]
    assert [0, *ends] == [*found.starts, len(content)]
    return found


def parts(found: Cuts) -> list[Part]:
    """Of the pieces of which something is known: key, length, width."""
    return [(found.key(n), found.length(n), found.width(n)) for n in range(len(found)) if found.key(n)]


def header(entries: object, body: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + body


def tensor(dtype: str, begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": [], "data_offsets": [begin, end]}


class TestSafetensors:
    def test_pieces_begin_where_the_tensors_do(self, tmp_path: Path) -> None:
        names = {"b": b"2" * 300 * KIB, "a": b"1" * 300 * KIB, "none": b""}
        found = cut(tmp_path / "f", safetensors_file(names))
        assert parts(found) == [("b+0", 300 * KIB, 1), ("a+0", 300 * KIB, 1)]
        assert found.starts[1] == found.size - 600 * KIB

    @pytest.mark.parametrize(
        ("dtype", "width"),
        [
            ("BF16", 2),
            ("F16", 2),
            ("F32", 4),
            ("F64", 8),
            ("I64", 8),
            ("F8_E4M3", 1),
            ("BOOL", 1),
            ("C64", 4),
            ("X", 0),
        ],
    )
    def test_the_type_says_the_width(self, tmp_path: Path, dtype: str, width: int) -> None:
        found = cut(tmp_path / "f", header({"w": tensor(dtype, 0, 400)}, bytes(400)))
        assert parts(found) == [("w+0", 400, width)]

    def test_metadata_of_another_length_moves_no_part(self, tmp_path: Path) -> None:
        both = [
            cut(tmp_path / "f", header({"__metadata__": {"step": step}, "w": tensor("F32", 0, MIB)}, bytes(MIB)))
            for step in ("1", "1000000")
        ]
        assert both[0].size != both[1].size
        assert lined_up(*both) == {1: 1}

    @pytest.mark.parametrize(
        "content",
        [
            header({"w": tensor("F32", 0, 400)}, bytes(399)),
            header({"w": tensor("F32", 0, 400)}, bytes(401)),
            header({"a": tensor("F32", 0, 40), "b": tensor("F32", 41, 81)}, bytes(81)),
            header({"a": tensor("F32", 0, 40), "b": tensor("F32", 39, 79)}, bytes(79)),
            header({"w": {"dtype": "F32", "data_offsets": [8, 0]}}, bytes(8)),
            header({"w": {"dtype": "F32", "data_offsets": [0, 8.0]}}, bytes(8)),
            header({"w": 5}, bytes(8)),
            header([1, 2], bytes(8)),
            struct.pack("<Q", 1 << 62) + b"{" + bytes(99),
            struct.pack("<Q", 60_000) + b'{"a":' * 12_000,
            struct.pack("<Q", 4) + b"{\xff\xff}",
            b"\0" * 100,
            b"",
        ],
    )
    def test_what_is_not_whole_is_cut_on_the_grid(self, tmp_path: Path, content: bytes) -> None:
        assert cut(tmp_path / "f", content) == grid(len(content))


def dumped(*storages: tuple[str, str]) -> bytes:
    """A pickle with persistent ids as torch writes them: (type, key) of each storage."""
    steps = b"\x80\x02]q\x00("
    for kind, key in storages:
        steps += b"(X\x07\0\0\0storagectorch\n" + kind.encode() + b"\nX" + struct.pack("<L", len(key)) + key.encode()
        steps += b"X\x03\0\0\0cpuK\x05tQ"
    return steps + b"e."


class TestTorch:
    @pytest.mark.parametrize(
        ("kind", "width"),
        [("BFloat16Storage", 2), ("FloatStorage", 4), ("LongStorage", 8), ("ByteStorage", 1), ("OddStorage", 0)],
    )
    def test_a_record_is_a_tensor_and_the_pickle_says_its_width(self, tmp_path: Path, kind: str, width: int) -> None:
        content = torch_file(b"w" * 300 * KIB, dumped=dumped((kind, "0")))
        found = cut(tmp_path / "f", content)
        start = found.starts[1]
        assert start % 64 == 0
        assert content[start - 1 : start + 300 * KIB].strip(b"w") == content[start - 1 : start]
        assert [(key, which) for key, _, which in parts(found)] == [("data/0+0", width)]

    def test_what_cannot_be_read_of_the_pickle_is_unknown(self, tmp_path: Path) -> None:
        for text in (b"", b"\x80", b"\x80\x02X\xff\xff\xff\xff", b"I" + b"9" * 5000 + b"\n.", b"(" * 300_000):
            found = cut(tmp_path / "f", torch_file(b"w" * 300 * KIB, dumped=text))
            assert ("data/0+0", 0) in [(key, which) for key, _, which in parts(found)]

    def test_archives_one_behind_the_other(self, tmp_path: Path) -> None:
        content = b"".join(
            torch_file(b"w" * length * KIB, dumped=dumped((kind, "0")))
            for length, kind in ((300, "FloatStorage"), (0, "FloatStorage"), (301, "HalfStorage"))
        )
        found = cut(tmp_path / "f", content)
        assert [(key, width) for key, _, width in parts(found)] == [("0/data/0+0", 4), ("2/data/0+0", 2)]
        assert all(content[found.starts[n] : found.starts[n] + 300 * KIB] == b"w" * 300 * KIB for n in (1, 2))

    def test_something_else_before_archives_is_just_that(self, tmp_path: Path) -> None:
        content = torch_file(b"w" * 300 * KIB, dumped=dumped(("FloatStorage", "0")))
        found = cut(tmp_path / "f", b"PK\3\4" + b"x" * 99 + content)
        assert [(key, width) for key, _, width in parts(found)] == [("data/0+0", 4)]

    def test_any_other_archive_is_cut_on_the_grid(self, tmp_path: Path) -> None:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("photo.jpg", b"x" * 300 * KIB)
        assert cut(tmp_path / "f", out.getvalue()) == grid(len(out.getvalue()))

    def test_a_torn_one_is_cut_on_the_grid(self, tmp_path: Path) -> None:
        content = torch_file(b"w" * 300 * KIB)
        for torn in (content[:-1], content[:1000], b"PK\3\4", content[:-500] + bytes(500)):
            assert cut(tmp_path / "f", torn) == grid(len(torn))


def test_the_type_of_an_untyped_storage_follows_it() -> None:
    def untyped(key: str, dtype: str) -> bytes:
        told = pickle.BINPERSID + b"K\0K\5\x85K\1\x85\x89)ctorch\n" + dtype.encode() + b"\nt"
        name = b"X" + struct.pack("<L", len(key)) + key.encode()
        return b"((X\x07\0\0\0storagectorch.storage\nUntypedStorage\n" + name + b"X\x03\0\0\0cpuK\x05t" + told

    steps = b"\x80\x02](" + untyped("0", "float8_e4m3fn") + untyped("1", "uint16") + untyped("2", "strange") + b"e."
    assert pickled.widths(steps) == {"0": 1, "1": 2}


class TestNumpy:
    def test_an_array(self, tmp_path: Path) -> None:
        out = io.BytesIO()
        np.save(out, np.arange(300_000, dtype=np.float64))
        assert parts(cut(tmp_path / "f", out.getvalue())) == [("array+0", 2_400_000, 8)]

    def test_an_archive_of_arrays(self, tmp_path: Path) -> None:
        out = io.BytesIO()
        np.savez(out, w=np.ones(300_000, np.float16), c=np.ones(300_000, np.complex128), small=np.ones(3))
        content = out.getvalue()
        found = cut(tmp_path / "f", content)
        assert [(key, width) for key, _, width in parts(found)] == [("w.npy+0", 2), ("c.npy+0", 8), ("c.npy+1", 8)]
        assert content[found.starts[1] :].startswith(np.ones(300_000, np.float16).tobytes())

    def test_a_compressed_one_is_cut_on_the_grid(self, tmp_path: Path) -> None:
        out = io.BytesIO()
        np.savez_compressed(out, w=np.arange(300_000))
        assert parts(cut(tmp_path / "f", out.getvalue())) == []


def test_a_file_that_shrank_or_cannot_be_read_is_cut_on_the_grid(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(safetensors_file({"w": b"1" * 1000})[:50])
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    assert cuts(fd, 2000) == grid(2000)
    os.close(fd)
    assert cuts(fd, 2000) == grid(2000)
