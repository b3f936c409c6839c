"""Install: renames only, from any crash the same call ends in the same place; nothing local is lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock
from spotwarp.errors import WorkspaceFault
from spotwarp.persistence import install as installing
from spotwarp.persistence import staging as stage
from spotwarp.persistence.install import install, set_aside
from spotwarp.persistence.restore import FetchOptions, fetch
from spotwarp.testing.snapshots import SnapshotBuilder
from spotwarp.testing.stores import MemoryStore
from spotwarp.testing.trees import Node, read_tree


class Place:
    """A workspace, a staging beside it, and where local things go."""

    def __init__(self, base: Path) -> None:
        self.root, self.staging, self.aside = base / "work", base / "staging", base / "aside"
        self.root.mkdir(parents=True)

    def install(self, *, keep_replaced: bool = False) -> None:
        install(self.staging, self.root, aside=self.aside, keep_replaced=keep_replaced, sync=False)

    def stage(self) -> dict[bytes, Node]:
        build = SnapshotBuilder()
        build.directory(b"out", mode=0o750, mtime_ns=11)
        build.directory(b"out/checkpoint-10", mode=0o555, mtime_ns=12)
        build.directory(b"out/empty", mtime_ns=13)
        build.bundle(
            {
                b"out/checkpoint-10/model": b"new model",
                b"out/log": b"new log",
                b"out/plot": b"new plot",
                b"top": b"new top",
                b"fresh/deep/file": b"fresh",
            }
        )
        build.directory(b"data", mtime_ns=14)
        build.bundle({b"data/a": b"new a"})
        build.link(b"latest", b"out/checkpoint-10")
        store = MemoryStore()
        made = build.store_in(store)
        fetch(
            store=store,
            manifest=made.manifest,
            staging=self.staging,
            clock=SystemClock(),
            options=FetchOptions(workers=1, sync=False),
        )
        expected = read_tree(self.staging)
        expected[b"out/checkpoint-10"] = expected[b"out/checkpoint-10"]._replace(mode=0o555)
        for implied in (b"fresh", b"fresh/deep"):  # not entries: their times are nobody's promise
            expected[implied] = expected[implied]._replace(mtime_ns=0)
        return expected

    def clutter(self) -> None:
        """Local things of every kind of conflict."""
        (self.root / "out").mkdir(mode=0o700)
        (self.root / "out/log").write_text("old log")
        (self.root / "out/plot").mkdir()
        (self.root / "out/plot/own").write_text("own plot")
        (self.root / "out/own").write_text("own")
        (self.root / "top").write_text("old top")
        (self.root / "outside").mkdir()
        (self.root / "data").symlink_to("outside")
        (self.root / "latest").symlink_to("/nowhere")

    def beside(self) -> list[str]:
        return sorted(path.name for path in self.root.parent.iterdir())

    def tree(self) -> dict[bytes, Node]:
        tree = read_tree(self.root)
        return {
            path: node._replace(mtime_ns=0) if path in (b"fresh", b"fresh/deep") else node
            for path, node in tree.items()
        }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_into_an_empty_workspace(place: Place) -> None:
    expected = place.stage()
    place.install()
    assert place.tree() == expected
    assert not place.aside.exists()
    assert place.beside() == ["work"]


def test_top_level_directories_move_whole(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.stage()
    moves = list(recorded_renames(monkeypatch))
    place.install()
    assert sorted(moves[0]) == [b"data", b"fresh", b"latest", b"out", b"top"]


def recorded_renames(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    seen: list[bytes] = []
    rename = os.rename

    def recording(source: bytes, *arguments: bytes, **more: int) -> None:
        seen.append(source)
        rename(source, *arguments, **more)

    monkeypatch.setattr(installing.os, "rename", recording)
    yield seen


def test_over_local_work(place: Place) -> None:
    expected = place.stage()
    place.clutter()
    place.install()
    tree = place.tree()
    assert {path: tree[path] for path in expected} == expected
    assert (place.root / "out/own").read_text() == "own"
    assert list((place.root / "outside").iterdir()) == []
    # What had to go because it was of another kind is kept; a file over a file was asked for.
    assert set(read_tree(place.aside)) == {b"data", b"out", b"out/plot", b"out/plot/own"}


def test_over_local_work_that_is_to_be_kept(place: Place) -> None:
    expected = place.stage()
    place.clutter()
    place.install(keep_replaced=True)
    tree = place.tree()
    assert {path: tree[path] for path in expected} == expected
    kept = read_tree(place.aside)
    assert set(kept) == {b"data", b"latest", b"out", b"out/log", b"out/plot", b"out/plot/own", b"top"}
    assert (place.aside / "out/log").read_text() == "old log"


class Died(BaseException):
    """The machine went away here."""


def dying(call: Callable[..., None], fatal: int, *, after: bool) -> tuple[Callable[..., None], list[int]]:
    """`call`, which does not return from its `fatal`-th time on: before or after its effect."""
    count = [0]

    def die(*arguments: object, **more: object) -> None:
        count[0] += 1
        if count[0] < fatal:
            call(*arguments, **more)
            return
        if after and count[0] == fatal:
            call(*arguments, **more)
        raise Died

    return die, count


STEPS = ("rename", "rmdir", "unlink", "fchmod", "utime", "chmod")


@pytest.mark.parametrize("keep_replaced", [False, True])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_is_finished_by_the_next_call(
    tmp_path: Path, step: str, after: bool, keep_replaced: bool
) -> None:
    undisturbed = Place(tmp_path / "undisturbed")
    expected = undisturbed.stage()
    undisturbed.clutter()
    undisturbed.install(keep_replaced=keep_replaced)
    kept = contents(undisturbed.aside)

    for fatal in range(1, 100):
        place = Place(tmp_path / f"{fatal}")
        place.stage()
        place.clutter()
        finished = died_at(place, step, fatal, after=after, keep_replaced=keep_replaced)
        place.install(keep_replaced=keep_replaced)
        tree = place.tree()
        assert {path: tree[path] for path in expected} == expected
        assert contents(place.aside) == kept
        assert place.beside() == ["aside", "work"]
        if finished:
            assert fatal > 1 or step in ("chmod", "unlink", "rmdir")
            return
    pytest.fail("never got through")


def died_at(place: Place, step: str, fatal: int, *, after: bool, keep_replaced: bool) -> bool:
    """Install with a death at the `fatal`-th `step`; True when it was over before that."""
    with pytest.MonkeyPatch.context() as patch:
        die, _ = dying(getattr(os, step), fatal, after=after)
        patch.setattr(os, step, die)
        try:
            place.install(keep_replaced=keep_replaced)
        except Died:
            return False
    return True


def contents(root: Path) -> dict[bytes, bytes]:
    return {path: node.content for path, node in read_tree(root).items()}


def test_a_second_call_does_nothing(place: Place) -> None:
    place.stage()
    place.install()
    before = read_tree(place.root)
    (place.root / "top").write_text("the trainer was here")
    place.install()
    after = read_tree(place.root)
    assert {path: node for path, node in after.items() if path != b"top"} == {
        path: node for path, node in before.items() if path != b"top"
    }


def test_what_is_not_ready_is_not_installed(place: Place) -> None:
    place.staging.mkdir()
    (place.staging / "half").write_text("x")
    with pytest.raises(WorkspaceFault, match="not complete"):
        place.install()
    assert list(place.root.iterdir()) == []


def test_another_file_system_is_refused_in_words(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.stage()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(installing.os, "rename", refuse)
    with pytest.raises(WorkspaceFault, match="one file system"):
        place.install()
    assert stage.ready(place.staging) is not None


# ----------------------------------------------------------------------------------------------------- set aside


def test_set_aside_keeps_the_layout_and_overwrites_nothing(place: Place) -> None:
    for turn in ("first", "second", "third"):
        (place.root / "a/b").mkdir(parents=True)
        (place.root / "a/b/file").write_text(turn)
        (place.root / "a/other").write_text(turn)
        moved = set_aside(place.root, [b"a/b", b"a/b/file", b"a/other", b"absent"], place.aside)
        assert set(moved) == {b"a/b", b"a/other"}
        assert list((place.root / "a").iterdir()) == []
    names = {path: (place.aside / path).read_text() for path in ("a/b/file", "a/b-2/file", "a/b-3/file", "a/other-3")}
    assert names == {"a/b/file": "first", "a/b-2/file": "second", "a/b-3/file": "third", "a/other-3": "third"}


def test_set_aside_where_a_file_lies_in_the_way(place: Place) -> None:
    place.aside.mkdir()
    (place.aside / "a").write_text("in the way")
    (place.root / "a").mkdir()
    (place.root / "a/file").write_text("x")
    assert set_aside(place.root, [b"a/file"], place.aside) == {b"a/file": b"a-2/file"}
    assert (place.aside / "a").read_text() == "in the way"
    assert (place.aside / "a-2/file").read_text() == "x"


def test_set_aside_moves_a_link_not_what_it_points_to(place: Place, tmp_path: Path) -> None:
    (tmp_path / "dataset").mkdir()
    (place.root / "data").symlink_to(tmp_path / "dataset")
    set_aside(place.root, [b"data", b"data/x"], place.aside)
    assert (place.aside / "data").is_symlink()
    assert (tmp_path / "dataset").is_dir()
