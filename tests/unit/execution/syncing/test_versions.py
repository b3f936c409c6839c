"""Which version of a single-file checkpoint a snapshot takes: the new one when it is whole, else the one before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwarp.execution.syncing.versions import CUT_OFF, End, Moment, WholeVersions, free_name
from spotwarp.persistence.entries import older_versions
from spotwarp.persistence.manifest import FileFact
from spotwarp.persistence.scan import Scanned
from spotwarp.testing.backups import Backups
from spotwarp.testing.checkpoints import huggingface_files, safetensors_file, torch_file, write_files

SETTLE_S = 2.0


def whole(text: bytes, kind: str = "safetensors", size: int = 5000) -> bytes:
    body = (text * size)[:size]
    return safetensors_file({"w": body}) if kind == "safetensors" else torch_file(body)


def rewrite(path: Path, data: bytes) -> None:
    """In place, as most trainers do: the same file, emptied and filled again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(data)


class World:
    """A workspace and its snapshots, looked at whenever a test says it is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.backups = Backups(root)
        self.number = 0
        self._restores = 0
        self._waiting: dict[bytes, int] = {}

    def take(self, *, after_s: float = 60.0, end: End = End.LIVE) -> dict[bytes, FileFact]:
        """A snapshot, `after_s` seconds after the last write in the workspace."""
        last = max((p.stat().st_ctime_ns for p in self.root.rglob("*") if p.is_file()), default=0)
        moment = Moment(last + int(after_s * 1e9), end, SETTLE_S)
        self.backups.take(versions=WholeVersions(self.number, moment, self._waiting), always=True)
        self.number += 1
        assert self.backups.base is not None
        return {fact.path: fact for fact in self.backups.base.versions}

    def holds(self) -> dict[bytes, bytes]:
        """The files that the last snapshot restores to."""
        self._restores += 1
        into = self.root.with_name(f"restored-{self._restores}")
        found = self.backups.restored(into)
        places = {path: into / os.fsdecode(path) for path in found}
        return {path: place.read_bytes() for path, place in places.items() if place.is_file()}

    def skipped(self) -> dict[bytes, str]:
        assert self.backups.base is not None
        return {skip.path: skip.reason for skip in self.backups.base.skipped}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "w")


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
@pytest.mark.parametrize("end", list(End))
def test_a_torn_rewrite_leaves_the_version_before(world: World, kind: str, end: End) -> None:
    path = world.root / "out" / "last.ckpt"
    old, new = whole(b"old", kind), whole(b"NEW!", kind)
    rewrite(path, old)
    assert world.take()[b"out/last.ckpt"] == FileFact(b"out/last.ckpt", kind)
    for length in (0, 1, 7, 9, 100, len(new) // 2, len(new) - 1):
        rewrite(path, new[:length])
        fact = world.take(end=end, after_s=0)[b"out/last.ckpt"]
        assert (fact.format, fact.kept) == (kind, 1)
        assert world.holds() == {b"out/last.ckpt": old}
    assert "version of snapshot 1" in older_versions([fact])[0]
    assert ("being rewritten" in fact.reason) == (end is End.LIVE)
    rewrite(path, new)
    assert world.take(after_s=3)[b"out/last.ckpt"].kept == 0
    assert world.holds() == {b"out/last.ckpt": new}


def test_a_mixture_of_two_versions_disagrees_with_its_checksums(world: World) -> None:
    path = world.root / "last.pt"
    old, new = whole(b"old", "torch", 300_000), whole(b"NEW", "torch", 300_000)
    rewrite(path, old)
    world.take()
    mixed = new[:200_000] + old[200_000:]
    with path.open("r+b") as file:
        file.write(mixed)
    assert world.take()[b"last.pt"].reason.endswith("does not match its checksum")
    assert world.holds() == {b"last.pt": old}
    with path.open("r+b") as file:
        file.write(new)
    assert world.take(after_s=0)[b"last.pt"].kept == 0  # proven: nothing to wait for
    assert world.holds() == {b"last.pt": new}


def test_without_checksums_only_quiet_time_tells_that_a_rewrite_is_over(world: World) -> None:
    path = world.root / "last.safetensors"
    old, new = whole(b"old"), whole(b"NEW")
    rewrite(path, old)
    world.take()
    rewrite(path, new)
    assert world.take(after_s=1)[path.name.encode()].reason == "being rewritten"
    assert world.holds() == {path.name.encode(): old}
    world.take(after_s=2)
    assert world.holds() == {path.name.encode(): new}


def test_what_was_cut_off_without_a_checksum_is_stored_aside(world: World) -> None:
    path = world.root / "last.safetensors"
    old, new = whole(b"old"), whole(b"NEW")
    rewrite(path, old)
    world.take()
    rewrite(path, new)
    for _ in range(2):  # once more: nothing changes
        fact = world.take(after_s=1, end=End.CUT)[b"last.safetensors"]
        assert (fact.kept, fact.reason) == (1, CUT_OFF)
        assert world.holds() == {b"last.safetensors": old, b"last.safetensors.unverified": new}
    world.take(after_s=1, end=End.CLEAN)
    assert world.holds() == {b"last.safetensors": new}


def test_a_new_file_under_the_old_name_is_taken_at_once(world: World) -> None:
    path = world.root / "last.safetensors"
    rewrite(path, whole(b"old"))
    world.take()
    rewrite(world.root / "part", whole(b"NEW"))
    (world.root / "part").rename(path)
    assert world.take(after_s=0)[b"last.safetensors"].kept == 0
    assert world.holds() == {b"last.safetensors": whole(b"NEW")}


def test_the_first_version_is_left_out_while_it_is_torn_and_named(world: World) -> None:
    (world.root / "keep").write_bytes(b"1")
    for length in (0, 5, 2000):
        rewrite(world.root / "last.ckpt", whole(b"new")[:length])
        assert world.take(after_s=1) == {}
        assert world.holds() == {b"keep": b"1"}
        assert world.skipped()[b"last.ckpt"].startswith("being rewritten")
    # What lies there broken for long is nobody's rewrite: it is stored as it is.
    world.take(after_s=31)
    assert world.holds()[b"last.ckpt"] == whole(b"new")[:2000]
    assert world.skipped() == {}


def test_a_torn_first_version_is_kept_aside_when_nobody_will_finish_it(world: World) -> None:
    rewrite(world.root / "last.ckpt", whole(b"new")[:2000])
    for _ in range(2):
        assert world.take(after_s=1, end=End.CUT) == {}
        assert world.holds() == {b"last.ckpt.unverified": whole(b"new")[:2000]}
        assert world.skipped() == {}


def test_data_that_begins_with_zeros_is_no_checkpoint(world: World) -> None:
    rewrite(world.root / "tokens.bin", bytes(4096) + b"\x07" * 5000)
    rewrite(world.root / "none.bin", b"")
    assert world.take(after_s=0) == {}
    assert world.holds() == {b"tokens.bin": bytes(4096) + b"\x07" * 5000, b"none.bin": b""}
    assert world.skipped() == {}


def test_what_never_becomes_whole_is_not_left_out_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that grows all the time is always young."""
    path = world.root / "rows.ckpt"
    rewrite(path, bytes(5000))
    world.take(after_s=1)
    assert set(world.skipped()) == {b"rows.ckpt"}
    monkeypatch.setattr("spotwarp.execution.syncing.versions.LEFT_OUT_S", 0.0)
    with path.open("ab") as file:
        file.write(b"more")
    world.take(after_s=1)
    assert world.skipped() == {}
    assert world.holds() == {b"rows.ckpt": bytes(5000) + b"more"}


def test_names_prove_nothing(world: World) -> None:
    for name, body in {"site.pth": b"import this", "data.bin": b"\x01" * 5000, "model.pt": b"\x80\x04K\x01."}.items():
        rewrite(world.root / name, body)
    write_files(world.root / "out" / "checkpoint-10", huggingface_files(10))
    assert world.take(after_s=0) == {}
    rewrite(world.root / "data.bin", b"\x02" * 300)
    world.take(after_s=0)
    held = world.holds()
    assert held[b"data.bin"] == b"\x02" * 300
    assert set(world.skipped()) == set()
    assert held[b"site.pth"] == b"import this"


def test_another_format_takes_the_place_of_a_checkpoint(world: World) -> None:
    rewrite(world.root / "data.bin", whole(b"old"))
    assert world.take()[b"data.bin"].format == "safetensors"
    rewrite(world.root / "data.bin", b"rows of something else" * 100)
    assert world.take(after_s=0) == {}
    assert world.holds() == {b"data.bin": b"rows of something else" * 100}


def test_what_changes_after_it_was_judged_is_not_taken(world: World) -> None:
    path = world.root / "last.pt"
    old, new = whole(b"old", "torch"), whole(b"NEW", "torch")
    rewrite(path, old)
    world.take()
    rewrite(path, new)
    rule = WholeVersions(1, Moment(path.stat().st_ctime_ns + 10**10, End.LIVE, SETTLE_S))

    def meddling(root: Path, entries: list[Scanned], *more: object):  # type: ignore[no-untyped-def]
        decided = rule(root, entries, *more)  # type: ignore[arg-type]
        rewrite(path, new[: len(new) // 2])
        return decided

    world.backups.take(versions=meddling)  # type: ignore[arg-type]
    assert world.backups.base is not None
    [fact] = world.backups.base.versions
    assert (fact.kept, fact.reason) == (1, "changed while it was being stored")
    assert world.holds() == {b"last.pt": old}


def test_a_kept_version_costs_no_upload(world: World) -> None:
    rewrite(world.root / "last.ckpt", whole(b"old", size=2_000_000))
    world.take()
    before = world.backups.packs_put()
    rewrite(world.root / "last.ckpt", whole(b"new", size=2_000_000)[:-1])
    world.take()
    assert world.backups.packs_put() == before


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["rewrite", "replace", "overwrite", "remove"]),
            st.sampled_from(["safetensors", "torch"]),
            st.integers(1, 4),
            st.floats(0, 1),
            st.sampled_from(["snapshot", "go on"]),
            st.sampled_from(list(End)),
            st.sampled_from([0.0, 1.0, 2.5, 40.0]),
        ),
        max_size=8,
    )
)
def test_whatever_a_trainer_does_no_snapshot_has_a_mixture(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int, float, str, End, float]]
) -> None:
    world = World(tmp_path_factory.mktemp("any") / "w")
    path = world.root / "last.ckpt"
    versions: set[bytes] = set()
    mixed = False
    for how, kind, number, share, then, end, after_s in steps:
        data = whole(b"%d" % number, kind, 3000 + number)
        cut = data if share > 0.7 else data[: int(len(data) * share)]
        versions.add(data)
        if how == "remove":
            path.unlink(missing_ok=True)
            mixed = False
        elif how == "replace":
            (world.root / "part").write_bytes(data)
            (world.root / "part").rename(path)
            mixed = False
        elif how == "overwrite" and path.exists():
            # Only with checksums can such a mixture be told from a version.
            with path.open("r+b") as file:
                file.write(cut)
            mixed = mixed or kind == "safetensors" or not path.read_bytes().startswith(b"PK")
        else:
            rewrite(path, cut)
            mixed = False
        if then == "go on" or mixed:
            continue
        world.take(after_s=after_s, end=end)
        held = world.holds()
        torn_and_left = after_s > 30 or end is End.CLEAN  # without any version before, it is as it is
        if b"last.ckpt" in held and held[b"last.ckpt"] not in versions:
            assert torn_and_left
            assert not any(fact.path == b"last.ckpt" for fact in world.backups.base.versions)  # type: ignore[union-attr]


def test_names_for_what_is_put_aside_are_free_and_never_too_long() -> None:
    assert free_name(b"a/b.ckpt", b".torn-7", set()) == b"a/b.ckpt.torn-7"
    assert free_name(b"b", b".torn-7", {b"b.torn-7", b"b.torn-7-2"}) == b"b.torn-7-3"
    long = b"x" * 250 + b".ckpt"
    assert len(free_name(b"d/" + long, b".unverified", set())) == 2 + 255


def test_what_cannot_be_read_is_left_to_those_who_name_it(world: World) -> None:
    rewrite(world.root / "last.ckpt", whole(b"1"))
    (world.root / "last.ckpt").chmod(0)
    world.take()
    if os.geteuid():
        assert b"last.ckpt" in world.skipped()
