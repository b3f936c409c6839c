"""The workspace's disk is full from any moment on: stored is what is said to be, and no half restore counts.

The store is on another disk. Once there is room again the next verb goes on as if nothing had been.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwarp.testing import session
from spotwarp.testing.world import Tree, World, forks, states, tree

pytestmark = pytest.mark.slow

TYPED = {16, 17, 22, 125}


@pytest.fixture
def place() -> Iterator[World]:
    with forks() as (root, made):
        yield World(root, made)


@pytest.fixture
def looks(tmp_path: Path) -> list[Tree | None]:
    return states(tmp_path)


def untimed(looks: Tree | None) -> Tree:
    return {p: n._replace(mtime_ns=0) if stat.S_ISDIR(n.kind) else n for p, n in (looks or {}).items()}


def test_a_sync_on_a_full_disk_stores_what_is_there(place: World, looks: list[Tree | None]) -> None:
    session.lay(place.workspace, 1)
    assert place.spotwarp(place.workspace, ["sync"]) == [0], place.output
    session.lay(place.workspace, 2)
    place.keep()
    place.anew()
    count = place.dying(["sync"], calls="room").value[1]
    assert count > 3
    stored = 0
    for number in sorted({*range(1, count + 1, max(1, count // 12)), count}):
        place.anew()
        ended = place.dying(["sync"], calls="room", at=number)
        assert ended.code == 0, (number, ended.output)  # the process; no traceback
        code = ended.value[0]
        assert code in {0, *TYPED}, (number, code, ended.output)
        assert untimed(place.audited()) == untimed(looks[2 if code == 0 else 1]), (number, ended.output)
        stored += code == 0
        assert place.spotwarp(place.workspace, ["sync", "--takeover"]) == [0], (number, place.output)
        assert untimed(place.audited()) == untimed(looks[2]), number
    assert stored, "a full disk here is no reason not to store elsewhere"


def test_a_restore_on_a_full_disk_is_old_or_new_or_known_to_be_neither(place: World, looks: list[Tree | None]) -> None:
    session.lay(place.workspace, 1)
    assert place.spotwarp(place.workspace, ["sync"]) == [0], place.output
    assert place.spotwarp(place.auditor, ["restore"]) == [0], place.output
    session.lay(place.auditor, 2)
    assert place.spotwarp(place.auditor, ["sync"]) == [0], place.output
    place.keep()
    place.anew()
    done = place.dying(["restore"], calls="room")
    assert done.value[0] == 0, done.output
    count = done.value[1]
    old, new = untimed(looks[1]), untimed(looks[2])
    numbers = sorted({*range(1, count + 1, max(1, count // 10)), count})
    for number in numbers:
        place.anew()
        ended = place.dying(["restore"], calls="room", at=number)
        assert ended.code == 0, (number, ended.output)
        if ended.value[0] == 0:
            assert untimed(tree(place.workspace)) == new, number
        else:
            assert ended.value[0] in TYPED, (number, ended.output)
            if not (place.workspace / ".spotwarp" / "restoring").exists():
                assert untimed(tree(place.workspace)) in (old, new), number
        command = "test ! -e .spotwarp/restoring && cp -a . ../seen"
        assert place.spotwarp(place.workspace, ["run", "--command", command]) == [0], (number, place.output)
        assert untimed(tree(place.root / "seen")) == new, number


def test_a_run_on_a_full_disk(place: World, looks: list[Tree | None]) -> None:
    """It runs the command and says what it stored, or does not start it and says why."""
    session.lay(place.workspace, 1)
    place.keep()
    place.anew()
    line = ["run", "--command", "touch ../ran"]
    count = place.dying(line, calls="room").value[1]
    for number in sorted({*range(1, count + 1, max(1, count // 10)), count}):
        place.anew()
        ended = place.dying(line, calls="room", at=number)
        assert ended.code == 0, (number, ended.output)
        code, ran = ended.value[0], (place.root / "ran").exists()
        assert code in {0, *TYPED}, (number, code, ended.output)
        if code == 0:
            assert ran
            assert untimed(place.audited()) == untimed(looks[1]), number
        assert "hint:" in ended.output or "stored" in ended.output or code == 0, (number, ended.output)
