"""What is large and could be downloaded again is recognised by what its makers put into it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from spotwarp.execution.parts import LEAST, downloadable, glance, leave_out
from spotwarp.persistence.excludes import Excludes
from spotwarp.persistence.scan import scan
from spotwarp.testing.clocks import VirtualClock


def big(path: Path, size: int = LEAST) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


def parts(root: Path, *exclude: str) -> list[tuple[str, str, int]]:
    return [(p.path, p.kind, p.bytes) for p in downloadable(scan(root, Excludes(exclude)).entries)]


def test_each_kind(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /usr")
    big(tmp_path / "venv" / "lib" / "torch.so")
    big(tmp_path / "hf" / "hub" / "models--a--b" / "blobs" / "x", 2 * LEAST)
    big(tmp_path / "hf" / "hub" / "datasets--c" / "blobs" / "y")
    big(tmp_path / "models--d" / "blobs" / "z", 2 * LEAST)  # a cache that is the workspace itself
    (tmp_path / "conda" / "conda-meta").mkdir(parents=True)
    big(tmp_path / "conda" / "lib" / "x", 5 * LEAST)
    big(tmp_path / ".cache" / "pip" / "http-v2" / "a", 6 * LEAST)
    big(tmp_path / ".cache" / "uv" / "archive-v0" / "a", LEAST - 1)  # too small to name
    big(tmp_path / "checkpoints" / "model.bin", 9 * LEAST)  # nobody's but the user's
    found = parts(tmp_path)
    assert found[:3] == [
        (".cache/pip", "a pip cache", 6 * LEAST),
        ("conda", "a conda environment", 5 * LEAST),
        ("hf/hub", "a Hugging Face cache", 3 * LEAST),
    ]
    assert {p[0] for p in found[3:]} == {"venv", "models--d"}
    assert {p[0] for p in parts(tmp_path, "/venv/", "/hf/")} == {".cache/pip", "conda", "models--d"}


def test_one_inside_another_is_not_named_twice_and_links_count_once(tmp_path: Path) -> None:
    (tmp_path / "conda" / "conda-meta").mkdir(parents=True)
    (tmp_path / "conda" / "envs" / "x").mkdir(parents=True)
    (tmp_path / "conda" / "envs" / "x" / "pyvenv.cfg").touch()
    big(tmp_path / "conda" / "envs" / "x" / "lib", 2 * LEAST)
    os.link(tmp_path / "conda" / "envs" / "x" / "lib", tmp_path / "conda" / "again")
    assert parts(tmp_path) == [("conda", "a conda environment", 2 * LEAST)]


def test_the_line_that_leaves_it_out_does(tmp_path: Path) -> None:
    (tmp_path / "my env").mkdir()
    (tmp_path / "my env" / "pyvenv.cfg").touch()
    big(tmp_path / "my env" / "x")
    (part,) = downloadable(scan(tmp_path, Excludes()).entries)
    assert part.exclude == "spotwarp exclude '/my env/'"
    assert parts(tmp_path, "/my env/") == []


def test_a_glance_ends_in_time(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert glance(tmp_path, (), VirtualClock(), budget_s=0.0) is None
    assert glance(tmp_path, (), VirtualClock()) is not None


@pytest.mark.parametrize("name", ["data set", "it's; touch no; '", "[a]*?", "back\\slash", "-n", "$(x)"])
def test_the_line_that_leaves_it_out_does_just_that_in_a_shell(name: str) -> None:
    program, verb, pattern = shlex.split(leave_out(f"{name}/"))
    assert (program, verb) == ("spotwarp", "exclude")
    excluded = Excludes([pattern])
    assert excluded.excluded(os.fsencode(name), is_dir=True)
    assert not excluded.excluded(b"aa", is_dir=True)
