"""Cases A: a workspace that lives while it is backed up, and holds what other tools choke on."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from spotwarp.persistence.backup import BackupOptions
from spotwarp.persistence.manifest import CheckpointFact
from spotwarp.persistence.scan import Scanned
from spotwarp.testing.backups import Backups
from spotwarp.testing.hostile import bounded
from spotwarp.testing.stores import Fault
from spotwarp.testing.trees import read_tree

MIB = 1 << 20


@pytest.fixture
def work(tmp_path: Path) -> Path:
    root = tmp_path / "w"
    root.mkdir()
    return root


class Churn:
    """Something that happens again and again until the end of the `with`."""

    def __init__(self, act: Callable[[int], object]) -> None:
        self._act = act
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rounds = 0

    def _run(self) -> None:
        while not self._stop.is_set():
            self._act(self.rounds)
            self.rounds += 1
            self._stop.wait(0.0005)

    def __enter__(self) -> Churn:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def happens(self, more: int = 3) -> None:
        """Wait until it has happened so many times more."""
        target, deadline = self.rounds + more, time.monotonic() + 60
        while self.rounds < target:
            assert time.monotonic() < deadline, "the churn has stopped"
            self._stop.wait(0.001)


def test_A01_scratch_files_come_and_go(work: Path, tmp_path: Path) -> None:
    for k in range(300):
        (work / f"static{k}").write_bytes(b"%d" % k)
    (work / "tmp").mkdir()

    def scratch(k: int) -> None:
        (work / "tmp" / f"t{k}").write_bytes(b"x" * 5000)
        (work / "tmp" / f"t{k - 5}").unlink(missing_ok=True)

    backups = Backups(work)
    with Churn(scratch) as churn:
        for cycle in range(5):
            churn.happens()
            uploaded = backups.take()
            assert uploaded.skipped == ()
            restored = backups.restored(tmp_path / f"r{cycle}")
            assert {b"static%d" % k for k in range(300)} <= restored.keys()


def test_A02_a_log_grows_while_it_is_uploaded(work: Path, tmp_path: Path) -> None:
    """Stored is an exact prefix of the file, and the next cycle takes the tail."""
    logs = [work / "train.log", work / "big.log"]
    logs[1].write_bytes(os.urandom(5 * MIB))
    sizes: list[int] = []

    def grow(k: int) -> None:
        for log in logs:
            with log.open("ab") as file:
                file.write(b"%d " % k + os.urandom(2000))

    backups = Backups(work)
    with Churn(grow) as churn:
        backups.calls.add(Fault("put", times=None, hook=lambda: churn.happens()))
        for cycle in range(4):
            churn.happens()
            backups.take()
            restored = tmp_path / f"r{cycle}"
            backups.restored(restored)
            for log in logs:
                kept = (restored / log.name).read_bytes()
                assert log.read_bytes()[: len(kept)] == kept
                sizes.append(len(kept))
    assert sizes[0::2] == sorted(set(sizes[0::2]))
    assert sizes[1::2] == sorted(set(sizes[1::2]))
    backups.calls.heal()
    backups.take()
    assert backups.restored(tmp_path / "last") == read_tree(work)


def test_A03_what_never_stops_changing_is_stored_all_the_same(work: Path, tmp_path: Path) -> None:
    (work / "jitter.bin").write_bytes(os.urandom(3 * MIB))
    (work / "busy.log").write_bytes(b"")

    def touch(k: int) -> None:
        os.utime(work / "jitter.bin")
        with (work / "busy.log").open("a") as file:
            file.write(f"line {k}\n")

    backups = Backups(work)
    with Churn(touch) as churn:
        for cycle in range(3):
            churn.happens()
            uploaded = backups.take()
            assert (uploaded.files, uploaded.skipped) == (2, ())
            restored = tmp_path / f"r{cycle}"
            backups.restored(restored)
            assert (restored / "jitter.bin").read_bytes() == (work / "jitter.bin").read_bytes()
            kept = (restored / "busy.log").read_bytes()
            assert (work / "busy.log").read_bytes().startswith(kept)


def test_A04_the_same_size_and_the_time_put_back(work: Path, tmp_path: Path) -> None:
    """Only the change time tells; it is looked at, once the first content's record is one that is believed."""
    file, reference = work / "h", tmp_path / "ref"
    file.write_bytes(b"Hello world\n")
    reference.touch()
    about = file.stat()
    os.utime(reference, ns=(about.st_atime_ns, about.st_mtime_ns))
    backups = Backups(work)
    deadline = time.monotonic() + 30
    while backups.take().read_bytes:
        assert time.monotonic() < deadline, "the record is never believed"
        time.sleep(0.02)
    file.write_bytes(b"hELLO WORLD\n")
    about = reference.stat()
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert not backups.take().unchanged
    assert backups.restored(tmp_path / "r") == read_tree(work)
    assert (tmp_path / "r" / "h").read_bytes() == b"hELLO WORLD\n"


def test_A06_fifos_sockets_and_devices_are_named_never_opened(work: Path, tmp_path: Path) -> None:
    os.mkfifo(work / "ctl")
    expected = [b"ctl", b"s.sock"]
    if os.geteuid() == 0:
        os.mknod(work / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        expected.insert(1, b"null")
    (work / "f").write_bytes(b"kept")
    backups = Backups(work)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(work / "s.sock"))
        done = threading.Event()

        def run() -> None:
            uploaded.append(backups.take())
            done.set()

        uploaded: list[object] = []
        thread = threading.Thread(target=run, daemon=True)  # would an open block, the test still ends
        thread.start()
        assert done.wait(60)
        thread.join()
    assert backups.base is not None
    assert [skip.path for skip in backups.base.skipped] == expected
    assert backups.restored(tmp_path / "r").keys() == {b"f"}
    assert backups.take().unchanged


def test_A07_links_are_links(work: Path, tmp_path: Path) -> None:
    (work / "a" / "b").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"not to be uploaded")
    links = {"a/b/up": "../../a", "me": ".", "etc": "/etc", "dangling": "missing", "out": str(tmp_path / "outside")}
    for name, target in links.items():
        (work / name).symlink_to(target)
    backups = Backups(work)
    uploaded = backups.take()
    assert len(uploaded.manifest.entries) == 7
    assert backups.packs_put() == 0
    assert backups.restored(tmp_path / "r") == read_tree(work)


def test_A10_a_sparse_file_costs_what_is_in_it(work: Path, tmp_path: Path) -> None:
    size = 300 << 30
    with (work / "sp.bin").open("wb") as file:
        file.truncate(size)
        file.seek(1 << 30)
        file.write(b"x")
    started = time.process_time()
    backups = Backups(work)
    uploaded = backups.take()
    assert time.process_time() - started < 5
    assert uploaded.bytes == size
    assert uploaded.read_bytes <= 4 * MIB
    assert uploaded.stored_bytes < MIB
    assert backups.restored(tmp_path / "r") == read_tree(work)
    assert (tmp_path / "r" / "sp.bin").stat().st_blocks * 512 <= 8 * MIB
    assert backups.take().unchanged


def one_tensor(size: int) -> bytes:
    """The head of a safetensors file of `size` bytes with one tensor."""
    tensor = {"dtype": "U8", "shape": [size - 208], "data_offsets": [0, size - 208]}
    return (200).to_bytes(8, "little") + json.dumps({"w": tensor}).encode().ljust(200)


@pytest.mark.parametrize("head_of", [lambda _: b"x", one_tensor], ids=["unknown", "tensors"])
def test_A10_a_hole_costs_nothing_however_large_it_is(
    work: Path, tmp_path: Path, head_of: Callable[[int], bytes]
) -> None:
    size = 15 << 40
    options = BackupOptions(workers=2, pack_size=8 * MIB, coding="delta")
    backups = Backups(work, options=options)
    with bounded(seconds=5, memory=64 * MIB):
        for turn in range(3):
            head = head_of(size + turn)
            with (work / "sp.bin").open("r+b" if turn else "wb") as file:
                file.truncate(size + turn)
                file.write(head)
                file.seek((turn + 1) << 40)
                file.write(b"%d" % turn)
            uploaded = backups.take()
            assert uploaded.bytes == size + turn
            assert uploaded.read_bytes <= (turn + 2) * 4 * MIB
        backups.restored(tmp_path / "r")
    with (tmp_path / "r/sp.bin").open("rb") as file:
        assert file.read(len(head) + 1) == head + b"\0"
        for turn in range(3):
            file.seek(((turn + 1) << 40) - 1)
            assert file.read(3) == b"\0%d\0" % turn
        assert file.seek(0, 2) == size + 2


def test_A10_written_zeros_cost_next_to_nothing(work: Path, tmp_path: Path) -> None:
    (work / "zeros").write_bytes(bytes(41 * MIB + 5))
    backups = Backups(work)
    assert backups.take().stored_bytes < 10_000
    assert backups.restored(tmp_path / "r") == read_tree(work)


def test_A11_linked_trees_are_sent_once_and_linked_again(work: Path, tmp_path: Path) -> None:
    """`cp -al` of a cache, several packs of it, read by workers side by side."""
    (work / "c/lib").mkdir(parents=True)
    (work / "c/a").write_bytes(os.urandom(20 * MIB))
    for k in range(200):
        (work / f"c/lib/{k}").write_bytes(os.urandom(1000 + k))
    shutil.copytree(work / "c", work / "venv", copy_function=os.link)
    backups = Backups(work)
    uploaded = backups.take()
    once = sum(path.stat().st_size for path in (work / "c").rglob("*") if path.is_file())
    assert uploaded.read_bytes == once
    assert uploaded.stored_bytes < 1.02 * once
    assert backups.restored(tmp_path / "r") == read_tree(work)
    files = [path for path in (tmp_path / "r").rglob("*") if path.is_file()]
    assert len(files) == 402
    assert {path.stat().st_nlink for path in files} == {2}
    assert len({path.stat().st_ino for path in files}) == 201
    assert backups.take().unchanged


ODD = [
    b"caf\xe9.pt",
    b"a\nb",
    b"-rf",
    b"a\\b",
    b"trail ",
    b" lead",
    b"n" * 255,
    "é".encode(),
    "e\u0301".encode(),
    b"\xff\xfe",
    b"*?[x]",
    b"...",
    b"Model.bin",
    b"model.bin",
]


def test_A12_odd_names_are_kept_byte_for_byte(work: Path, tmp_path: Path) -> None:
    for k, name in enumerate(ODD):
        base = os.fsencode(work)
        os.mkdir(base + b"/d" + name[:200])  # noqa: PTH102 - bytes
        for path in (base + b"/" + name, base + b"/d" + name[:200] + b"/" + name):
            with open(path, "wb") as file:  # noqa: PTH123 - bytes
                file.write(b"%d" % k)
        os.symlink(name, base + b"/l" + name[:200])  # noqa: PTH211 - bytes
    backups = Backups(work)
    uploaded = backups.take()
    assert uploaded.files == 2 * len(ODD)
    assert uploaded.skipped == ()
    assert backups.restored(tmp_path / "r") == read_tree(work)
    assert backups.take().unchanged


def test_A13_long_paths_make_no_long_keys(work: Path, tmp_path: Path) -> None:
    deep = work.joinpath(*["d" * 100] * 11)
    deep.mkdir(parents=True)
    (deep / "leaf").write_bytes(b"found")
    backups = Backups(work)
    backups.take()
    assert max(len(call.key) for call in backups.calls.calls) < 100
    assert backups.restored(tmp_path / "r") == read_tree(work)


def test_A13_paths_beyond_the_systems_limit_are_kept(work: Path, tmp_path: Path) -> None:
    name = b"n" * 200
    fd = os.open(work, os.O_RDONLY)
    for _ in range(25):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    for leaf, size in ((b"small", 10), (b"big", 2 * MIB)):
        file = os.open(leaf, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=fd)
        os.write(file, os.urandom(size))
        os.close(file)
    os.close(fd)
    deepest = b"/".join([name] * 25)

    def judge(root: Path, entries: Sequence[Scanned]) -> list[CheckpointFact]:
        return [CheckpointFact(deepest, "resumable", step=1)]

    backups = Backups(work, judge=judge)
    uploaded = backups.take()
    assert {deepest + b"/small", deepest + b"/big"} <= {entry.path for entry in uploaded.manifest.entries}
    assert uploaded.manifest.checkpoints[0].cls == "resumable"
    assert backups.restored(tmp_path / "r") == read_tree(work)
