"""A workspace whose run went on elsewhere: brought up without a question where it has no work of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotwarp.testing import session
from spotwarp.testing.world import World, forks


@pytest.fixture
def behind() -> Iterator[World]:
    """The workspace is at the first state, the run at the second. Copied: no stat cache knows these files."""
    with forks() as (root, made):
        place = World(root, made)
        session.lay(place.workspace, 1)
        assert place.spotwarp(place.workspace, ["sync"]) == [0], place.output
        assert place.spotwarp(place.auditor, ["restore"]) == [0], place.output
        session.lay(place.auditor, 2)
        assert place.spotwarp(place.auditor, ["sync"]) == [0], place.output
        place.keep()
        place.anew()
        yield place


def test_what_is_stored_already_is_no_local_work(behind: World) -> None:
    assert behind.spotwarp(behind.workspace, ["restore"]) == [0], behind.output
    names = {path.relative_to(behind.workspace).parts[0] for path in behind.workspace.iterdir()}
    assert names == {".spotwarp", "data", "logs", "only-in-2", "out", "train.py"}
    assert not (behind.workspace / "out" / "checkpoint-10").exists(), "an empty checkpoint is left"
    aside = [path.name for path in behind.workspace.glob(".spotwarp/set-aside/*/only-in-1/*")]
    assert sorted(aside) == ["caf\udce9", "deep"]


def test_what_is_stored_nowhere_is_the_users_decision(behind: World) -> None:
    mine = behind.workspace / "only-in-1" / "deep" / "0"
    mine.write_bytes(b"changed here")
    assert behind.spotwarp(behind.workspace, ["restore"], ["sync"]) == [21, 21], behind.output
    assert mine.read_bytes() == b"changed here"
    assert behind.spotwarp(behind.workspace, ["restore", "--force"]) == [0], behind.output
    assert not mine.exists()
    kept = behind.workspace.glob(".spotwarp/set-aside/*/only-in-1/deep/0")
    assert [path.read_bytes() for path in kept] == [b"changed here"]
