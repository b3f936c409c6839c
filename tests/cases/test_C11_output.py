"""C11: progress bars, floods, slow readers and odd bytes: through at once and unmodified, the log within its limit."""

from __future__ import annotations

import os
import pty
import sys

import pytest

from spotwarp.testing.product import Machine, until
from spotwarp.testing.pytest_product import bucket, rent, ws

__all__ = ["bucket", "rent", "ws"]

pytestmark = pytest.mark.slow

# Each update is written only once the one before has been seen: whoever holds it back stops everything.
BAR = """
import os, sys, time
for i in range(60):
    os.write(1, b"\\r%3d%% \\xff\\xfe" % i)
    while not os.path.exists(f"seen-{i}"):
        time.sleep(0.005)
"""

FLOOD = """
import os
line = b"x" * 999 + b"\\n"
for _ in range(100):
    data = memoryview(line * 1000)
    while data:
        data = data[os.write(1, data):]
open("done", "w").close()
"""


def test_C11_a_progress_bar_passes_update_by_update(ws: Machine) -> None:
    ws.file("bar.py", BAR)
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as output:
        program = ws.start("run", "--", sys.executable, "bar.py", stdout=writer)
        os.close(writer)
        for i in range(60):
            assert output.read(100) == b"\r%3d%% \xff\xfe" % i  # waits; a newline never comes
            ws.file(f"seen-{i}", "")
    program.end(0)
    (log,) = (ws.path / ".spotwarp" / "log").iterdir()
    assert log.read_bytes() == b"".join(b"\r%3d%% \xff\xfe" % i for i in range(60))


def test_C11_our_own_words_begin_on_a_line_of_their_own(ws: Machine) -> None:
    for shown, ours in (("half a line", b"half a line\nspotwarp: "), ("a line\\n", b"a line\nspotwarp: ")):
        both = ws.path.with_name("both")
        with both.open("wb") as place:
            ws.start("run", "--command", f"printf '{shown}'; exit 3", stdout=place, stderr=place).end(3)
        assert ours in both.read_bytes()
        assert b"\n\n" not in both.read_bytes()
    apart = ws("run", "--command", "printf 'half a line'; exit 3", code=3)
    assert apart.out == b"half a line"  # byte for byte
    assert "\n\n" not in apart.err


def test_C11_the_command_has_a_terminal_where_the_user_has_one(ws: Machine) -> None:
    leader, follower = pty.openpty()
    command = "test -t 0 && test -t 1 && test -t 2 && touch tty; exit 0"
    program = ws.start("run", "--command", command, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    program.process.wait(60)
    os.close(leader)
    assert (ws.path / "tty").exists()


def test_C11_a_reader_who_does_not_read_stops_no_training_and_fills_no_disk(ws: Machine) -> None:
    ws.file("flood.py", FLOOD)
    reader, writer = os.pipe()
    command = ("run", "--interval", "1h", "--", sys.executable, "flood.py")
    program = ws.start(*command, stdout=writer, env={"SPOTWARP_LOG_LIMIT": "3MiB"})
    os.close(writer)
    until((ws.path / "done").exists, "100 MB to be written with nobody reading", seconds=120)
    program.end(0)
    os.close(reader)
    parts = list((ws.path / ".spotwarp" / "log").iterdir())
    assert 2 << 20 <= sum(part.stat().st_size for part in parts) <= 3 << 20
    known = ws.facts("logs")
    assert known["to"] == 100 * 10**6
    assert known["missing_bytes"] > 90 << 20  # and it is said
