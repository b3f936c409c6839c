"""Scan and excludes: everything beneath a directory is seen or named, and nothing but directories is opened."""

from __future__ import annotations

import os
import resource
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spotwarp.errors import ConfigError, WorkspaceFault
from spotwarp.persistence.excludes import WITHHELD, Excludes
from spotwarp.persistence.manifest import DIRECTORY, FILE, SYMLINK
from spotwarp.persistence.scan import Scan, scan

ALL = Excludes(defaults=())


def paths(seen: Scan) -> list[bytes]:
    return [entry.path for entry in seen.entries]


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that another user may enter; pytest's own may not be."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@contextmanager
def unprivileged() -> Iterator[None]:
    """For root, who may read everything: be somebody who may not."""
    was = os.geteuid()
    os.seteuid(was or 65534)
    try:
        yield
    finally:
        os.seteuid(was)


def test_every_kind_is_seen_with_its_status(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o750)
    (tmp_path / "d" / "f").write_bytes(b"12345")
    (tmp_path / "d" / "f").chmod(0o640)
    os.utime(tmp_path / "d" / "f", ns=(1, 1_234_567_891_234_567_891))
    (tmp_path / "l").symlink_to("nowhere/at all")
    seen = {entry.path: entry for entry in scan(tmp_path, ALL).entries}
    file, link, directory = seen[b"d/f"], seen[b"l"], seen[b"d"]
    assert (file.kind, file.mode, file.size, file.mtime_ns) == (FILE, 0o640, 5, 1_234_567_891_234_567_891)
    assert (file.ino, file.dev) == ((tmp_path / "d" / "f").stat().st_ino, tmp_path.stat().st_dev)
    assert (link.kind, link.target) == (SYMLINK, b"nowhere/at all")
    assert (directory.kind, directory.mode, directory.size) == (DIRECTORY, 0o750, 0)
    assert len(seen) == 3


def test_the_order_is_that_of_the_bytes(tmp_path: Path) -> None:
    for name in ("b", "a.txt", "a", "é", "Z"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_bytes(b"")
    seen = paths(scan(tmp_path, ALL))
    assert seen == sorted(seen)
    assert len(seen) == 10


def test_special_files_are_named_once_and_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "sock"))
        seen = scan(tmp_path, ALL)
    assert paths(seen) == []
    assert [(skip.path, skip.reason.split(";")[0]) for skip in seen.skipped] == [
        (b"pipe", "a FIFO"),
        (b"sock", "a socket"),
    ]
    assert not seen.unreadable


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "w" / "a").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"")
    for name, target in (("a/up", "../../w"), ("me", "."), ("out", str(tmp_path / "outside")), ("gone", "missing")):
        (tmp_path / "w" / name).symlink_to(target)
    assert paths(scan(tmp_path / "w", ALL)) == [b"a", b"a/up", b"gone", b"me", b"out"]


def test_the_workspace_itself_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "f").write_bytes(b"")
    (tmp_path / "link").symlink_to("real")
    assert paths(scan(tmp_path / "link", ALL)) == [b"f"]


def test_what_cannot_be_read_is_named_and_the_rest_is_seen(open_to_all: Path) -> None:
    closed = open_to_all / "closed"
    for directory in (closed, open_to_all / "open"):
        directory.mkdir()
        (directory / "f").write_bytes(b"")
    closed.chmod(0)
    with unprivileged():
        seen = scan(open_to_all, ALL)
        without = scan(open_to_all, Excludes(["closed/"]))
    closed.chmod(0o700)
    assert paths(seen) == [b"closed", b"open", b"open/f"]
    assert [skip.path for skip in seen.skipped] == [b"closed"]
    assert "ermission" in seen.skipped[0].reason
    assert seen.unreadable == {b"closed"}
    assert paths(without) == [b"open", b"open/f"]
    assert without.skipped == []


def test_trees_deeper_than_the_descriptors_allowed_are_seen_whole(tmp_path: Path) -> None:
    here = tmp_path
    for _ in range(200):
        (here / "z").write_bytes(b"")
        (here / "a").mkdir()
        (here / "b").mkdir()
        here = here / "b"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_already = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_already + 100, hard))  # half of what the depth would take
    try:
        seen = scan(tmp_path, ALL)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(seen.entries) == 600
    assert seen.skipped == []


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    before = len(list(Path("/proc/self/fd").iterdir()))
    scan(tmp_path, ALL)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_running_out_of_descriptors_is_an_error_not_a_smaller_workspace(tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c" / "d").mkdir(parents=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.dup(0)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare + 4, hard))
    try:
        with pytest.raises(WorkspaceFault):
            scan(tmp_path, ALL)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_missing_workspace_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceFault):
        scan(tmp_path / "none", ALL)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WorkspaceFault):
        scan(tmp_path / "file", ALL)


def test_a_workspace_that_is_replaced_meanwhile_is_a_fault(tmp_path: Path) -> None:
    work = tmp_path / "w"
    (work / "d").mkdir(parents=True)

    def replace(entries: int) -> None:
        work.rename(tmp_path / "old")
        work.mkdir()

    with pytest.raises(WorkspaceFault, match="replaced"):
        scan(work, ALL, on_progress=replace)


def test_what_vanishes_meanwhile_is_no_news(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()

    def vanish(entries: int) -> None:
        for name in ("a", "b"):
            if (tmp_path / name).exists():
                (tmp_path / name).rmdir()

    assert scan(tmp_path, ALL, on_progress=vanish).skipped == []


def test_a_directory_that_becomes_a_link_is_not_entered(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "w" / name).mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"")
    turned: list[str] = []

    def turn(entries: int) -> None:
        if not turned:
            for name in ("a", "b"):
                (tmp_path / "w" / name).rmdir()
                (tmp_path / "w" / name).symlink_to(tmp_path / "outside")
            turned.append("done")

    assert not [path for path in paths(scan(tmp_path / "w", ALL, on_progress=turn)) if b"secret" in path]


def test_the_file_systems_time_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "before").write_bytes(b"")
    seen = scan(tmp_path, ALL)
    (tmp_path / "after").write_bytes(b"")
    assert (tmp_path / "before").stat().st_mtime_ns <= seen.fs_time_ns <= (tmp_path / "after").stat().st_mtime_ns
    assert paths(seen) == [b"before"]


EXCLUDED = {
    "*.tmp": (["a.tmp", "d/b.tmp", "d/.tmp"], ["a.tmpx", "tmp"]),
    "/data": (["data", "data/"], ["x/data", "data2"]),
    "data/raw/": (["data/raw/"], ["data/raw", "x/data/raw/"]),
    "cache/**": (["cache/x", "cache/y/"], ["x/cache/x", "cache"]),
    "**/wandb": (["wandb/", "a/b/wandb"], ["wandbx"]),
    "a?c": (["abc", "x/abc"], ["ac", "a/c", "abbc"]),
    "[ab].pt": (["a.pt", "x/b.pt"], ["c.pt"]),
    "caf\udce9": (["caf\udce9"], ["cafe"]),
}


@pytest.mark.parametrize("pattern", EXCLUDED)
def test_patterns_mean_what_they_mean_to_git(pattern: str) -> None:
    rule = Excludes([pattern], defaults=())
    out, kept = EXCLUDED[pattern]
    for path in out + kept:
        is_dir = path.endswith("/")
        assert rule.excluded(os.fsencode(path.rstrip("/")), is_dir) == (path in out), path


def test_the_last_pattern_that_matches_decides() -> None:
    rule = Excludes(["*.log", "!keep.log", "keep.log/"], defaults=())
    assert rule.excluded(b"a.log", False)
    assert not rule.excluded(b"x/keep.log", False)
    assert rule.excluded(b"x/keep.log", True)


def test_a_newline_in_a_name_hides_nothing() -> None:
    rule = Excludes()
    assert rule.excluded(b"a\nb/.env", False)
    assert not rule.excluded(b".env\n", False)


def test_by_default_secrets_and_own_runtime_files_stay_here() -> None:
    rule = Excludes()
    for path in (".env", "x/.env.local", ".spotwarp/lock", ".spotwarp/cache", ".netrc", "a/id_rsa"):
        assert rule.excluded(path.encode(), False), path
    for path in (".ssh", ".aws", "a/__pycache__", ".spotwarp/staging"):
        assert rule.excluded(path.encode(), True), path
    for path in (".env.example", ".spotwarp/config.yaml", ".spotwarp/log/run.log", "environment", "train.py"):
        assert not rule.excluded(path.encode(), False), path
    for path in (".spotwarp", ".spotwarp/log"):
        assert not rule.excluded(path.encode(), True), path
    assert not Excludes(["!.env"]).excluded(b".env", False)


def test_a_pattern_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match="trail"):
        Excludes(["trail\\"])


def test_secrets_left_out_by_default_are_named_and_nothing_else_is(tmp_path: Path) -> None:
    for name in (".env", "a/.env.local", ".env.example", "b/.ssh/id_rsa", "__pycache__/x", "own/skip", ".netrc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = scan(tmp_path, Excludes(["skip", "!.netrc", "a/.env.local"]))
    named = [(one.path, one.reason, one.unreadable) for one in found.skipped]
    assert named == [(b".env", WITHHELD, False), (b"b/.ssh", WITHHELD, False)]
    assert {entry.path for entry in found.entries} >= {b".env.example", b".netrc"}
