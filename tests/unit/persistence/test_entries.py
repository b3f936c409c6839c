"""Torn checkpoints come back under a name no trainer takes; the room an entry needs."""

from __future__ import annotations

from spotwarp.persistence.entries import renamed_for_torn, room, shown, torn_name
from spotwarp.persistence.manifest import DIRECTORY, FILE, CheckpointFact, Entry, Extent, Manifest


def manifest(paths: list[bytes], facts: list[tuple[bytes, str]]) -> Manifest:
    entries = tuple(Entry(path, FILE, 0o644, 0, 0) for path in paths)
    return Manifest(0, "main", 1, (), (), entries, tuple(CheckpointFact(path, cls) for path, cls in facts))


def paths(made: Manifest) -> list[bytes]:
    return [entry.path for entry in made.entries]


def test_only_torn_checkpoints_are_renamed_with_all_beneath() -> None:
    made = manifest(
        [b"out/checkpoint-1", b"out/checkpoint-10", b"out/checkpoint-10/a", b"out/checkpoint-100/a", b"out/last.ckpt"],
        [(b"out/checkpoint-1", "resumable"), (b"out/checkpoint-10", "torn"), (b"out/last.ckpt", "torn")],
    )
    renamed = renamed_for_torn(made, 7)
    assert paths(renamed) == [
        b"out/checkpoint-1",
        b"out/checkpoint-10.torn-7",
        b"out/checkpoint-10.torn-7/a",
        b"out/checkpoint-100/a",
        b"out/last.ckpt.torn-7",
    ]
    assert [fact.path for fact in renamed.checkpoints] == [
        b"out/checkpoint-1",
        b"out/checkpoint-10.torn-7",
        b"out/last.ckpt.torn-7",
    ]
    assert renamed_for_torn(manifest([b"a"], [(b"a", "weights-only")]), 7).entries[0].path == b"a"


def test_a_taken_name_is_not_taken_again() -> None:
    made = manifest([b"c", b"c.torn-7"], [(b"c", "torn")])
    assert paths(renamed_for_torn(made, 7)) == [b"c.torn-7", b"c.torn-7-2"]
    assert paths(renamed_for_torn(made, 7, taken={b"c.torn-7-2"})) == [b"c.torn-7", b"c.torn-7-3"]


def test_a_torn_checkpoint_in_a_torn_one_moves_with_it() -> None:
    made = manifest([b"a", b"a/b", b"a/b/c"], [(b"a/b", "torn"), (b"a", "torn")])
    assert paths(renamed_for_torn(made, 1)) == [b"a.torn-1", b"a.torn-1/b", b"a.torn-1/b/c"]


def test_a_long_name_stays_a_name() -> None:
    assert torn_name(b"x/" + b"n" * 255, 12) == b"x/" + b"n" * 247 + b".torn-12"


def test_room_counts_blocks_not_holes() -> None:
    assert room(Entry(b"d", DIRECTORY, 0o755, 0, 0), 4096) == 4096
    assert room(Entry(b"f", FILE, 0o644, 0, 300 << 30), 4096) == 0
    two = (Extent(100, 10, 0, 0), Extent(5000, 10, 0, 0))
    assert room(Entry(b"f", FILE, 0o644, 0, 300 << 30, two), 4096) == 8192
    shared = (Extent(100, 10, 0, 0), Extent(200, 4000, 0, 0))
    assert room(Entry(b"f", FILE, 0o644, 0, 4200, shared), 4096) == 8192


def test_paths_are_shown_on_one_line() -> None:
    assert shown("ünï".encode()) == "ünï"
    assert shown(b"a\nb") == "a\\nb"
    assert "\n" not in shown(b"caf\xe9\n")
