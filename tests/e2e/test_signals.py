"""Signals at every moment of `spotwarp run`: acted upon whatever hangs, and never a word too late about the end."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from spotwarp.testing.faultproxy import FaultProxy, Rule
from spotwarp.testing.product import Machine, Program, until
from spotwarp.testing.seaweed import Seaweed

pytestmark = pytest.mark.slow

Rent = Callable[..., Machine]

SAVES = "trap 'echo saved > saved; exit 0' TERM INT; touch ready; while :; do sleep 0.05; done"
AWAY = Rule(status=503, code="ServiceUnavailable", path="/log/|/hint")


def training(machine: Machine, *more: str, command: str = SAVES, **options: object) -> Program:
    """A run whose command has begun."""
    program = machine.start("run", *more, "--command", command, **options)
    program.until((machine.path / "ready").exists, "the command's start")
    return program


@pytest.fixture
def remote(rent: Rent, seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str) -> Machine:
    """An initialised workspace whose real S3 server is reached through a proxy that can hang or refuse."""
    return rent(remote=s3_url, env=seaweed_server.env(endpoint=s3_proxy.endpoint)).init()


# --- before the command


@pytest.mark.parametrize(("work", "code"), [(False, 75), (True, 125)], ids=["empty", "with work"])
def test_sigterm_while_the_log_cannot_be_read(remote: Machine, s3_proxy: FaultProxy, work: bool, code: int) -> None:
    """Nothing is lost with an empty machine; what is only here is not called stored."""
    if work:
        remote.file("work", "only here")
    s3_proxy.forget()
    s3_proxy.rule(AWAY)
    told = remote.path.with_name("told")
    notify = {"SPOTWARP_NOTIFY": f'echo "$SPOTWARP_EVENT, stored: $SPOTWARP_EVENT_STORED" >> {told}'}
    program = remote.start("run", "--command", "touch never", env=notify)
    assert s3_proxy.wait_seen(2, path=AWAY.path)
    program.send(signal.SIGTERM)
    assert "before the command was started" in program.end(code, 20).err
    assert told.read_text() == f"preempted, stored: {'false' if work else 'true'}\n"
    assert not (remote.path / "never").exists()


@pytest.mark.parametrize("restored", [False, True])
def test_sigterm_while_another_holds_the_run(ws: Machine, rent: Rent, restored: bool) -> None:
    """A machine with a file of its own beside what it has restored has something that is nowhere else."""
    ws.file("model", "stored")
    if restored:
        ws("sync")
    training(ws)
    other = rent("other").init()
    other.file("own", "only here")
    waiting = other.start("run", "--command", "touch never")
    waiting.until(lambda: "holds the run" in waiting.err)
    waiting.send(signal.SIGTERM)
    waiting.end(125)
    assert (other.path / "own").read_text() == "only here"


# --- beside it


def test_usr1_reaches_the_command(ws: Machine) -> None:
    program = training(ws, command="trap 'touch told; exit 9' USR1; touch ready; while :; do sleep 0.05; done")
    program.send(signal.SIGUSR1)
    program.end(9)
    assert (ws.path / "told").exists()


def test_ctrl_z_does_not_stop_spotwarp(ws: Machine) -> None:
    """It would stop beating and lose the run. Under job control, for elsewhere the kernel ignores it."""
    command = "trap 'touch told' USR1; touch ready; until test -e go; do sleep 0.05; done; exit 8"
    shell = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:], process_group=0).returncode)"
    program = training(ws, command=command, under=[sys.executable, "-c", shell])
    agent = int(Path(f"/proc/{program.process.pid}/task/{program.process.pid}/children").read_text())
    os.kill(agent, signal.SIGTSTP)
    os.kill(agent, signal.SIGUSR1)  # a stopped one would not pass it on
    program.until((ws.path / "told").exists, "a signal to pass through")
    assert psutil.Process(agent).status() != psutil.STATUS_STOPPED
    ws.file("go", "")
    program.end(8)


def test_the_notice_file_tells_a_command_that_does_not_listen(ws: Machine) -> None:
    command = (
        "trap '' TERM; test ! -e $SPOTWARP_NOTICE_FILE && touch ready; "
        "until test -e $SPOTWARP_NOTICE_FILE; do sleep 0.05; done; cp $SPOTWARP_NOTICE_FILE told; exit 0"
    )
    for _ in range(2):  # a notice of an earlier life is none
        program = training(ws, command=command)
        program.send(signal.SIGTERM)
        program.end(75)
        told = json.loads((ws.path / "told").read_text())
        assert (0 < told["seconds_left"] <= 10, told["source"]) == (True, "SIGTERM")
        (ws.path / "ready").unlink()


# --- when nobody reads, when the store hangs


@pytest.fixture
def full() -> Iterator[int]:
    """The end for writing of a pipe that is full and that nobody reads."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    while True:
        try:
            os.write(writer, b"x")
        except BlockingIOError:
            break
    os.set_blocking(writer, True)
    yield writer
    os.close(reader)
    os.close(writer)


def test_a_preemption_is_acted_upon_though_nobody_reads_our_words(ws: Machine, full: int) -> None:
    """And once the run is sealed, no further signal makes the exit code another."""
    ws.file("work", "kept")
    program = training(ws, stderr=full)
    program.send(signal.SIGTERM)
    program.until((ws.path / "saved").exists, "the command to be told", 15)
    until(lambda: ws.facts("status", code=None)["state"] == "preempted", "the seal", 30)
    if program.process.poll() is None:
        program.send(signal.SIGTERM)
        program.send(signal.SIGINT)
    assert program.process.wait(15) == 75
    ws("restore", "--to", str(ws.path.with_name("out")))
    assert (ws.path.with_name("out") / "saved").read_text() == "saved\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_after_the_verdict_changes_nothing(remote: Machine, s3_proxy: FaultProxy, number: int) -> None:
    """The store hangs at a beat, so that there is time between the last word and the end."""
    program = training(remote, "--interval", "1h", command="touch ready; until test -e go; do sleep 0.05; done; exit 5")
    s3_proxy.forget()
    s3_proxy.rule(Rule(verb="PUT", path="/beats/", hang=True))
    assert s3_proxy.wait_seen(1, verb="PUT", path="/beats/")
    remote.file("go", "")
    program.until(lambda: "everything is stored" in program.err, "the verdict")
    program.send(number)
    program.send(number)
    done = program.end(5, 10)
    assert "before the command" not in done.err
    s3_proxy.rule()
    facts = remote.facts("status")
    assert (facts["state"], facts["exit"]) == ("stopped", 5)


@pytest.mark.parametrize(("verb", "path"), [("PUT", "/packs/"), ("PUT", "/log/"), ("GET", "/log/"), (".", ".")])
def test_ctrl_c_twice_leaves_at_once_though_the_store_hangs(
    remote: Machine, s3_proxy: FaultProxy, verb: str, path: str
) -> None:
    program = training(remote, command="trap '' INT TERM; touch ready; while :; do date +%N > work; sleep 0.05; done")
    s3_proxy.forget()
    s3_proxy.rule(Rule(verb=verb, path=path, hang=True))
    assert s3_proxy.wait_seen(1, verb=verb, path=path)
    program.send(signal.SIGINT)
    program.until(lambda: "Ctrl-C again" in program.err)
    started = time.monotonic()
    program.send(signal.SIGINT)
    done = program.end(130, 20)
    assert time.monotonic() - started < 12  # the store hangs for ever
    assert "not stored" in done.err
    assert remote.processes() == []


# --- when SpotWarp itself fails

FAILING = """
import sys, threading
from spotwarp.execution import supervisor

kind, name = sys.argv[1].split("=")
arguments = sys.argv[5:]  # after `python -m spotwarp`
if kind == "thread":
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = refuse
else:
    step = supervisor.step

    def fail(state, event):
        if type(event).__name__ == name:
            raise ZeroDivisionError("a bug")
        return step(state, event)

    supervisor.step = fail
sys.argv = ["spotwarp", *arguments]
from spotwarp.__main__ import main
sys.exit(main())
"""


def failing(machine: Machine, what: str) -> list[str]:
    """What starts a SpotWarp in which `what` fails: `thread=NAME` cannot be started, `event=KIND` meets a bug."""
    script = machine.path.with_name("failing.py")
    script.write_text(FAILING)
    return [sys.executable, str(script), what]


@pytest.mark.parametrize("what", ["thread=tree", "event=IntervalDue", "event=Tick"])
def test_a_bug_leaves_no_trainer_behind(ws: Machine, what: str) -> None:
    sign = ws.path.with_name("trainer")
    command = f"echo $$ > {shlex.quote(str(sign))}; trap '' INT; while :; do sleep 0.05; done"
    program = ws.start("run", "--command", command, under=failing(ws, what))
    assert program.process.wait(30) not in (0, 75)
    assert ws.processes() == []
    ws("run", "--command", "exit 3", code=3)  # and the workspace is free


def test_a_sync_for_which_there_is_no_thread_is_told_and_tried_again(ws: Machine) -> None:
    program = training(ws, under=failing(ws, "thread=sync"))
    program.until(lambda: "no thread for a sync" in program.err, "the word that nothing is stored")
    until(lambda: ws.facts("status", code=None)["errors"], "a beat that says so")
    program.send(signal.SIGTERM)
    program.end(75)
    assert ws.facts("status")["state"] == "preempted"


def test_a_final_sync_for_which_there_is_no_thread_is_no_success(ws: Machine) -> None:
    done = ws("run", "--interval", "1h", "--command", "exit 0", code=125, under=failing(ws, "thread=final-sync"))
    assert "no thread for a sync" in done.err
