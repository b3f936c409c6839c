"""A16: a workspace emptied, replaced or unmounted is a fault; the last good state stays what a restore gives."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.product import Machine, until

pytestmark = pytest.mark.slow
Rent = Callable[..., Machine]


def _emptied(path: Path) -> None:
    for one in path.iterdir():
        if one.name != ".spotwarp":
            one.unlink()


def _replaced(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.mkdir()


@pytest.mark.parametrize("loss", [_emptied, _replaced])
def test_A16_what_is_suddenly_gone_is_not_stored_as_gone(rent: Rent, loss: Callable[[Path], None]) -> None:
    machine = rent().init()
    for n in range(20):
        machine.file(f"f{n}", f"content {n}")
    go = machine.path.with_name("go")
    run = machine.start("run", "--command", f"cd /; until [ -e {go} ]; do sleep 0.05; done")
    until(lambda: machine.snapshots(), "the first snapshot")
    loss(machine.path)
    run.until(lambda: "NOT STORED" in run.err, "being told")
    go.touch()
    assert "everything is stored" not in run.end(125).err

    other = rent().init()
    other("restore")
    assert sorted(p.name for p in other.path.iterdir() if p.name != ".spotwarp") == sorted(f"f{n}" for n in range(20))
    shutil.rmtree(machine.path.with_name("elsewhere"), ignore_errors=True)
