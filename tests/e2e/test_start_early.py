"""A command that starts before older checkpoints are restored, and what becomes of these whatever happens then."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.checkpoints import huggingface_files, write_files
from spotwarp.testing.product import Machine
from spotwarp.testing.trees import Node, read_tree

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow  # a whole program, several times

OLD = "out/checkpoint-10"
FOUND = "out/check*-10"
"""The same for a command that does not name it: then it would wait for it."""
WAITS = f"for i in $(seq 600); do test -e {FOUND} && break; sleep 0.1; done; test -e {FOUND}/trainer_state.json"


def old(tree: dict[bytes, Node]) -> dict[bytes, Node]:
    return {path: node for path, node in tree.items() if path.startswith(OLD.encode())}


@pytest.fixture
def rent(rent: Rent) -> Rent:
    return lambda name="ws": rent(name, env={"SPOTWARP_START_EARLY": "1MiB"})


@pytest.fixture
def trained(ws: Machine) -> Machine:
    """A run that has an old checkpoint and a newer, smaller one."""
    write_files(ws.path / OLD, huggingface_files(10, size=1 << 20))
    write_files(ws.path / "out/checkpoint-20", huggingface_files(20))
    ws.file("train.py", "print('hello')\n")
    ws("sync")
    return ws


def test_it_starts_without_and_gets_them_all(trained: Machine, rent: Rent) -> None:
    other = rent("other").init()
    status = f"{sys.executable} -m spotwarp status --json > status.json"
    done = other("run", "--command", f"{status}; test -e out/checkpoint-20/trainer_state.json && {WAITS}")
    assert "come in beside the command" in done.err
    assert f"{OLD} is in place too" in done.err
    assert '"arriving"' in (other.path / "status.json").read_text()
    assert old(read_tree(other.path)) == old(read_tree(trained.path))


def test_what_the_command_names_is_there_when_it_starts(trained: Machine, rent: Rent) -> None:
    other = rent("other").init()
    done = other("run", "--", "test", "-e", f"{OLD}/trainer_state.json")
    assert "come in beside" not in done.err


def test_one_that_ends_at_once_loses_nothing(trained: Machine, rent: Rent, tmp_path: Path) -> None:
    other = rent("other").init()
    other("run", "--command", "echo more > more; exit 3", code=3)
    trained("restore", "--to", str(tmp_path / "back"))
    assert (tmp_path / "back/more").read_text() == "more\n"
    assert old(read_tree(tmp_path / "back")) == old(read_tree(trained.path))
    done = other("run", "--wait-for-all", "--command", f"test -e {OLD}/trainer_state.json")
    assert "come in beside" not in done.err
    assert old(read_tree(other.path)) == old(read_tree(trained.path))


def test_a_machine_that_dies_meanwhile_goes_on_and_what_is_removed_then_stays_removed(
    trained: Machine, rent: Rent, tmp_path: Path
) -> None:
    other = rent("other").init()
    program = other.start("run", "--command", "echo begun > begun; sleep 60")
    program.until(lambda: (other.path / "begun").exists(), "the command's start")
    other.die()
    other.file("mine", "written after the last snapshot")
    other("run", "--command", f"{WAITS} && cp -a {FOUND} kept && rm -r {FOUND}")
    trained("restore", "--to", str(tmp_path / "back"))
    assert (tmp_path / "back/mine").exists()
    assert not (tmp_path / "back" / OLD).exists()
    kept = {path.partition(b"/")[2]: node for path, node in read_tree(tmp_path / "back/kept").items()}
    assert kept == {path.partition(b"/")[2]: node for path, node in read_tree(trained.path / OLD).items()}
