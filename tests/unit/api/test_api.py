"""The names a training script uses: exactly these, typed, explained, cheap to import, harmless without a run."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import spotwarp
from spotwarp import api
from spotwarp.errors import StoreDenied
from spotwarp.execution.control_socket import ControlSocket

FOREIGN = """
import sys
before = set(sys.modules)
import spotwarp
light = set(sys.modules) - before
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in "msgspec obstore typer rich ruamel blake3 zstandard pathspec psutil".split():
            raise ImportError(name)
sys.meta_path.insert(0, Nothing())
assert (spotwarp.sync(), spotwarp.status(), spotwarp.notice()) == (None, None, None)
print(*sorted(light))
"""


def test_the_names_are_these_and_their_signatures() -> None:
    assert spotwarp.__all__ == ["Notice", "Snapshot", "Status", "__version__", "notice", "status", "sync"]
    assert dir(spotwarp) == sorted(spotwarp.__all__)
    signatures = {name: str(inspect.signature(getattr(spotwarp, name))) for name in ("sync", "status", "notice")}
    assert signatures == {
        "sync": "() -> 'Snapshot | None'",
        "status": "() -> 'Status | None'",
        "notice": "() -> 'Notice | None'",
    }
    assert all(inspect.getdoc(getattr(spotwarp, name)) for name in spotwarp.__all__)
    assert (Path(spotwarp.__file__).parent / "py.typed").exists()
    with pytest.raises(AttributeError):
        getattr(spotwarp, "launch")  # noqa: B009 - mypy knows that it is not there


def test_a_trainers_own_python_imports_it_without_our_libraries(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(spotwarp.__file__).parents[1])}
    env.pop("SPOTWARP_NOTICE_FILE", None)
    done = subprocess.run(
        [sys.executable, "-S", "-c", FOREIGN], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["spotwarp"]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace as the command of a run sees it, wherever it has gone."""
    (tmp_path / "ws" / ".spotwarp").mkdir(parents=True)
    monkeypatch.setenv("SPOTWARP_NOTICE_FILE", str(tmp_path / "ws" / ".spotwarp" / "notice.json"))
    monkeypatch.chdir("/")
    return tmp_path / "ws"


def test_a_sync_is_the_agents(workspace: Path) -> None:
    facts = {
        "id": 7,
        "generation": 2,
        "files": 3,
        "bytes": 10,
        "stored_bytes": 4,
        "resumable": {"path": "c", "step": 9},
        "lacking": "1 path(s) could not be read",
    }
    with ControlSocket(workspace, lambda request: facts if request == {"verb": "sync"} else {}):
        assert spotwarp.sync() == api.Snapshot(7, 2, 3, 10, 4, 9, "1 path(s) could not be read")
    assert spotwarp.sync() is None


def test_what_fails_there_is_raised_here(workspace: Path) -> None:
    trouble = {"error": "the keys are wrong", "hint": "renew them", "code": "StoreDenied"}
    with ControlSocket(workspace, lambda _: trouble), pytest.raises(StoreDenied, match="the keys are wrong") as raised:
        spotwarp.sync()
    assert raised.value.hint == "renew them"


@pytest.mark.parametrize("preparing", [True, False])
def test_status_is_the_agents(workspace: Path, preparing: bool) -> None:
    known = {"run": "main", "generation": 0, "phase": "preparing"}
    if not preparing:
        known |= {"generation": 2, "phase": "training", "at_risk_s": 1.5, "at_risk_bytes": 3, "last_snapshot": 8}
        known |= {"error": "store away"}
    with ControlSocket(workspace, lambda _: known):
        found = spotwarp.status()
    if preparing:
        assert found == api.Status("main", 0, "preparing", None, None, None, "")
    else:
        assert found == api.Status("main", 2, "training", 1.5, 3, 8, "store away")


def test_a_notice_has_a_deadline(workspace: Path) -> None:
    assert spotwarp.notice() is None
    file = workspace / ".spotwarp" / "notice.json"
    written = datetime.now(UTC) - timedelta(seconds=10)
    file.write_text(json.dumps({"seconds_left": 30, "source": "aws", "written": written.isoformat()}))
    found = spotwarp.notice()
    assert found is not None
    assert found.source == "aws"
    assert found.deadline == written + timedelta(seconds=30)
    assert 0 < found.seconds_left <= 20


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"seconds_left": "x", "source": 1, "written": "y"}', b"\xff"])
def test_a_notice_that_cannot_be_read_is_a_notice(workspace: Path, content: bytes) -> None:
    (workspace / ".spotwarp" / "notice.json").write_bytes(content)
    found = spotwarp.notice()
    assert found is not None
    assert found.seconds_left == 0
