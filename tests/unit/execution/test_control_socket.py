"""Requests and answers over a real socket, wherever it has to lie, and a lock where the file system has none."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotwarp.errors import AlreadyRunning, ExecutionError, Interrupted
from spotwarp.execution import control_socket
from spotwarp.execution.control_socket import ControlSocket, ask, glimpse
from spotwarp.execution.occupancy import lock
from spotwarp.execution.requests import Requests, told
from spotwarp.testing.product import until


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "ws" / ".spotwarp").mkdir(parents=True)
    return tmp_path / "ws"


def echo(request: dict[str, Any]) -> dict[str, Any]:
    return {"heard": request}


def test_a_request_is_answered_and_nobody_is_there_afterwards(workspace: Path) -> None:
    with ControlSocket(workspace, echo):
        assert ask(workspace, {"verb": "x"}) == {"heard": {"verb": "x"}}
    assert ask(workspace, {"verb": "x"}) is None
    assert list((workspace / ".spotwarp").iterdir()) == []


def test_a_dead_agents_socket_is_replaced_and_a_living_ones_is_not(workspace: Path) -> None:
    with ControlSocket(workspace, echo):
        (path,) = (workspace / ".spotwarp").iterdir()
        with pytest.raises(OSError, match="another SpotWarp"), ControlSocket(workspace, lambda _: {}):
            pass
        assert ask(workspace, {}) == {"heard": {}}
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with ControlSocket(workspace, echo):
        assert ask(workspace, {}) == {"heard": {}}


def test_where_no_thread_is_to_be_had_nobody_waits_for_ever(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name == "control-request":
            raise RuntimeError("can't start new thread")
        start(thread)

    with ControlSocket(workspace, echo):
        monkeypatch.setattr(threading.Thread, "start", limited)
        with pytest.raises(ExecutionError, match="went away"):
            ask(workspace, {}, timeout_s=20)
        assert glimpse(workspace) is None
        monkeypatch.undo()
        assert ask(workspace, {}) == {"heard": {}}  # as soon as there are threads again


def test_a_workspace_of_any_length_has_a_socket(workspace: Path) -> None:
    deep = workspace / ("d" * 200) / ("e" * 200)
    (deep / ".spotwarp").mkdir(parents=True)
    with ControlSocket(deep, echo):
        assert ask(deep, {}) == {"heard": {}}


def test_another_machines_socket_is_neither_asked_nor_taken(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ControlSocket(workspace, lambda _: {"who": "a"}):
        monkeypatch.setattr(control_socket, "_boot", lambda: "other")
        assert ask(workspace, {}) is None
        with ControlSocket(workspace, lambda _: {"who": "b"}):
            assert ask(workspace, {}) == {"who": "b"}
        monkeypatch.undo()
        assert ask(workspace, {}) == {"who": "a"}


@pytest.fixture
def no_sockets_there(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workspace's file system holds no sockets."""
    real = control_socket._bound

    def bound(path: Path) -> socket.socket:
        if path.is_relative_to(workspace):
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path)

    monkeypatch.setattr(control_socket, "_bound", bound)


@pytest.mark.usefixtures("no_sockets_there")
def test_where_a_volume_holds_no_sockets_it_lies_elsewhere(workspace: Path, tmp_path: Path) -> None:
    with ControlSocket(workspace, echo):
        assert ask(workspace, {"verb": "x"}) == {"heard": {"verb": "x"}}
        (place,) = tmp_path.glob("spotwarp-*")
        assert place.stat().st_mode & 0o777 == 0o700
    assert list(place.iterdir()) == []


@pytest.mark.usefixtures("no_sockets_there")
@pytest.mark.parametrize("how", ["open to others", "a link"])
def test_a_place_that_others_could_have_made_is_not_used(workspace: Path, tmp_path: Path, how: str) -> None:
    place = tmp_path / f"spotwarp-{os.getuid()}"
    if how == "a link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        place.symlink_to("theirs")
    else:
        place.mkdir()
        place.chmod(0o777)
    with pytest.raises(OSError, match="not supported"), ControlSocket(workspace, echo):
        pass
    assert ask(workspace, {}) is None


def test_an_agent_that_dies_before_it_answers_is_said_to_have(workspace: Path) -> None:
    name = workspace / ".spotwarp" / f"agent-{control_socket._boot()}.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(name))
        listening.listen()
        dying = threading.Thread(target=lambda: listening.accept()[0].close())
        dying.start()
        with pytest.raises(ExecutionError, match="went away"):
            ask(workspace, {"verb": "wait"})
        dying.join()


# --- requests


def test_whoever_waits_has_the_outcome_before_the_end_returns(workspace: Path) -> None:
    requests = Requests("main", since="s", detached=True)
    answers: list[Any] = []
    with ControlSocket(workspace, requests.answer, requests.sent):
        assert (ask(workspace, {"verb": "status"}) or {})["phase"] == "preparing"
        waiting = [threading.Thread(target=lambda: answers.append(ask(workspace, {"verb": "wait"}))) for _ in range(3)]
        for thread in waiting:
            thread.start()
        while requests._waiting < 3:
            threading.Event().wait(0.01)
        requests.end({"exit_code": 7})
        assert requests._waiting == 0
        for thread in waiting:
            thread.join(10)
    assert answers == [{"exit_code": 7}] * 3


def test_a_refused_stop_counts_for_nobody_who_waits(workspace: Path) -> None:
    requests = Requests("main", since="s", detached=True)
    with ControlSocket(workspace, requests.answer, requests.sent):
        assert (ask(workspace, {"verb": "stop", "run": "other"}) or {})["code"] == "AlreadyRunning"
        until(lambda: requests._waiting == 0)


def test_another_run_and_an_unknown_verb_are_refused() -> None:
    requests = Requests("main", since="s", detached=False)
    assert requests.answer({"verb": "sync", "run": "other"})["code"] == "AlreadyRunning"
    assert "nothing to store yet" in requests.answer({"verb": "sync"})["error"]
    assert "unknown" in requests.answer({"verb": "dance"})["error"]
    assert told(Interrupted("stopped", hint="h")) == {"error": "stopped", "hint": "h", "code": "Interrupted"}


# --- locks


@pytest.fixture(params=[errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def no_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def flock(_fd: int, _operation: int) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)
    return


@pytest.mark.usefixtures("no_locks")
def test_without_file_locks_two_of_one_machine_are_still_kept_apart(workspace: Path) -> None:
    said: list[str] = []
    with lock.hold(workspace, what="run", since="then", say=said.append):
        taken = pytest.raises(AlreadyRunning, match=f"`spotwarp run` \\(process {os.getpid()}, since then\\)")
        with taken, lock.hold(workspace, what="sync", since="now"):
            pass
        assert "no locks" in said[0]
        elsewhere = lock.exclusive(workspace / "target", what="restore")
        again = lock.exclusive(workspace / "target", what="restore")
        with elsewhere, pytest.raises(AlreadyRunning), again:
            pass
    with lock.hold(workspace, what="sync", since="now"):
        pass


def test_a_holder_on_another_machine_is_named_as_one(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lock.hold(workspace, what="run", since="then"):
        monkeypatch.setattr(socket, "gethostname", lambda: "pod-b")
        assert f"(process {os.getpid()} on " in lock.owner(workspace / ".spotwarp" / "lock")
