"""A bucket in which somebody has put another repository: a workspace believes only the one that it belongs to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.product import Machine

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow

KEY = "SPOTWARP_KEY"
IN_A_VARIABLE = "spotwarp-key-" + "5a" * 32


def contents(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


def replaced(bucket: Path, by: Path | None) -> None:
    """Whoever has the bucket puts another one in its place."""
    shutil.rmtree(bucket)
    if by is not None:
        shutil.copytree(by, bucket)


def test_another_repository_is_neither_stored_to_nor_restored_from(rent: Rent, bucket: Path, tmp_path: Path) -> None:
    machine = rent(env={KEY: IN_A_VARIABLE})
    machine("init", "--remote-path", machine.remote, "--encrypt")
    machine.file("data", "theirs is mine")
    machine("sync")
    kept = tmp_path / "kept"
    shutil.copytree(bucket, kept)

    plain = rent("plain", remote=str(tmp_path / "plain-bucket")).init()
    plain.file("data", "evil")
    plain("sync")
    same_key = rent("same-key", remote=str(tmp_path / "same-key-bucket"), env={KEY: IN_A_VARIABLE})
    same_key("init", "--remote-path", same_key.remote, "--encrypt")
    for by, env, verbs in (
        (Path(plain.remote), {KEY: ""}, (("sync",), ("key", "list"), ("init",))),
        (Path(same_key.remote), {}, (("sync",), ("restore", "--force"))),
    ):
        replaced(bucket, by)
        before = contents(bucket)
        for verb in verbs:
            refused = machine(*verb, env=env, code=16)
            assert "it was replaced" in refused.err
            assert "--new-repository" in refused.err
        refused = machine("run", "--command", "echo gone on > went", env=env, code=125)
        assert "it was replaced" in refused.err
        assert contents(bucket) == before
    assert (machine.path / "data").read_text() == "theirs is mine"
    assert not (machine.path / "went").exists()

    replaced(bucket, None)
    bucket.mkdir()
    assert "is gone from" in machine("init", env={KEY: ""}, code=16).err
    assert not (bucket / "config").exists()

    replaced(bucket, kept)
    machine("restore", "--force")


def test_a_workspace_moves_to_another_repository_when_it_is_told_to(ws: Machine, bucket: Path) -> None:
    ws.file("data", "first")
    ws("sync")
    shutil.rmtree(bucket)
    ws("sync", code=10)
    ws("init", "--new-repository")
    ws("sync")
    assert len(ws.snapshots()) == 1
    assert (ws.path / "data").read_text() == "first"


def test_a_workspace_that_belongs_to_none_yet_belongs_to_the_first(ws: Machine, bucket: Path, tmp_path: Path) -> None:
    note = ws.path / ".spotwarp" / "repository.json"
    first = json.loads(note.read_text())
    assert first["encrypted"] is False
    note.unlink()
    ws("runs")
    assert json.loads(note.read_text()) == first
    other = tmp_path / "other-bucket"
    ws("init", "--remote-path", str(other), cwd=_fresh(tmp_path / "fresh"))
    replaced(bucket, other)
    assert "it was replaced" in ws("runs", code=16).err
    assert "it was replaced" in ws("doctor", code=1).out.decode()


def _fresh(path: Path) -> Path:
    path.mkdir()
    return path
