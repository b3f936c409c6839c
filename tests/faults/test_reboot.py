"""The machine crashed and came back with its disk: what was written and never synced may be there as zeros."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.product import Machine

Rent = Callable[..., Machine]
CONTENT = "weights " * 1000


@pytest.fixture
def machine(rent: Rent) -> Machine:
    machine = rent().init()
    machine.file("model.txt", CONTENT)
    machine("run", "--command", "exit 3", code=3)
    state = machine.path / ".spotwarp" / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "boot": "another"}))
    return machine


def _model(machine: Machine) -> Path:
    return machine.path / "model.txt"


def test_a_whole_workspace_goes_on(machine: Machine) -> None:
    machine("run", "--command", "true")
    machine("run", "--run", "other", "--command", "true")


def test_a_file_full_of_zeros_is_not_taken_for_work_that_goes_on(machine: Machine) -> None:
    before = _model(machine).stat()
    _model(machine).write_bytes(bytes(before.st_size))

    stopped = machine("run", "--command", "true", code=125)

    assert "model.txt" in stopped.err
    assert "--restore" in stopped.err
    machine("run", "--restore", "--command", "true")
    assert _model(machine).read_text() == CONTENT
    [aside] = (machine.path / ".spotwarp" / "set-aside").rglob("model.txt")
    assert aside.read_bytes() == bytes(before.st_size)
