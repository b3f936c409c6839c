"""C08 and the way back: no terminal is needed, none that closes ends a run, and it is found again from anywhere."""

from __future__ import annotations

import json
import os
import pty
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.product import Machine, Program, until
from spotwarp.testing.pytest_product import bucket, rent, ws

__all__ = ["bucket", "rent", "ws"]

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow

# Says that it runs, then a line whenever `more` grows, until told to save.
TRAINER = """
trap 'echo saved; echo saved > saved; exit 0' TERM INT
touch more; echo ready; touch ready
n=0
while :; do
  while [ $n -lt "$(wc -l < more)" ]; do n=$((n+1)); echo "line $n"; done
  sleep 0.05
done
"""


def say_more(machine: Machine, count: int) -> None:
    """Have the command say so many lines more."""
    with (machine.path / "more").open("a") as more:
        more.write("x\n" * count)


def detached(machine: Machine, *more: str, command: str = TRAINER) -> int:
    """A run in the background, its command begun; the process."""
    facts = json.loads(machine("run", "--detach", *more, "--json", "--command", command).out)
    assert facts["detached"]
    pid: int = facts["pid"]
    return pid


def attached(machine: Machine, *more: str) -> Program:
    """One who looks at the output, and has seen that it begins."""
    program = machine.start("attach", *more)
    program.until(lambda: b"ready" in program.out, "the output")
    return program


# --- the terminal


def test_C08_a_closed_terminal_stops_nothing_and_attach_comes_back(ws: Machine) -> None:
    leader, follower = pty.openpty()
    # As a login shell has it: the terminal is the session's own, so that its end sends SIGHUP.
    program = ws.start(
        "run", "--interval", "1s", "--command", TRAINER, stdin=follower, stdout=follower, stderr=follower,
        under=["setsid", "--ctty", "--wait"],
    )  # fmt: skip
    os.close(follower)
    program.until((ws.path / "ready").exists)
    os.close(leader)
    say_more(ws, 3)
    log = ws.path / ".spotwarp" / "log"
    until(lambda: any(b"line 3" in part.read_bytes() for part in log.glob("*")), "output into the log")
    until(ws.snapshots, "the first snapshot")
    before = ws.snapshots()[-1]["id"]
    ws.file("work", "after the terminal closed")
    until(lambda: ws.snapshots()[-1]["id"] > before, "the backup to go on")
    back = attached(ws)
    say_more(ws, 1)
    back.until(lambda: b"line 4" in back.out, "live output")
    assert ws.facts("status")["here"]["detached"] is False
    assert "stopped, everything is stored" in ws("stop").err
    assert b"saved" in back.end(130).out
    assert ws.facts("status")["state"] == "stopped"


def test_C08_a_run_in_the_background_outlives_whoever_started_it(ws: Machine) -> None:
    leader, follower = pty.openpty()
    starter = ws.start(
        "run", "--detach", "--command", TRAINER, stdin=follower, stdout=follower, stderr=follower,
        under=["setsid", "--ctty", "--wait"],
    )  # fmt: skip
    os.close(follower)
    starter.end(0)
    os.close(leader)
    here = ws.facts("status")["here"]
    assert (here["phase"], here["detached"]) == ("training", True)
    assert os.getsid(here["pid"]) == here["pid"]  # a session of its own
    back = attached(ws)
    back.send(signal.SIGINT)
    assert "the run goes on" in back.end(130).err
    say_more(ws, 2)
    again = attached(ws, "--tail", "1000")
    again.until(lambda: b"line 2" in again.out)
    again.send(signal.SIGKILL)  # however it ends, the run does not
    stopped = ws.facts("stop")
    assert (stopped["sealed"], stopped["exit_code"]) == ("stopped", 130)
    assert (ws.path / "saved").exists()
    assert ws.processes() == []
    # It is resumable, in the background too: a bare run goes on.
    ws("run", "--detach")
    assert ws.facts("status")["generation"] == 2
    ws("stop")


def test_B17_a_second_one_in_the_background_names_the_first(ws: Machine) -> None:
    pid = detached(ws)
    refused = ws("run", "--detach", "--command", "touch second", code=125)
    assert f"process {pid}, since" in refused.err
    assert "hint:" in refused.err
    assert not (ws.path / "second").exists()
    ws("stop")


# --- starting


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--", "no-such-program"), 127, "does not exist"),
        (("--", "/etc/passwd"), 126, "Cannot run"),
        ((), 2, "no command was given"),
        (("--interval", "never", "--command", "true"), 2, "interval"),
    ],
)
def test_what_cannot_start_is_told_to_the_one_who_starts_it(
    ws: Machine, words: tuple[str, ...], code: int, said: str
) -> None:
    refused = ws("run", "--detach", *words, code=code)
    assert said in refused.err
    assert ws.processes() == []


def test_ctrl_c_while_it_starts_leaves_it_starting(ws: Machine, rent: Rent) -> None:
    holder = ws.start("run", "--grace", "60s", "--command", f"trap '' TERM; {TRAINER.replace('TERM INT', 'INT')}")
    holder.until((ws.path / "ready").exists)
    holder.send(signal.SIGTERM)  # under notice: who comes now waits
    holder.until(lambda: "preemption" in holder.err)
    other = rent("other").init()
    starter = other.start("run", "--detach", "--command", "touch began; sleep 60")
    starter.until(lambda: "holds the run" in starter.err, "its words, shown")
    starter.send(signal.SIGINT)
    left = starter.end(130).err
    assert "goes on starting" in left
    assert other.facts("status")["here"]["phase"] == "preparing"
    done = other("stop")  # also before there is a command
    assert "nothing was changed" in done.err
    assert not (other.path / "began").exists()
    until(lambda: not other.processes(), "its end")
    holder.send(signal.SIGINT)
    holder.end(None)


# --- ending


def test_stop_now_does_not_wait_for_anybody(ws: Machine, rent: Rent) -> None:
    detached(ws, command="trap '' TERM INT; touch ready; while :; do sleep 0.05; done")
    assert "not stored" in ws("stop", "--now").err
    assert ws.processes() == []
    # Its lease is not over, and nobody says any more that it trains: it is known to have ended here.
    seen = ws.facts("status", code=1)
    assert (seen["state"], "has ended here" in seen["gone"]) == ("silent", True)
    assert "has ended here; another start waits 2 s" in ws("status", code=1).out.decode()
    assert b"nothing runs here any more" in ws("stop").out
    other = rent("other").init()
    assert "held by" in other("status", code=None).out.decode()  # elsewhere that is not known
    assert other.facts("status", code=None)["gone"] == ""


def test_attach_ends_as_the_run_does(ws: Machine) -> None:
    detached(ws, command="echo ready; until test -e go; do sleep 0.05; done; echo last words; exit 9")
    watching = attached(ws)
    ws.file("go", "")
    assert b"last words" in watching.end(9).out


def test_nothing_runs_here(ws: Machine, rent: Rent) -> None:
    assert "hint:" in ws("attach", code=10).err
    assert ws.facts("stop") == {"run": "main", "state": "new"}
    detached(ws)
    other = rent("other").init()
    refused = other("stop", code=11)
    assert f"cd {ws.path} && spotwarp stop" in refused.err  # what to type, and where
    other("attach", code=10)
    ws("stop")
    assert other.facts("stop") == {"run": "main", "state": "stopped"}


# --- logs


def test_logs_are_the_same_from_here_and_from_anywhere(ws: Machine, rent: Rent) -> None:
    say_more(ws, 50)
    detached(ws, "--interval", "1h")
    other = rent("other").init()
    expected = "ready\n" + "".join(f"line {i}\n" for i in range(1, 51))
    until(lambda: ws.facts("logs")["text"] == expected, "the output")
    assert ws.facts("logs")["source"] == "here"
    ws("sync")
    known = other.facts("logs")
    assert (known["source"], known["text"], known["missing_bytes"]) == ("repository", expected, 0)
    assert other("logs", "--tail", "2").out == b"line 49\nline 50\n"
    following = ws.start("logs", "-f", "--tail", "1")
    following.until(lambda: following.out == b"line 50\n")
    say_more(ws, 1)
    following.until(lambda: following.out == b"line 50\nline 51\n")
    ws("stop")
    assert following.end(0).out.endswith(b"line 51\nsaved\n")
    assert other("logs").out.decode() == expected + "line 51\nsaved\n"
    ws.die()
    assert other("logs", "--attempt", "1").out.decode().endswith("saved\n")
    other("logs", "--attempt", "2", code=10)
    other("logs", "--since", "soon", code=2)


def test_a_machine_lost_without_warning_keeps_its_last_output(ws: Machine, rent: Rent) -> None:
    """What came after the last snapshot is in the telemetry segment; what came after that is lost, and was never said
    to be kept."""
    segments = lambda: list((ws.path.parent / "bucket").glob("runs/main/telemetry/*"))  # noqa: E731
    detached(ws, "--interval", "1h")
    ws("sync")
    say_more(ws, 20)
    until(segments, "the first segment")
    ws.die()
    other = rent("other").init()
    assert other.facts("logs", "--attempt", "1")["text"].endswith("line 20\n")
    assert b"line 20" in other("logs", "--since", "5m").out
    until(lambda: other.facts("status", code=None)["state"] == "silent", "it to be missed")
    other("run", "--command", "echo second; exit 3", code=3)
    assert other("logs").out == b"second\n"
    assert other("logs", "--attempt", "1", "--tail", "1").out == b"line 20\n"


def test_a_log_longer_than_its_limit_says_what_it_lacks(ws: Machine, rent: Rent, tmp_path: Path) -> None:
    ws("run", "--command", "seq 1 20000; exit 3", code=3, env={"SPOTWARP_LOG_LIMIT": "30000"})
    other = rent("other").init()
    text = other("logs")
    assert text.out.startswith(b"1\n2\n3\n")
    assert text.out.endswith(b"19999\n20000\n")
    assert "bytes of output are not kept" in text.err
    facts = other.facts("logs")
    assert facts["missing_bytes"] + len(facts["text"]) == facts["to"] == len("".join(f"{i}\n" for i in range(1, 20001)))
