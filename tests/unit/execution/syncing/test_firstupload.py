"""The screen before a first large upload: the biggest parts, the time, the line that would leave each out."""

from __future__ import annotations

from pathlib import Path

from spotwarp.execution.syncing.firstupload import LARGE, biggest, screen
from spotwarp.persistence.manifest import FILE
from spotwarp.persistence.scan import Scanned

GIB = 1 << 30


def _sparse(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


def _file(path: str, size: int) -> Scanned:
    return Scanned(path.encode(), FILE, 0o644, 0, 0, size, 0, 0, 0)


def test_a_small_workspace_starts_without_a_word(tmp_path: Path) -> None:
    _sparse(tmp_path / "data.bin", LARGE - 1)
    assert screen(tmp_path, (), 1e6) == []


def test_the_biggest_parts_are_named_with_time_and_the_line_that_drops_them(tmp_path: Path) -> None:
    _sparse(tmp_path / "venv/lib/torch.so", 3 * GIB)
    _sparse(tmp_path / "data/raw.bin", 2 * GIB)
    _sparse(tmp_path / "train.py", 1000)
    lines = screen(tmp_path, (), 100 * (1 << 20))
    assert "5.0 GiB" in lines[0]
    assert "51 s" in lines[0]
    assert any("spotwarp exclude '/venv/lib/torch.so'" in line or "spotwarp exclude '/venv/" in line for line in lines)
    assert any("spotwarp exclude '/data/" in line for line in lines)
    assert not any("train.py" in line for line in lines)


def test_a_file_with_two_names_counts_once(tmp_path: Path) -> None:
    _sparse(tmp_path / "cache/torch.so", 3 * GIB)
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv/torch.so").hardlink_to(tmp_path / "cache/torch.so")
    assert "first upload: 3.0 GiB" in screen(tmp_path, (), None)[0]


def test_what_is_excluded_does_not_count(tmp_path: Path) -> None:
    _sparse(tmp_path / "venv/lib/torch.so", 3 * GIB)
    assert screen(tmp_path, ("venv/",), None) == []


def test_a_rate_that_is_not_known_promises_no_time(tmp_path: Path) -> None:
    _sparse(tmp_path / "big", 2 * GIB)
    assert "rate" not in screen(tmp_path, (), None)[0]


def test_no_part_is_named_inside_another() -> None:
    entries = [_file("a/b/one", 50), _file("a/b/two", 30), _file("a/c", 15), _file("d", 5)]
    named = biggest(entries, 100)
    assert named == [("a/", 95), ("d", 5)]


def test_a_directory_that_one_part_nearly_fills_is_named_by_that_part() -> None:
    assert biggest([_file("out/model.bin", 99), _file("out/log", 1)], 100) == [("out/model.bin", 99)]
