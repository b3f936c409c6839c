"""What a workspace stems from, by its note and by a log that may have gone back."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwarp.execution import localstate
from spotwarp.execution.localstate import Origin
from spotwarp.execution.origin import Damaged, Stem, lacking, manifest_id, stem_of
from spotwarp.persistence.envelope import FORMAT_VERSION
from spotwarp.persistence.layout import log_key
from spotwarp.persistence.repository import Identity, Repository
from spotwarp.persistence.runlog.entry import AnyEntry, Claim, Snapshot, State, Unknown
from spotwarp.persistence.runlog.log import Head, RunLog
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.stores import MemoryStore

FIVE = Origin("id", "main", 5, manifest="1-e")
CLAIM = Claim(generation=1, machine="m", cause="first", base=0, lease_s=20)


def snapshot(manifest: str, base: int = 0) -> Snapshot:
    return Snapshot(generation=1, manifest=manifest, address="a", base=base)


@pytest.mark.parametrize(
    ("there", "origin", "words"),
    [
        (snapshot("1-e"), FIVE, ""),
        (snapshot("1-x"), Origin("id", "main", 5), ""),  # noted by an older SpotWarp: the number is all there is
        (Damaged(), FIVE, ""),
        (Unknown(n=5, v=99), FIVE, ""),
        (None, FIVE, "it was at snapshot 5, the store's last one is 2:"),
        (snapshot("1-x"), FIVE, "it was at snapshot 5, and that is another one there (the store's last one is 2):"),
        (CLAIM, Origin("id", "main", 5), "and that is another one there"),
    ],
)
def test_what_the_log_lacks(there: AnyEntry | Unknown | Damaged | None, origin: Origin, words: str) -> None:
    said = lacking(origin, Head(7, State(snapshot=2)), there)
    assert bool(said) == bool(words)
    assert words in said


class Place:
    """A workspace, and a log with a claim and two snapshots, 2 and 3."""

    def __init__(self, root: Path) -> None:
        self.root, self.clock, self.store = root, VirtualClock(), MemoryStore()
        self.repository = Repository(self.store, Identity(FORMAT_VERSION, "id"))
        log = self.log()
        log.append(lambda _: CLAIM)
        log.append(lambda _: snapshot("1-b"))
        log.append(lambda _: snapshot("1-c", base=2))

    def log(self) -> RunLog:
        return RunLog(self.store, "main", life="a", clock=self.clock, rng=SeededRng("a"))

    def stem(self, origin: Origin) -> Stem:
        localstate.save(localstate.runtime(self.root) / localstate.STATE, origin)
        return stem_of(self.root, self.repository, self.log())

    def lose(self, number: int) -> None:
        self.store.delete(log_key("main", number))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_the_log_has(place: Place) -> None:
    assert stem_of(place.root, place.repository, place.log()) == Stem()
    assert place.stem(Origin("id", "main", 3, manifest="1-c")) == Stem(3)
    assert place.stem(Origin("id", "main", 2, manifest="1-b")) == Stem(2)
    assert manifest_id(place.log(), 2) == "1-b"
    assert [manifest_id(place.log(), n) for n in (0, 1, 9)] == ["", "", ""]


def test_what_it_has_no_more(place: Place) -> None:
    noted = Origin("id", "main", 3, manifest="1-c")
    place.lose(3)
    assert place.stem(noted).snapshot is None
    assert "it was at snapshot 3, the store's last one is 2:" in place.stem(noted).behind
    place.log().append(lambda _: snapshot("1-other", base=2))
    assert "another one there" in place.stem(noted).behind
    for number in (3, 2, 1):
        place.lose(number)
    assert "it was at snapshot 3, the store has none:" in place.stem(noted).behind


def test_of_another_run_or_repository_nothing_is_missed(place: Place) -> None:
    assert place.stem(Origin("id", "other", 9)) == Stem()
    assert place.stem(Origin("another", "main", 9)) == Stem()
    assert place.stem(Origin("id", "main", 0)) == Stem()


def test_a_commit_that_never_came_to_stand_is_harmless(place: Place) -> None:
    assert place.stem(Origin("id", "main", 0, pending="1-never")) == Stem()
    assert place.stem(Origin("id", "main", 2, pending="1-never", manifest="1-b")) == Stem(2)
    assert place.stem(Origin("id", "main", 2, pending="1-c", manifest="1-b")) == Stem(3)
    place.lose(3)
    assert place.stem(Origin("id", "main", 2, pending="1-c", manifest="1-b")) == Stem(2)
    place.lose(2)
    assert place.stem(Origin("id", "main", 2, pending="1-c", manifest="1-b")).behind


def test_the_note_before_a_commit_keeps_what_is_known(place: Place) -> None:
    first = localstate.committing(place.root, "id", "main", "1-d")
    assert (first.snapshot, first.pending, first.manifest) == (0, "1-d", "")
    place.stem(Origin("id", "main", 3, manifest="1-c"))
    second = localstate.committing(place.root, "id", "main", "1-d")
    assert (second.snapshot, second.pending, second.manifest) == (3, "1-d", "1-c")
    assert localstate.committing(place.root, "id", "other", "1-d").snapshot == 0
