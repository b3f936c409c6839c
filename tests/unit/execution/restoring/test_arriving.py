"""Older checkpoints come in beside the command: whole, by one rename, and never in the place of anything."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from spotwarp.clock import SystemClock
from spotwarp.errors import StoreUnavailable, WorkspaceFault
from spotwarp.execution import localstate
from spotwarp.execution.restoring.arriving import Arrivals, beneath, for_later, still_awaited
from spotwarp.execution.syncing.judging import judge_all
from spotwarp.persistence import beneath as below
from spotwarp.persistence import staging as stage
from spotwarp.persistence.install import arrive, install
from spotwarp.persistence.manifest import Manifest, tabled
from spotwarp.persistence.repository import Repository, create
from spotwarp.persistence.restore import FetchOptions, fetch
from spotwarp.persistence.statcache import Record
from spotwarp.testing.backups import Backups
from spotwarp.testing.checkpoints import huggingface_files, write_files
from spotwarp.testing.clocks import SeededRng
from spotwarp.testing.stores import Fault, FaultyStore, MemoryStore
from spotwarp.testing.trees import read_tree

OLD = (b"out/checkpoint-10", b"out/checkpoint-20")
NEW = b"out/checkpoint-30"


class Place:
    """A snapshot with three checkpoints, and a workspace that has all of it but the two older ones."""

    def __init__(self, scratch: Path) -> None:
        self.source, self.root, self.store = scratch / "source", scratch / "here", MemoryStore()
        for step in (10, 20, 30):
            write_files(self.source / f"out/checkpoint-{step}", huggingface_files(step, size=300_000))
        (self.source / "train.py").write_bytes(b"import this\n")
        backups = Backups(self.source, store=self.store, judge=lambda r, e: judge_all(r, e, settle_s=0.0))
        self.manifest: Manifest = backups.take().manifest
        self.repository: Repository = create(self.store, clock=SystemClock(), rng=SeededRng())[0]
        self.said: list[str] = []
        self.records: list[Record] = []
        now = [e for e in self.manifest.entries if not any(e.path == d or e.path.startswith(d + b"/") for d in OLD)]
        self._put(now)
        localstate.await_only(self.root, self.repository.identity.id, "main", OLD)

    def _put(self, entries: list[object]) -> None:
        staging = self.root / ".spotwarp/staging"
        options = FetchOptions(workers=1, sync=False)
        fetch(
            store=self.store, manifest=self.manifest, wanted=entries, staging=staging, clock=SystemClock(),
            options=options,
        )  # type: ignore[arg-type]  # fmt: skip
        install(staging, self.root, aside=self.root / "aside", sync=False)

    def arrivals(self, store: FaultyStore | None = None, turn: Callable[[], object] = lambda: None) -> Arrivals:
        left = still_awaited(self.root, self.repository.identity.id, "main", self.manifest)
        where = self.repository if store is None else Repository(store, self.repository.identity)
        return Arrivals(
            self.root, where, "main", self.manifest, left,
            clock=SystemClock(), say=self.said.append, turn=turn, written=self.records.extend,
        )  # fmt: skip

    def awaited(self) -> tuple[bytes, ...]:
        return localstate.awaited(self.root, self.repository.identity.id, "main")

    def tree(self, root: Path) -> dict[bytes, object]:
        return {path: node for path, node in read_tree(root).items() if not path.startswith((b".spotwarp", b"out\0"))}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def run(arrivals: Arrivals) -> None:
    arrivals.start()
    arrivals._thread.join(60)
    assert not arrivals._thread.is_alive()


# ------------------------------------------------------------------------------------------------- what may be late


def test_older_checkpoints_may_be_late(place: Place, tmp_path: Path) -> None:
    (empty := tmp_path / "empty").mkdir()
    assert for_later(place.manifest, empty, place.store, worth=1 << 20) == OLD
    assert for_later(place.manifest, empty, place.store, worth=256 << 20) == (), "so few bytes are not worth it"
    (empty / "out/checkpoint-20").mkdir(parents=True)
    assert for_later(place.manifest, empty, place.store, worth=0) == OLD[:1], "some of it is here"


def test_without_a_resumable_one_nothing_is_late(place: Place, tmp_path: Path) -> None:
    facts = tuple(msgspec.structs.replace(fact, cls="weights-only") for fact in place.manifest.checkpoints)
    assert for_later(msgspec.structs.replace(place.manifest, checkpoints=facts), tmp_path, place.store, worth=0) == ()


def test_a_newer_one_of_another_class_is_not_late(place: Place, tmp_path: Path) -> None:
    facts = tuple(
        msgspec.structs.replace(fact, cls="resumable" if fact.step == 20 else "unknown")
        for fact in place.manifest.checkpoints
    )
    late = for_later(msgspec.structs.replace(place.manifest, checkpoints=facts), tmp_path, place.store, worth=0)
    assert late == OLD[:1]


def test_the_best_one_is_not_late(tmp_path: Path) -> None:
    work, store = tmp_path / "w", MemoryStore()
    for step in (10, 20, 30):
        files = huggingface_files(step)
        files["trainer_state.json"] = (
            files["trainer_state.json"][:-1] + b', "best_model_checkpoint": "out/checkpoint-10"}'
        )
        write_files(work / f"out/checkpoint-{step}", files)
    backups = Backups(work, store=store, judge=lambda r, e: judge_all(r, e, settle_s=0.0))
    manifest = backups.take().manifest
    (empty := tmp_path / "empty").mkdir()
    assert for_later(manifest, empty, store, worth=0) == OLD[1:]
    os.link(work / "out/checkpoint-20/model.safetensors", work / "model.safetensors")
    assert for_later(backups.take().manifest, empty, store, worth=0) == (), "it shares a file with what is not late"


def test_what_a_link_names_is_not_late(tmp_path: Path) -> None:
    work, store = tmp_path / "w", MemoryStore()
    for step in (10, 20, 30):
        write_files(work / f"out/checkpoint-{step}", huggingface_files(step))
    (work / "best").symlink_to("out/checkpoint-10")
    manifest = Backups(work, store=store, judge=lambda r, e: judge_all(r, e, settle_s=0.0)).take().manifest
    (empty := tmp_path / "empty").mkdir()
    assert for_later(manifest, empty, store, worth=0) == OLD[1:]


@pytest.mark.parametrize(
    ("word", "late"),
    [
        ("out/checkpoint-10", OLD[1:]),
        ("python eval.py --model /elsewhere/checkpoint-20/model.safetensors; python train.py", OLD[:1]),
        ("eval.py out/checkpoint-*", ()),
        ("eval.py out/checkpoint-1?", ()),
        ("for i in 10 20; do eval.py out/checkpoint-$i; done", ()),
        ("eval.py out/checkpoint-", ()),
        ("train.py --checkpoint-dir out --checkpoint-every 10", OLD),
        ("train.py out/checkpoint-30 out/checkpoint-1000", OLD),
        ("train.py --resume_from_checkpoint {checkpoint}", OLD),
    ],
)
def test_what_the_command_names_is_not_late(place: Place, tmp_path: Path, word: str, late: tuple[bytes, ...]) -> None:
    (empty := tmp_path / "empty").mkdir()
    assert for_later(place.manifest, empty, place.store, worth=0, words=["train.py", word]) == late


# ---------------------------------------------------------------------------------------------------- how they come


def test_all_come_in_and_nothing_is_awaited_any_more(place: Place) -> None:
    arrivals = place.arrivals()
    assert arrivals.words().startswith("2 older checkpoint(s), ")
    run(arrivals)
    assert place.tree(place.root) == place.tree(place.source) | {b"out": place.tree(place.root)[b"out"]}
    assert (place.awaited(), arrivals.words()) == ((), "")
    assert [line.split()[0] for line in place.said] == ["out/checkpoint-20", "out/checkpoint-10"]
    assert {record.path for record in place.records} == {
        e.path for d in OLD for e in tabled(place.manifest.entries).beneath(d) if e.path != d
    }
    assert not (place.root / ".spotwarp/arriving").exists()


def test_each_appears_whole_at_once(place: Place) -> None:
    """Whenever the store is asked, what is in place of a checkpoint is all of it or nothing."""
    whole = {path: {e.path for e in tabled(place.manifest.entries).beneath(path)} for path in OLD}

    def look() -> None:
        tree = read_tree(place.root)
        for path, entries in whole.items():
            here = {name for name in tree if name == path or name.startswith(path + b"/")}
            assert here in (set(), entries)

    run(place.arrivals(turn=look))
    assert place.awaited() == ()
    assert not any("cannot" in line for line in place.said), place.said


def test_what_the_command_made_wins(place: Place) -> None:
    def make() -> None:
        (place.root / "out/checkpoint-20").mkdir(exist_ok=True)

    run(place.arrivals(turn=make))
    assert list((place.root / "out/checkpoint-20").iterdir()) == []
    assert (place.root / "out/checkpoint-10/model.safetensors").exists()
    assert place.awaited() == ()
    assert any("has made its own" in line for line in place.said)


def test_where_its_directory_was_removed_it_does_not_come_back(place: Place) -> None:
    def move() -> None:
        if (place.root / "out").exists():
            (place.root / "out").rename(place.root / "moved")

    run(place.arrivals(turn=move))
    assert not (place.root / "out").exists()
    assert {p.name for p in (place.root / "moved").iterdir()} == {"checkpoint-30"}
    assert place.awaited() == ()


def test_ended_in_the_middle_the_next_goes_on(place: Place) -> None:
    arrivals = place.arrivals(turn=lambda: arrivals.stop())
    run(arrivals)
    assert set(place.awaited()) == set(OLD)
    assert not (place.root / "out/checkpoint-10").exists()
    run(place.arrivals())
    assert place.awaited() == ()
    assert (place.root / "out/checkpoint-10/model.safetensors").exists()


def test_put_in_place_but_not_noted_it_is_not_awaited(place: Place) -> None:
    run(place.arrivals())
    localstate.await_only(place.root, place.repository.identity.id, "main", OLD)
    assert still_awaited(place.root, place.repository.identity.id, "main", place.manifest) == ()
    assert place.awaited() == ()


def test_a_store_that_is_away_is_said_once_and_asked_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotwarp.execution.restoring.arriving._AGAIN_S", 0.01)
    away = Fault("get_range", times=5, error=StoreUnavailable("away"))
    run(place.arrivals(FaultyStore(place.store, away)))
    assert place.awaited() == ()
    assert sum("cannot be brought in" in line for line in place.said) == 1
    assert (place.root / "out/checkpoint-20/model.safetensors").exists()


def test_another_runs_note_is_not_ours(place: Place) -> None:
    assert localstate.awaited(place.root, place.repository.identity.id, "other") == ()
    assert localstate.awaited(place.root, "another", "main") == ()


# ------------------------------------------------------------------------------------------------------- the rename


def staged(place: Place, path: bytes) -> Path:
    staging = place.root / ".spotwarp/arriving"
    fetch(
        store=place.store, manifest=place.manifest, wanted=beneath(place.manifest, [path]), staging=staging,
        clock=SystemClock(), options=FetchOptions(workers=1, sync=False),
    )  # fmt: skip
    return staging


@pytest.mark.parametrize("plain", [False, True])
def test_nothing_is_replaced_not_even_an_empty_directory(
    place: Place, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    """Also where the file system has no exclusive rename (`plain`)."""
    if plain:
        monkeypatch.setattr(below, "_call", lambda *_: False)
    (place.root / "out/checkpoint-10").mkdir()
    assert not arrive(staged(place, OLD[0]), place.root, OLD[0])
    assert list((place.root / "out/checkpoint-10").iterdir()) == []
    assert arrive(staged(place, OLD[1]), place.root, OLD[1])
    tree = place.tree(place.root)
    assert {p: n for p, n in tree.items() if p.startswith(OLD[1])} == {
        p: n for p, n in place.tree(place.source).items() if p.startswith(OLD[1])
    }


def test_what_is_not_whole_does_not_arrive(place: Place) -> None:
    staging = staged(place, OLD[0])
    stage.begin(staging, place.manifest, beneath(place.manifest, [OLD[0]]))
    with pytest.raises(WorkspaceFault):
        arrive(staging, place.root, OLD[0])
    assert not (place.root / "out/checkpoint-10").exists()
