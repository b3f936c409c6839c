"""The output pump with real commands: bytes, order, bounds, and a user's side that misbehaves."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock
from spotwarp.execution.output import outputlog
from spotwarp.execution.output.terminal import OutputPump
from spotwarp.execution.process.child import ProcessTree
from spotwarp.execution.process.starter import Stdio

CLOCK = SystemClock()
LIMIT = 1 << 20


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.01)


class Reader:
    """The user's side: collects what arrives at a descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.data = b""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while part := os.read(self.fd, 1 << 16):
                self.data += part


@pytest.fixture
def null() -> Iterator[int]:
    fd = os.open(os.devnull, os.O_RDWR)
    yield fd
    os.close(fd)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        with contextlib.suppress(OSError):
            os.close(fd)


@pytest.fixture
def pty() -> Iterator[tuple[int, int]]:
    master, slave = os.openpty()
    tty.setraw(slave)  # so that what arrives at the master is what was written
    yield master, slave
    for fd in (master, slave):
        with contextlib.suppress(OSError):
            os.close(fd)


Python = Callable[[str, OutputPump], ProcessTree]


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Python]:
    """Start a program with the pump's descriptors. None of its processes outlives the test."""
    trees: list[ProcessTree] = []

    def start(code: str, pump: OutputPump) -> ProcessTree:
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        trees.append(ProcessTree.start([sys.executable, "-c", code], cwd=tmp_path, env=env, stdio=pump.child_stdio))
        pump.start()
        return trees[-1]

    yield start
    for tree in trees:
        assert not tree.end(0, CLOCK).left


def logged(log: Path) -> bytes:
    return b"".join(part.path.read_bytes() for part in outputlog.parts(log))


def test_every_byte_passes_unmodified_through_a_pipe_and_into_the_log(
    tmp_path: Path, python: Python, null: int, pipe: tuple[int, int]
) -> None:
    pump = OutputPump(tmp_path / "log" / "out", LIMIT, clock=CLOCK, ours=Stdio(null, pipe[1], pipe[1]))
    reader = Reader(pipe[0])
    code = "import os\nfor i in range(256): os.write(1 + i % 2, bytes([i]) * 3 + b'\\xff\\xfe\\r')"
    tree = python(code, pump)
    assert tree.wait_leader(20)
    assert pump.finish(20)
    expected = b"".join(bytes([i]) * 3 + b"\xff\xfe\r" for i in range(256))
    until(lambda: len(reader.data) >= len(expected))
    assert reader.data == expected  # stdout and stderr led to one pipe: the order is kept, too
    assert (tmp_path / "log" / "out").read_bytes() == expected


def test_stdout_and_stderr_stay_apart_when_ours_are(
    tmp_path: Path, python: Python, null: int, pipe: tuple[int, int]
) -> None:
    with (tmp_path / "err").open("wb") as errors:
        pump = OutputPump(tmp_path / "log", LIMIT, clock=CLOCK, ours=Stdio(null, pipe[1], errors.fileno()))
        tree = python("import os; os.write(1, b'out'); os.write(2, b'err')", pump)
        assert tree.wait_leader(20)
        assert pump.finish(20)
    assert os.read(pipe[0], 100) == b"out"
    assert (tmp_path / "err").read_bytes() == b"err"
    assert sorted([(tmp_path / "log").read_bytes()[:3], (tmp_path / "log").read_bytes()[3:]]) == [b"err", b"out"]


def test_a_progress_bar_without_a_newline_arrives_while_the_command_runs(
    tmp_path: Path, python: Python, null: int, pipe: tuple[int, int]
) -> None:
    pump = OutputPump(tmp_path / "log", LIMIT, clock=CLOCK, ours=Stdio(null, pipe[1], pipe[1]))
    reader = Reader(pipe[0])
    tree = python("print('\\r 5%', end='', flush=True); input()", pump)  # ends at the end of our stdin
    until(lambda: reader.data.startswith(b"\r 5%"))
    assert pump.last_output is not None
    assert tree.wait_leader(20)
    assert pump.finish(20)


def test_the_command_sees_a_terminal_of_our_size_when_we_have_one(
    tmp_path: Path, python: Python, pty: tuple[int, int]
) -> None:
    master, slave = pty
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    pump = OutputPump(tmp_path / "log", LIMIT, clock=CLOCK, ours=Stdio(slave, slave, slave))
    reader = Reader(master)
    code = (
        "import os, sys\n"
        "print([os.isatty(fd) for fd in (0, 1, 2)], *os.get_terminal_size())\n"
        "print('got', input())\n"
        "print(*os.get_terminal_size())\n"
    )
    tree = python(code, pump)
    until(lambda: b"[True, True, True] 77 33\n" in reader.data)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 90, 0, 0))
    assert pump.resized()
    os.write(master, b"typed\n")
    assert tree.wait_leader(20)
    assert tree.status is not None
    assert tree.status.code == 0
    assert pump.finish(20)
    until(lambda: reader.data == b"[True, True, True] 77 33\ngot typed\n90 40\n")  # no echo, no \r added
    assert (tmp_path / "log").read_bytes() == reader.data


def test_the_end_of_typing_is_passed_on(tmp_path: Path, python: Python, pty: tuple[int, int]) -> None:
    master, slave = pty
    modes = termios.tcgetattr(slave)
    modes[3] |= termios.ICANON
    modes[6][termios.VEOF] = b"\x04"
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    pump = OutputPump(tmp_path / "log", LIMIT, clock=CLOCK, ours=Stdio(slave, slave, slave))
    tree = python("import sys; sys.stdin.read(); print('over')", pump)
    os.write(master, b"\x04")
    assert tree.wait_leader(20)
    assert pump.finish(20)
    assert pump.last_lines(1) == ["over"]


def test_a_reader_that_stopped_does_not_stop_the_command(
    tmp_path: Path, python: Python, null: int, pipe: tuple[int, int]
) -> None:
    said: list[str] = []
    pump = OutputPump(
        tmp_path / "log",
        64 << 20,
        clock=CLOCK,
        ours=Stdio(null, pipe[1], pipe[1]),
        buffer_bytes=1 << 18,
        patience_s=0.1,
        say=said.append,
    )
    size = 4 << 20
    tree = python(f"import os\nfor _ in range({size} >> 16): os.write(1, b'x' * 65536)", pump)
    assert tree.wait_leader(20) is not None  # nobody has read a byte yet
    until(lambda: logged(tmp_path / "log") == b"x" * size)
    assert pump.missed_bytes > size // 2
    assert not said
    reader = Reader(pipe[0])
    until(lambda: said)
    assert not pump.finish(20)
    until(lambda: len(reader.data) + pump.missed_bytes == size)
    assert len(said) == 1


def test_a_reader_that_is_merely_late_gets_everything(
    tmp_path: Path, python: Python, null: int, pipe: tuple[int, int]
) -> None:
    pump = OutputPump(
        tmp_path / "log", LIMIT, clock=CLOCK, ours=Stdio(null, pipe[1], pipe[1]), buffer_bytes=1 << 17, patience_s=60
    )
    size = 2 << 20
    tree = python(f"import os\nfor _ in range({size} >> 16): os.write(1, b'x' * 65536)", pump)
    assert tree.wait_leader(0.2) is None  # held back, as a pipe does it
    reader = Reader(pipe[0])
    assert tree.wait_leader(20)
    assert pump.finish(20)
    until(lambda: len(reader.data) == size)


def test_a_closed_reader_costs_the_user_output_and_the_command_nothing(
    tmp_path: Path, python: Python, null: int, pipe: tuple[int, int]
) -> None:
    pump = OutputPump(tmp_path / "log", LIMIT, clock=CLOCK, ours=Stdio(null, pipe[1], pipe[1]))
    os.close(pipe[0])
    tree = python("for i in range(1000): print('line', i)", pump)
    status = tree.wait_leader(20)
    assert status is not None
    assert status.code == 0
    assert not pump.finish(20)
    assert pump.last_lines(2) == ["line 998", "line 999"]
    assert logged(tmp_path / "log").count(b"\n") == 1000


def test_the_log_keeps_its_beginning_and_its_end_within_its_limit(tmp_path: Path, python: Python, null: int) -> None:
    pump = OutputPump(tmp_path / "log", 30_000, clock=CLOCK, ours=Stdio(null, null, null))
    tree = python("for i in range(20000): print('line', i)", pump)
    assert tree.wait_leader(20)
    assert pump.finish(20)
    text = logged(tmp_path / "log")
    assert text.startswith(b"line 0\nline 1\n")
    assert text.endswith(b"line 19998\nline 19999\n")
    assert sum(part.stat().st_size for part in tmp_path.glob("log*")) <= 30_000
    assert len(text) > 20_000


def test_a_second_life_appends(tmp_path: Path, python: Python, null: int) -> None:
    for life in (1, 2):
        pump = OutputPump(tmp_path / "log", LIMIT, clock=CLOCK, ours=Stdio(null, null, null))
        tree = python(f"print('life', {life})", pump)
        assert tree.wait_leader(20)
        assert pump.finish(20)
    assert (tmp_path / "log").read_text() == "life 1\nlife 2\n"


def test_a_log_that_cannot_be_written_costs_only_the_log(
    tmp_path: Path, python: Python, null: int, pipe: tuple[int, int]
) -> None:
    (tmp_path / "log").mkdir()
    pump = OutputPump(tmp_path / "log", LIMIT, clock=CLOCK, ours=Stdio(null, pipe[1], pipe[1]))
    tree = python("print('shown')", pump)
    assert tree.wait_leader(20)
    assert pump.finish(20)
    assert os.read(pipe[0], 100) == b"shown\n"
    assert isinstance(pump.log_fault, IsADirectoryError)


def test_last_lines_show_what_a_terminal_would(tmp_path: Path, python: Python, null: int) -> None:
    pump = OutputPump(tmp_path / "log", LIMIT, clock=CLOCK, ours=Stdio(null, null, null))
    assert pump.last_lines(5) == []
    tree = python(r"import os; os.write(1, b'a\r\n1%\r2%\r100%\nbad \xff\n')", pump)
    assert tree.wait_leader(20)
    assert pump.finish(20)
    assert pump.last_lines(5) == ["a", "100%", "bad \N{REPLACEMENT CHARACTER}"]
    assert pump.last_lines(1) == ["bad \N{REPLACEMENT CHARACTER}"]
    assert pump.last_lines(0) == []


def test_a_command_that_never_started_leaves_no_descriptor_behind(tmp_path: Path, pty: tuple[int, int]) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    pump = OutputPump(tmp_path / "log", LIMIT, clock=CLOCK, ours=Stdio(pty[1], pty[1], pty[1]))
    assert pump.finish(1)
    assert set(Path("/proc/self/fd").iterdir()) == before
