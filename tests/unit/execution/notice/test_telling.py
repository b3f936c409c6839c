"""The notice file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock
from spotwarp.errors import WorkspaceFault
from spotwarp.execution.notice.telling import NoticeFile


def test_it_is_absent_until_a_notice_comes_and_named_in_the_environment(tmp_path: Path) -> None:
    notice = NoticeFile(tmp_path / "run" / "notice.json", SystemClock())
    named = Path(notice.environment()["SPOTWARP_NOTICE_FILE"])
    notice.clear()
    assert not named.exists()
    notice.write(12.34567, "SIGTERM")
    said = json.loads(named.read_text())
    assert (said["seconds_left"], said["source"]) == (12.346, "SIGTERM")
    notice.write(-1, "test")
    assert json.loads(named.read_text())["seconds_left"] == 0
    assert [path.name for path in named.parent.iterdir()] == ["notice.json"]
    notice.clear()
    assert not named.exists()


def test_the_name_holds_in_whatever_directory_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notice = NoticeFile(Path("notice.json"), SystemClock())
    assert notice.environment() == {"SPOTWARP_NOTICE_FILE": str(tmp_path / "notice.json")}


def test_a_notice_that_cannot_be_written_is_a_workspace_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorkspaceFault):
        NoticeFile(tmp_path / "file" / "notice.json", SystemClock()).write(1, "test")
    (tmp_path / "taken").mkdir()
    with pytest.raises(WorkspaceFault):
        NoticeFile(tmp_path / "taken", SystemClock()).clear()
