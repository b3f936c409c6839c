"""A server that people work in is told from a job by its name; its end is never the work's."""

from __future__ import annotations

import pytest

from spotwarp.execution.command import Command, serves
from spotwarp.execution.supervisor import (
    ChildExited,
    Exit,
    Policy,
    Seal,
    Started,
    State,
    SyncFinished,
    Tick,
    TreeGone,
    step,
)


@pytest.mark.parametrize(
    "line",
    [
        "jupyter lab",
        "jupyter-lab --ip 0.0.0.0 --no-browser",
        "jupyter lab --port=8888 --allow-root",
        "exec jupyter notebook",
        "/opt/conda/bin/jupyter-notebook",
        "pip install -r requirements.txt && jupyter lab",
        "cd src; TOKEN=x nohup jupyter server\n",
        "python3 -m jupyterlab --allow-root",
        "python -m jupyter lab",
        "uv run jupyter lab",
        "code-server --bind-addr 0.0.0.0:8080",
    ],
)
def test_servers(line: str) -> None:
    assert serves(Command((line,), True, ""))


@pytest.mark.parametrize(
    "line",
    [
        "python train.py",
        "jupyter nbconvert --execute train.ipynb",
        "jupyter execute train.ipynb",
        "jupyter",
        "python -m torch.distributed.run train.py",
        "jupyter lab & python train.py",
        "echo jupyter lab",
        "python train.py --name jupyter-lab",
        "echo 'unfinished",
        "",
    ],
)
def test_jobs(line: str) -> None:
    assert not serves(Command((line,), True, ""))


def test_words_are_taken_as_they_are() -> None:
    assert serves(Command(("jupyter", "lab"), False, ""))
    assert not serves(Command(("sh", "-c", "jupyter lab"), False, ""))


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (3, 3)])
@pytest.mark.parametrize("left_running", [False, True])
def test_a_server_that_was_quit_is_stopped(code: int, expected: int, left_running: bool) -> None:
    actions: list[object] = []
    state = State(Policy(service=True, linger_s=1))
    events = [Started(0), ChildExited(code, "exited", 1), *([Tick(9)] if left_running else []), TreeGone(9)]
    for event in (*events, SyncFinished(True, 10)):
        state, more = step(state, event)
        actions += more
    assert [a for a in actions if isinstance(a, Seal)] == [Seal("stopped", code)]
    assert [a.code for a in actions if isinstance(a, Exit)] == [expected]
