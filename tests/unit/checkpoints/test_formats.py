"""The formats: what is a whole file, and that nothing else is taken for one."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from spotwarp.execution.checkpoints import CheckpointClass, judge
from spotwarp.execution.checkpoints.examine import examine
from spotwarp.execution.checkpoints.members import members
from spotwarp.testing.checkpoints import huggingface_files, safetensors_file, torch_file, write_files

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for one file after the other, made once: hypothesis writes hundreds."""
    return tmp_path_factory.mktemp("formats")


def faults(place: Path, name: str, content: bytes) -> list[str]:
    directory = place / name
    write_files(directory, {name: content})
    return examine(members(place, os.fsencode(name), deep=False)).faults


def zipped(compression: int = zipfile.ZIP_STORED, comment: bytes = b"", *, streamed: bool = False) -> bytes:
    class Stream(io.RawIOBase):
        def __init__(self) -> None:
            self.content = b""

        def writable(self) -> bool:
            return True

        def write(self, piece: Any) -> int:
            self.content += bytes(piece)
            return len(piece)

    stream, buffer = Stream(), io.BytesIO()
    with zipfile.ZipFile(stream if streamed else buffer, "w", compression) as out:
        out.writestr("archive/data.pkl", b"d" * 300)
        out.writestr("archive/data/0", b"w" * 500)
        out.comment = comment
    return stream.content if streamed else buffer.getvalue()


def header(entries: object, data: bytes = b"") -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


class TestSafetensors:
    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8", "int64", "bool"])
    def test_what_the_library_writes_is_whole(self, place: Path, dtype: str) -> None:
        arrays = {"w": np.ones((3, 5), dtype), "scalar": np.ones((), dtype), "none": np.ones((0, 4), dtype)}
        assert faults(place, "a.safetensors", safetensors.numpy.save(arrays, {"format": "pt"})) == []

    @pytest.mark.parametrize(
        "content",
        [
            header({}),
            header({"__metadata__": {"format": "pt"}}),
            header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}      ', b"12345678"),
            header({"a": tensor("F4", [4], 0, 2)}, b"12"),
            header({"a": tensor("F6_E2M3", [4], 0, 3)}, b"123"),
            header({"a": tensor("NEWER", [4], 0, 9)}, b"123456789"),
        ],
        ids=["no tensor", "metadata", "padded", "half bytes", "six bits", "type of the future"],
    )
    def test_what_the_format_allows_is_whole(self, place: Path, content: bytes) -> None:
        assert faults(place, "a.safetensors", content) == []

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (b"", "cut short"),
            (b"\0" * 4096, "no readable header"),
            (b"\xff" * 4096, "no safetensors file"),
            (struct.pack("<Q", 64), "inside its header"),
            (struct.pack("<Q", 100_000_001) + b"{", "no safetensors file"),
            (header(b" {}"), "no readable header"),
            (header([]), "no readable header"),
            (header(b"{" * 9), "no readable header"),
            (header(b'{"a":' * 50_000), "no readable header"),
            (header({"a": 1}), "contradicts itself"),
            (header({"a": {"dtype": "F32", "shape": [1]}}), "contradicts itself"),
            (header({"a": tensor("F32", [2], 0, 4)}, b"1234"), "contradicts itself"),
            (header({"a": tensor("F32", [1], 4, 0)}, b"1234"), "contradicts itself"),
            (header({"a": tensor("F32", [-1], 0, 4)}, b"1234"), "contradicts itself"),
            (header({"a": tensor("F32", [True], 0, 4)}, b"1234"), "contradicts itself"),
            (header({"a": tensor("F32", [1.0], 0, 4)}, b"1234"), "contradicts itself"),
            (header({"a": tensor("U8", [1] * 65, 0, 1)}, b"1"), "contradicts itself"),
            (header({"a": tensor("F32", [1], 0, 2**70)}, b"1234"), "contradicts itself"),
            (header({"a": tensor("F32", [1], 4, 8)}, b"12345678"), "not where the one before it ends"),
            (header({"a": tensor("F32", [1], 0, 4), "b": tensor("F32", [1], 8, 12)}, b"1" * 12), "tensor b"),
            (header({"a": tensor("F32", [1], 0, 4), "b": tensor("F32", [1], 2, 6)}, b"1" * 6), "tensor b"),
            (safetensors_file({"a": b"1234"}) + b"\0", "its header accounts for"),
        ],
    )
    def test_anything_else_is_a_fault_and_says_which(self, place: Path, content: bytes, reason: str) -> None:
        found = faults(place, "a.safetensors", content)
        assert len(found) == 1
        assert found[0].startswith("a.safetensors ")
        assert reason in found[0]


class TestTorch:
    @pytest.mark.parametrize(
        "content",
        [
            torch_file(b"w" * 1000),
            torch_file(b""),
            torch_file(b"w" * 1000, crc=False),
            zipped(),
            zipped(zipfile.ZIP_DEFLATED),
            zipped(comment=b"written by PK\5\6 somebody, at length: " + b"x" * 30),
            zipped(streamed=True),
            pickle.dumps({"a": [1, 2]}, protocol=2),
        ],
        ids=["torch", "no data", "no crc", "zipfile", "deflated", "comment", "streamed", "pickle"],
    )
    def test_a_whole_archive_is_whole(self, place: Path, content: bytes) -> None:
        assert faults(place, "optimizer.pt", content) == []

    def test_records_beyond_four_gib_are_where_the_wide_fields_say(self, tmp_path: Path) -> None:
        # A central directory whose offsets and sizes are all in the 64-bit extra field.
        content = torch_file(b"w" * 100)
        start = content.index(b"PK\1\2")
        narrow, wide = content[start : content.index(b"PK\6\6")], b""
        while narrow:
            fields = list(struct.unpack_from("<4s6H3L5H2L", narrow))
            name, narrow = narrow[46 : 46 + fields[10]], narrow[46 + fields[10] :]
            extra = struct.pack("<2H3Q", 1, 24, fields[9], fields[8], fields[16])
            fields[8] = fields[9] = fields[16] = 0xFFFFFFFF
            fields[11] = len(extra)
            wide += struct.pack("<4s6H3L5H2L", *fields) + name + extra
        end = start + len(wide)
        tail = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 4, 4, len(wide), start)
        tail += struct.pack("<4sLQL", b"PK\6\7", 0, end, 1)
        tail += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
        assert faults(tmp_path, "optimizer.pt", content[:start] + wide + tail) == []
        assert "damaged" in faults(tmp_path, "optimizer.pt", content[:start] + wide[:-8] + tail)[0]

    @pytest.mark.parametrize("content", [torch_file(b"w" * 3000), zipped(), zipped(zipfile.ZIP_DEFLATED)])
    @pytest.mark.parametrize("zeros", [1, 5, 9, 22, 64, 500])
    def test_the_right_size_with_a_zeroed_tail_is_rejected(self, place: Path, content: bytes, zeros: int) -> None:
        zeroed = content[:-zeros] + b"\0" * zeros  # an end record may end in a few zeros anyway
        assert (faults(place, "optimizer.pt", zeroed) == []) == (zeroed == content)

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (b"", "is empty"),
            (b"\0" * 5000, "starts with zeros"),
            (b"<html>503 Slow Down</html>", "is no torch file"),
            (b"PK", "no end record"),
            (b"PK\5\6" + b"\0" * 18, "no records"),
            (b"PKjunk" + zipped(), "does not fit the file"),
            (zipped() + zipped(), "does not fit the file"),
            (zipped().replace(b"PK\3\4", b"PK\0\0", 1), "is not where the directory says"),
            (zipped().replace(b"archive/data/0", b"archive/data/1", 1), "is not where the directory says"),
            (zipped().replace(b"d" * 300, b"d" * 299 + b"\0"), "does not match its checksum"),
            (pickle.dumps([1, 2, 3]) + b"rest", "inside a pickle"),
        ],
    )
    def test_anything_else_is_a_fault_and_says_which(self, place: Path, content: bytes, reason: str) -> None:
        found = faults(place, "optimizer.pt", content)
        assert len(found) == 1
        assert found[0].startswith("optimizer.pt ")
        assert reason in found[0]

    def test_records_that_lie_over_each_other_are_rejected(self, place: Path) -> None:
        content = bytearray(zipped())
        second = content.rindex(b"PK\1\2")
        content[second + 42 : second + 46] = struct.pack("<L", 0)
        content[second + 46 : second + 60] = b"archive/data/0"
        assert "damaged" in faults(place, "optimizer.pt", bytes(content))[0]

    def test_the_format_before_the_archives_is_measured_without_being_executed(self, place: Path) -> None:
        content = legacy(3, 10)
        assert faults(place, "optimizer.pt", content) == []
        for damaged in (content[:-1], content + b"\0", content[: len(content) // 2], legacy(3, 10, kind="Alien")):
            assert len(faults(place, "optimizer.pt", damaged)) == 1

    def test_no_pickle_is_ever_executed(self, tmp_path: Path) -> None:
        class Bomb:
            def __reduce__(self) -> tuple[Any, tuple[str]]:
                return os.mkdir, (str(tmp_path / "executed"),)

        bomb = pickle.dumps(Bomb())
        assert faults(tmp_path, "optimizer.pt", bomb) == []
        faults(tmp_path, "rng_state.pth", torch_file(bomb))
        faults(tmp_path, ".metadata", bomb)
        assert not (tmp_path / "executed").exists()


def legacy(first: int, second: int, kind: str = "Float") -> bytes:
    """Two tensors as `torch.save` wrote them before its archives."""
    storages = "".join(
        f"(Vstorage\nctorch\n{kind}Storage\nV{key}\nVcpu\nI{count}\nNtQ"
        for key, count in (("101", first), ("202", second))
    )
    body = b"\x80\x02" + storages.encode() + b"0."
    keys = pickle.dumps(["101", "202"], protocol=2)
    start = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + pickle.dumps(1001, protocol=2) + pickle.dumps({}, protocol=2)
    data = b"".join(struct.pack("<q", count) + b"f" * 4 * count for count in (first, second))
    return start + body + keys + data


class TestHoles:
    def sparse(self, path: Path, start: bytes, length: int, end: bytes = b"") -> None:
        with path.open("wb") as file:
            file.write(start)
            file.truncate(length - len(end))
            file.seek(0, os.SEEK_END)
            file.write(end)
        with path.open("rb") as file:
            assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) < length, "this file system has no holes: use another"

    def test_tensors_that_were_never_written_are_found(self, tmp_path: Path) -> None:
        directory = write_files(tmp_path / "checkpoint-5", huggingface_files(5))
        start = header({"a": tensor("U8", [8 * MIB], 0, 8 * MIB)})
        self.sparse(directory / "model.safetensors", start, len(start) + 8 * MIB, end=b"w" * 4096)
        found = judge(tmp_path, b"checkpoint-5")
        assert found.cls is CheckpointClass.TORN
        assert "model.safetensors has a hole at byte " in found.reason

    @pytest.mark.parametrize("crc", [True, False])
    def test_in_an_archive_the_checksum_decides_whether_zeros_are_a_loss(self, tmp_path: Path, crc: bool) -> None:
        directory = write_files(tmp_path / "checkpoint-5", huggingface_files(5))
        # Moments that are all zero, on a file system that stores zeros as holes: whole, if the checksum says so.
        content = torch_file(b"m" * 4096 + bytes(4 * MIB) + b"m" * 4096, crc=crc)
        zeros = content.index(bytes(4 * MIB))
        self.sparse(directory / "optimizer.pt", content[:zeros], len(content), end=content[zeros + 4 * MIB :])
        assert (directory / "optimizer.pt").read_bytes() == content
        found = judge(tmp_path, b"checkpoint-5")
        assert (found.cls is CheckpointClass.RESUMABLE) == crc
        assert ("hole at byte" in found.reason) != crc

    def test_in_an_archive_written_zeros_that_were_lost_are_found(self, tmp_path: Path) -> None:
        directory = write_files(tmp_path / "checkpoint-5", huggingface_files(5))
        content = torch_file(b"m" * 4 * MIB)
        self.sparse(directory / "optimizer.pt", content[:MIB], len(content), end=content[-MIB:])
        found = judge(tmp_path, b"checkpoint-5")
        assert found.cls is CheckpointClass.TORN
        assert "optimizer.pt is damaged" in found.reason


WHOLE = {
    "model.safetensors": safetensors_file({"a": b"1" * 40, "b": b"2" * 24}),
    "optimizer.pt": torch_file(b"w" * 70),
    "rng_state.pth": zipped(),
    "scheduler.pt": legacy(2, 3),
    "trainer_state.json": huggingface_files(5)["trainer_state.json"],
}


@pytest.mark.parametrize("name", WHOLE)
def test_no_prefix_of_a_whole_file_is_whole(place: Path, name: str) -> None:
    assert faults(place, name, WHOLE[name]) == []
    directory = place / name
    with (directory / name).open("r+b") as file:
        for length in reversed(range(len(WHOLE[name]))):
            file.truncate(length)
            assert len(examine(members(place, os.fsencode(name), deep=False)).faults) == 1, length


@given(name=st.sampled_from([*WHOLE, ".metadata", "latest", "x.pt", "model.safetensors.index.json"]), data=st.data())
def test_whatever_the_bytes_are_the_answer_is_a_verdict(place: Path, name: str, data: st.DataObject) -> None:
    content = data.draw(mangled(WHOLE.get(name, pickle.dumps({"relative_path": "a", "offset": 1, "length": 2}))))
    for directory in (b"checkpoint-5", b"model"):
        write_files(place / "any" / os.fsdecode(directory), huggingface_files(5) | {name: content})
        found = judge(place / "any", directory)
        assert (found.reason == "") == (found.cls is CheckpointClass.RESUMABLE)
        found.reason.encode()


@st.composite
def mangled(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes out of nowhere behind a promising start, or a whole file with a piece replaced."""
    if draw(st.booleans()):
        start = draw(st.sampled_from([b"", b"PK\3\4", b"\x80\2", b"\x80\4\x95", b"{", struct.pack("<Q", 9) + b"{"]))
        return start + draw(st.binary(max_size=200)) + draw(st.sampled_from([b"", b"PK\5\6" + b"\0" * 18, b"."]))
    at = draw(st.integers(0, len(whole)))
    piece = draw(st.binary(max_size=16))
    return whole[:at] + piece + whole[at + draw(st.integers(0, 16)) :]


@given(header_text=st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.sampled_from(["dtype", "F32", "shape", "data_offsets"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["a", "dtype", "shape", "data_offsets", "__metadata__"]), inner, max_size=4
    ),
    max_leaves=12,
))  # fmt: skip
def test_whatever_a_header_says_the_answer_is_a_verdict(place: Path, header_text: object) -> None:
    assert len(faults(place, "a.safetensors", header(header_text, b"12345678"))) <= 1
