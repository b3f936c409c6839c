"""Who holds files: seen in /proc, by real processes; and what the stat cache is believed of such files."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spotwarp.persistence.backup import Uploaded
from spotwarp.persistence.backup.plan import Belief
from spotwarp.persistence.held import Held, look
from spotwarp.persistence.manifest import FILE
from spotwarp.persistence.scan import Scanned
from spotwarp.persistence.statcache import Record, StatCache
from spotwarp.testing.backups import Backups
from spotwarp.testing.clocks import VirtualClock

SECOND = 1_000_000_000
WRITTEN = 1_700_000_000 * SECOND + 123_456_789
ENTRY = Scanned(b"a/f", FILE, 0o644, WRITTEN, WRITTEN, 10, 77, 5, 8)


@contextmanager
def process(code: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has come to its first line of output and waits for a line, or its end."""
    child = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child
    finally:
        child.kill()
        child.communicate()


HOLDERS = {
    "open to write": ("f = open(p, 'r+b')", True),
    "open to append": ("f = open(p, 'ab')", True),
    "write only": ("f = os.open(p, os.O_WRONLY)", True),
    "open to read": ("f = open(p, 'rb')", False),
    "mapped to write": ("f = open(p, 'r+b'); m = mmap.mmap(f.fileno(), 0); f.close()", True),
    "mapped to read": ("f = open(p, 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); f.close()", False),
    "a private copy": ("f = open(p, 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY); f.close()", False),
    "another file": ("f = open(p + '.other', 'w')", False),
}


@pytest.mark.parametrize("how", HOLDERS)
def test_who_could_write_unseen_is_seen(tmp_path: Path, how: str) -> None:
    code, held = HOLDERS[how]
    path = tmp_path / "odd\nname with spaces"
    path.write_bytes(bytes(mmap.PAGESIZE))
    identity = path.stat().st_dev, path.stat().st_ino
    with process(f"import mmap, os, sys; p = sys.argv[1]; {code}; print('ready', flush=True); input()", str(path)):
        assert (identity in look(tmp_path)) == held
    assert identity not in look(tmp_path)


def test_a_mapping_is_known_by_its_path_where_the_devices_differ(tmp_path: Path) -> None:
    """As on btrfs and overlays: the device in the mappings is not the one that stat gives."""
    work, proc = tmp_path / "w", tmp_path / "proc"
    (proc / "7" / "fd").mkdir(parents=True)
    work.mkdir()
    names = ("here", "new\nline", "gone (deleted)")
    for name in names:
        (work / name).write_bytes(b"x")
    rows = [f"7f00-7f01 rw-s 00000000 00:3f {(work / name).stat().st_ino} {work}/{name}" for name in names]
    rows.append("7f02-7f03 rw-s 00000000 00:01 4 /dev/zero (deleted)")
    rows.append(f"7f04-7f05 r--s 00000000 00:3f 99 {work}/other")
    (proc / "7" / "maps").write_text("\n".join(row.replace("new\nline", "new\\012line") for row in rows) + "\n")
    seen = look(work, proc=proc)
    assert seen.known
    assert {(work / name).stat().st_ino for name in names} <= {ino for _, ino in seen.files}
    for name in names:
        assert ((work / name).stat().st_dev, (work / name).stat().st_ino) in seen
    assert 99 not in {ino for _, ino in seen.files}


def test_what_is_not_ours_to_see_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x")
    with path.open("ab"):
        (tmp_path / "proc" / "1").mkdir(parents=True)  # neither maps nor descriptors
        (tmp_path / "proc" / "2" / "fd").mkdir(parents=True)
        (tmp_path / "proc" / "2" / "fd" / "5").symlink_to(path)  # and no flags
        seen = look(tmp_path, proc=tmp_path / "proc")
    assert seen == Held()


@pytest.mark.parametrize("made", [False, True])
def test_where_nothing_can_be_seen_everything_counts_as_held(tmp_path: Path, made: bool) -> None:
    if made:
        (tmp_path / "proc").mkdir()
    seen = look(tmp_path, proc=tmp_path / "proc")
    assert not seen.known
    assert (1, 2) in seen


def test_file_systems_in_memory_keep_silent(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text(
        "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
        "23 22 0:21 / /dev/shm rw shared:2 master:3 - tmpfs tmpfs rw,size=1g\n"
    )
    seen = look(tmp_path, proc=tmp_path)
    assert (os.makedev(0, 21), 5) in seen
    assert (os.makedev(254, 0), 5) not in seen


def test_where_nothing_can_be_seen_everything_is_read_again_when_it_is_time(tmp_path: Path) -> None:
    work, clock, pause = tmp_path / "w", VirtualClock(), threading.Event()
    work.mkdir()
    (work / "f").write_bytes(b"x" * 1000)
    backups = Backups(work, clock=clock)

    def take(recheck_s: float = 600.0) -> Uploaded:
        return backups.take(recheck_s=recheck_s, look=lambda root: Held(known=False))

    assert not take().sighted
    for _ in range(200):
        if take().read_bytes == 0:
            break
        pause.wait(0.02)
    assert take().read_bytes == 0
    clock.advance(601)
    assert take().read_bytes == 1000
    assert take().read_bytes == 0
    assert take(recheck_s=0.0).read_bytes == 1000


# ------------------------------------------------------------------------------------------------- what is believed


def record(held_s: float | None = None) -> Record:
    return Record(b"a/f", 10, WRITTEN, WRITTEN, 77, 5, WRITTEN + 60 * SECOND, b"d" * 16, held_s)


@pytest.mark.parametrize(
    ("held_then_s", "held_now", "since", "read_again"),
    [
        (None, False, 1000.0, False),
        (None, True, 1000.0, True),  # taken hold of since it was read
        (1500.0, True, 1000.0, False),
        (1500.0, False, 1000.0, True),  # let go of since: once more
        (1500.0, True, 1501.0, True),  # long enough ago
    ],
)
def test_what_was_read_of_a_held_file_is_believed_for_a_while(
    held_then_s: float | None, held_now: bool, since: float, read_again: bool
) -> None:
    held = Held(frozenset({(5, 77)} if held_now else ()))
    found = Belief(held, since).record(StatCache([record(held_then_s)]), ENTRY)
    assert (found is None) == read_again


def test_whoever_asks_for_no_time_gets_no_record_of_a_held_file() -> None:
    assert StatCache([record()]).lookup(ENTRY) is not None
    assert StatCache([record(1500.0)]).lookup(ENTRY) is None
