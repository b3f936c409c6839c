"""What in a workspace still holds its old path."""

from __future__ import annotations

import json
from pathlib import Path

from spotwarp.execution.sameness.moved import holders
from spotwarp.persistence.excludes import Excludes
from spotwarp.persistence.scan import scan


def found(root: Path, was: str) -> list[str]:
    return holders(root, was, scan(root, Excludes()).entries)


def test_links_environments_and_the_best_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "out" / "checkpoint-20"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"best_model_checkpoint": "/old/ws/out/checkpoint-10"}))
    (tmp_path / "data").symlink_to("/old/ws/cache/data")
    (tmp_path / "inside").symlink_to("out")
    (tmp_path / "elsewhere").symlink_to("/usr/share")
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (tmp_path / "venv" / "bin" / "pip").write_text("#!/old/ws/venv/bin/python\n")
    (tmp_path / "venv" / "bin" / "other").write_text("#!/bin/sh\n")
    assert found(tmp_path, "/old/ws") == [
        "the link data leads to /old/ws/cache/data",
        "out/checkpoint-20/trainer_state.json: best_model_checkpoint is /old/ws/out/checkpoint-10",
        "venv: a virtual environment, whose 1 script(s) start /old/ws/…",
    ]
    assert found(tmp_path, "/old/w") == []


def test_hostile_files_are_nothing(tmp_path: Path) -> None:
    for number, content in enumerate([b"\xff", b"[" * 100_000, b"[]", b'{"best_model_checkpoint": 3}', b""]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "trainer_state.json").write_bytes(content)
    assert found(tmp_path, "/old") == []
