"""A run that started before older checkpoints were restored and died, at any step: nothing of them is ever lost."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from spotwarp.testing.checkpoints import huggingface_files, write_files
from spotwarp.testing.trees import read_tree
from spotwarp.testing.world import Tree, World, forks

pytestmark = pytest.mark.deep

OLD = "out/checkpoint-10"
FOUND = "out/check*-10"
"""The same for a command that does not name it: then it would wait for it."""
SETTINGS = {
    "SPOTWARP_START_EARLY": "1",
    "SPOTWARP_LEASE": "0.5s",
    "SPOTWARP_LINGER": "0s",
    "SPOTWARP_SETTLE": "0s",
    "SPOTWARP_INTERVAL": "1s",
}
LINE = [
    "run",
    "--command",
    f"for i in $(seq 100); do test -e {FOUND} && break; sleep 0.05; done; test -e {FOUND}/trainer_state.json",
]
STRIDE = 2


def old(found: Tree | None) -> Tree:
    """The older checkpoint, whatever the times of its directory."""
    return {path: node._replace(mtime_ns=0) for path, node in (found or {}).items() if path.startswith(OLD.encode())}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A run with an older and a newer checkpoint, and an empty workspace."""
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    with forks() as (root, made):
        world = World(root, made)
        write_files(world.auditor / OLD, huggingface_files(10, size=300_000))
        write_files(world.auditor / "out/checkpoint-20", huggingface_files(20))
        assert world.spotwarp(world.auditor, ["sync"]) == [0], world.output
        world.keep()
        world.anew()
        yield world


def test_whenever_it_dies_the_next_one_has_them_all(place: World) -> None:
    whole = old(read_tree(place.auditor))
    done = place.dying(LINE, calls="files")
    assert (done.value[0], old(read_tree(place.workspace))) == (0, whole), done.output
    assert "come in beside" in done.output
    for number in range(1, done.value[1] + 1, STRIDE):
        place.anew()
        place.dying(LINE, calls="files", at=number)
        limit = time.monotonic() + 30
        while (codes := place.spotwarp(place.workspace, LINE)) == [125] and "still" in place.output:
            assert time.monotonic() < limit, place.output  # the dead one's command ends by itself
            time.sleep(0.2)
        assert codes == [0], (number, place.output)
        assert old(read_tree(place.workspace)) == whole, number
        assert old(place.audited()) == whole, number
