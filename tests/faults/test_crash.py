"""Death at every call: of a sync session to the store, of a restore to the store and to the file system.

Whoever comes next finds everything that was acknowledged, and goes on from there.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwarp.testing import session
from spotwarp.testing.world import Tree, World, forks, states, tree

pytestmark = pytest.mark.slow

# Before or after the effect of a call: every other one in `make test`, both for each in `make test-deep`.
MOMENTS = pytest.mark.parametrize(
    "moments",
    [
        pytest.param((False, True), id="in-turn"),
        pytest.param((False,), id="before", marks=pytest.mark.deep),
        pytest.param((True,), id="after", marks=pytest.mark.deep),
    ],
)
Moments = tuple[bool, ...]


@pytest.fixture
def place() -> Iterator[World]:
    with forks() as (root, made):
        yield World(root, made)


@pytest.fixture
def looks(tmp_path: Path) -> list[Tree | None]:
    return states(tmp_path)


@MOMENTS
def test_a_sync_that_dies_at_any_store_call_loses_nothing(
    place: World, looks: list[Tree | None], moments: Moments
) -> None:
    place.keep()
    place.anew()
    undisturbed = place.session()
    assert undisturbed.code == 0, undisturbed.output
    assert place.audited() == looks[-1]
    count = undisturbed.value
    print(f"{count} store calls")
    assert count > 50
    for number in range(1, count + 1):
        place.anew()
        ended = place.session(at=number, after=moments[number % len(moments)])
        assert ended.died, (number, ended)
        kept = place.acknowledged()
        assert place.audited() in looks[kept : kept + 2], (number, kept)
        # Whoever comes next goes on from there; now and then it waits until the dead one's lease has run out.
        hurry = [] if number % 8 == 0 else ["--takeover"]
        assert place.spotwarp(place.workspace, ["sync", *hurry], ["prune", "--grace", "0s"]) == [0, 0], place.output
        assert place.audited() == tree(place.workspace), number


def untimed(looks: Tree | None) -> Tree:
    """Without the times of directories: one that was changed by moving files into it is not older than that."""
    return {p: n._replace(mtime_ns=0) if stat.S_ISDIR(n.kind) else n for p, n in (looks or {}).items()}


@MOMENTS
@pytest.mark.parametrize("calls", ["store", "files"])
def test_a_restore_that_dies_leaves_the_old_state_or_a_job_to_finish(
    place: World, looks: list[Tree | None], calls: str, moments: Moments
) -> None:
    """The workspace is behind: the run has gone on from another one, which changed, added and removed files."""
    session.lay(place.workspace, 1)
    assert place.spotwarp(place.workspace, ["sync"]) == [0], place.output
    assert place.spotwarp(place.auditor, ["restore"]) == [0], place.output
    session.lay(place.auditor, 2)
    assert place.spotwarp(place.auditor, ["sync"]) == [0], place.output
    place.keep()
    place.anew()
    done = place.dying(["restore"], calls=calls)
    assert done.value[0] == 0, done.output
    old, new = untimed(looks[1]), untimed(looks[2])
    assert untimed(tree(place.workspace)) == new
    count = done.value[1]
    print(f"{count} calls")
    assert count > 5
    for number in range(1, count + 1):
        place.anew()
        ended = place.dying(["restore"], calls=calls, at=number, after=moments[number % len(moments)])
        assert ended.died, (number, ended)
        if not (place.workspace / ".spotwarp" / "restoring").exists():
            assert untimed(tree(place.workspace)) in (old, new), number
        # The command sees the new state, whole, and nothing of a restore that is under way.
        command = "test ! -e .spotwarp/restoring && cp -a . ../seen"
        assert place.spotwarp(place.workspace, ["run", "--command", command]) == [0], (number, place.output)
        assert untimed(tree(place.root / "seen")) == new, number
