"""A restore that died while it moved things into place: it is finished as what it was, and taken for nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwarp.testing import session
from spotwarp.testing.world import Tree, World, forks, states, tree

pytestmark = pytest.mark.slow

LAST = 24
"""So many calls before its end a restore is moving things into place, and after."""


@pytest.fixture
def place() -> Iterator[World]:
    """Run `main` holds the first state, run `other` the second; the workspace is of neither, it is empty."""
    with forks() as (root, made):
        world = World(root, made)
        for run, state in (("main", 1), ("other", 2)):
            session.lay(world.auditor, state)
            codes = world.spotwarp(world.auditor, ["sync", "--run", run])
            assert codes == [0], world.output
        world.keep()
        world.anew()
        yield world


def untimed(found: Tree | None) -> Tree:
    return {path: node._replace(mtime_ns=0) for path, node in (found or {}).items()}


def test_what_is_half_of_another_run_is_not_taken_for_this_one(place: World, tmp_path: Path) -> None:
    """`run` trains on all of `main`, or leaves the choice to the user; it never goes on from what is `other`'s."""
    looks = states(tmp_path)
    count = place.dying(["restore", "--run", "other"], calls="files").value[1]
    assert untimed(tree(place.workspace)) == untimed(looks[2])
    installed = 0
    for number in range(count - LAST, count + 1, 2):
        place.anew()
        assert place.dying(["restore", "--run", "other"], calls="files", at=number).died
        begun = (place.workspace / "only-in-2").exists()
        (code,) = place.spotwarp(place.workspace, ["run", "--command", "cp -a . ../seen; exit 3"])
        assert code == 125 if begun else code in (125, 3), (number, place.output)
        installed += code == 125
        if code == 125:
            assert "stored nowhere" in place.output, (number, place.output)
            assert not (place.root / "seen").exists(), number
        else:
            assert untimed(tree(place.root / "seen")) == untimed(looks[1]), number
    assert 0 < installed < LAST // 2 + 1, "it died never, or always, while it moved things"


def test_to_a_directory_the_same_command_goes_on(place: World) -> None:
    target = place.root / "target"
    line = ["restore", "--run", "other", "--to", str(target)]
    done = place.dying(line, calls="files")
    assert done.value[0] == 0, done.output
    whole, count = tree(target), done.value[1]
    for number in range(1, count + 1):
        place.anew()
        assert place.dying(line, calls="files", at=number).died
        (code,) = place.spotwarp(place.workspace, line)
        if code == 2:  # it had died after the last move: what is there is whole, and left alone
            assert "not empty" in place.output, (number, place.output)
        else:
            assert code == 0, (number, place.output)
        assert untimed(tree(target)) == untimed(whole), number
