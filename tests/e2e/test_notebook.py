"""A notebook server under `spotwarp run`: quitting it ends nothing for good, and a cell stores the workspace."""

from __future__ import annotations

import json
import os
import sys

import pytest

from spotwarp.testing.product import Machine, until

pytestmark = pytest.mark.slow

# What a kernel does: a cell's `!spotwarp sync`, and the same from Python, wherever the cell has gone.
SERVER = f"""#!{sys.executable}
import json, os, subprocess, sys, time
from pathlib import Path
import spotwarp
here = Path.cwd()
(here / "notebook.ipynb").write_text("first cell")
shell = subprocess.run([sys.executable, "-m", "spotwarp", "sync", "--json"], capture_output=True, check=True)
os.chdir("/")
(here / "notebook.ipynb").write_text("second cell")
snapshot = spotwarp.sync()
status = spotwarp.status()
(here / "seen.part").write_text(json.dumps([
    json.loads(shell.stdout)["id"], snapshot.id, status.phase, status.last_snapshot, spotwarp.notice() is None
]))
(here / "seen.part").rename(here / "seen")
while not (here / "quit").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def path_with_jupyter(ws: Machine) -> str:
    """A PATH on which `jupyter-lab` is a stand-in for the real one."""
    place = ws.path.with_name("bin")
    place.mkdir()
    (place / "jupyter-lab").write_text(SERVER)
    (place / "jupyter-lab").chmod(0o755)
    return f"{place}:{os.environ['PATH']}"


def test_a_resumed_run_knows_its_last_snapshot(ws: Machine) -> None:
    ask = f"{sys.executable} -c 'import spotwarp; print(spotwarp.status().last_snapshot)'; exit 3"
    ws("run", "--command", "echo work > file; exit 3", code=3)
    last = ws.snapshots()[-1]["id"]
    assert ws("run", "--interval", "1h", "--command", ask, code=3).out.split() == [str(last).encode()]


def test_a_notebook_that_was_quit_is_stopped_and_goes_on(ws: Machine, path_with_jupyter: str) -> None:
    env = {"PATH": path_with_jupyter}
    program = ws.start("run", "--interval", "1h", "--", "jupyter-lab", "--no-browser", env=env)
    until((ws.path / "seen").exists, "the cells")
    by_shell, by_name, phase, last, unnoticed = json.loads((ws.path / "seen").read_text())
    assert by_shell < by_name == last
    assert (phase, unnoticed) == ("training", True)
    ws("restore", "--snapshot", str(by_name), "--to", str(ws.path.with_name("out")), "notebook.ipynb")
    assert (ws.path.with_name("out") / "notebook.ipynb").read_text() == "second cell"
    ws.file("quit", "")
    assert "`spotwarp run` goes on" in program.end(0).err
    assert ws.facts("status")["state"] == "stopped"
    ws("run", "--", "jupyter-lab", env=env)  # `quit` is there: it ends at once
    assert ws.facts("status")["generation"] == 2


def test_what_is_no_server_by_its_name_can_be_called_one(ws: Machine) -> None:
    ws("run", "--command", "true", env={"SPOTWARP_SERVICE": "true"})
    assert ws.facts("status")["state"] == "stopped"
    ws("run", "--command", "true")
    assert ws.facts("status")["state"] == "complete"
