"""`spotwarp run` as a program: what the command sees, what its end becomes, what a signal does."""

from __future__ import annotations

import json
import os
import pty
import signal
from collections.abc import Callable
from functools import partial

import pytest

from spotwarp.testing.checkpoints import huggingface_files, write_files
from spotwarp.testing.product import Machine, Program, until

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow  # a whole program, several times


# Says that it runs; at a signal it saves and ends with 0, as a good trainer does.
TRAINER = "trap 'echo saved > saved; exit 0' TERM INT; echo ready; while :; do sleep 0.05; done"


def training(machine: Machine, *more: str, command: str = TRAINER) -> Program:
    """A run whose command has begun."""
    program = machine.start("run", *more, "--command", command)
    program.until(lambda: b"ready" in program.out, "the command's start")
    return program


def waits(program: Program) -> bool:
    """Whether it waits for another holder of the run."""
    return "holds the run" in program.err


# --- ends


@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137), ("kill -11 $$", 139), ("kill -15 $$", 143)],
)
def test_the_commands_code_is_ours_and_everything_is_stored(ws: Machine, command: str, code: int) -> None:
    ws("run", "--command", f"echo work > result; {command}", code=code)
    facts = ws.facts("status")
    assert facts["exit"] == code
    assert facts["state"] == ("complete" if code == 0 else "stopped")
    assert facts["at_risk_s"] == 0
    ws("restore", "--to", str(ws.path.with_name("out")))
    assert (ws.path.with_name("out") / "result").read_text() == "work\n"


def test_a_command_that_is_not_there_takes_no_run(ws: Machine) -> None:
    ws("run", "--command", "exit 5", code=5)
    before = ws.facts("status")
    for words, code in ((["no-such-program"], 127), (["./nowhere/x"], 127), (["/etc/passwd"], 126)):
        done = ws("run", "--", *words, code=code)
        assert "hint:" in done.err
    after = ws.facts("status")
    assert after["generation"] == before["generation"]
    assert after["command"] == ["exit 5"]
    ws("run", code=5)


def test_a_shells_own_127_is_the_commands(ws: Machine) -> None:
    ws("run", "--command", "no-such-program", code=127)
    assert ws.facts("status")["exit"] == 127


def test_a_complete_run_refuses_another_and_leaves_it(ws: Machine) -> None:
    ws("run", "--command", "true")
    kept = ws.snapshots()
    twice_is_once = [("run",), ("run", "--command", "true"), ("run", "--takeover")]
    for verb, code in [*((same, 0) for same in twice_is_once), (("run", "--command", "other"), 125), (("sync",), 20)]:
        done = ws(*verb, code=code)
        assert "complete" in done.err
        assert "--run" in done.err
    assert ws.snapshots() == kept
    ws("run", "--run", "second", "--command", "true")


def test_a_run_without_any_command_asks_for_one(ws: Machine) -> None:
    assert "--command" in ws("run", code=2).err
    ws("run", "--command", "", code=2)
    ws("run", "--command", "a", "--", "b", code=2)
    ws("run", "--restore", "--keep-local", "--command", "true", code=2)
    assert ws.facts("status")["generation"] == 0


# --- what the command gets


def test_the_command_sees_where_it_is(ws: Machine) -> None:
    show = 'echo "$SPOTWARP_RUN_ID $SPOTWARP_GENERATION $SPOTWARP_RESUMED [$SPOTWARP_LAST_CHECKPOINT]"'
    assert ws("run", "--command", f"{show}; exit 9", code=9).out == b"main 1 0 []\n"
    write_files(ws.path / "out" / "checkpoint-20", huggingface_files(20))
    ws("run", code=9)
    assert ws("run", code=9).out == f"main 3 1 [{ws.path}/out/checkpoint-20]\n".encode()


def test_the_checkpoint_reaches_the_command_line(ws: Machine) -> None:
    ws.file("args.sh", 'printf "%s|" "$@"; exit 9')
    command = ("--resume-args", "--from {checkpoint}", "--", "bash", "args.sh", "a b", "--at={checkpoint}")
    assert ws("run", *command, code=9).out == b"a b|--at=|"
    checkpoint = write_files(ws.path / "out" / "checkpoint-20", huggingface_files(20))
    assert ws("run", *command, code=9).out == f"a b|--at={checkpoint}|--from|{checkpoint}|".encode()
    shell = ("--resume-args", "--from {checkpoint}", "--command", "bash args.sh x {checkpoint}")
    assert ws("run", *shell, code=9).out == f"x|{checkpoint}|--from|{checkpoint}|".encode()


def test_options_after_the_dashes_are_the_commands(ws: Machine) -> None:
    assert ws("run", "--", "echo", "--run", "x", "--json", "-h").out == b"--run x --json -h\n"


def test_the_bytes_of_its_output_are_untouched_and_kept(ws: Machine) -> None:
    raw = b"step 1\rstep 2\r\xff\xfe\x00caf\xe9\x1b[31mred\r\n" + bytes(range(256)) * 300 + b"no newline"
    ws.file("raw", raw)
    assert ws("run", "--", "cat", "raw").out == raw
    logs = list((ws.path / ".spotwarp" / "log").iterdir())
    assert [log.read_bytes() for log in logs] == [raw]
    ws("restore", "--to", str(ws.path.with_name("out")), ".spotwarp/log")
    kept = ws.path.with_name("out") / ".spotwarp" / "log" / logs[0].name
    assert kept.read_bytes() == raw


def test_a_terminal_stays_a_terminal(ws: Machine) -> None:
    leader, follower = pty.openpty()
    try:
        test = "test -t 1 && test -t 2 && echo both > tty; exit 0"
        ws.start("run", "--command", test, stdin=follower, stdout=follower, stderr=follower).end(0)
    finally:
        os.close(leader)
        os.close(follower)
    assert (ws.path / "tty").read_text() == "both\n"
    other = ws.path.with_name("piped")
    ws("run", "--run", "piped", "--command", f"test -t 1 || touch {other}; exit 0")
    assert other.exists()


def test_the_command_runs_where_the_user_stands(ws: Machine) -> None:
    inner = ws.path / "src" / "deep"
    inner.mkdir(parents=True)
    assert ws("run", "--command", "pwd; exit 4", code=4, cwd=inner).out == f"{inner}\n".encode()
    assert ws("run", code=4).out == f"{inner}\n".encode()


def test_json_says_how_it_ended(ws: Machine) -> None:
    done = ws("run", "--json", "--command", "exit 7", code=7)
    facts = json.loads(done.err.splitlines()[-1])
    assert (facts["exit_code"], facts["sealed"], facts["generation"]) == (7, "stopped", 1)
    assert facts["snapshot"] == ws.snapshots()[-1]["id"]


# --- signals


def test_sigterm_is_a_preemption_and_the_run_goes_on_elsewhere(ws: Machine, rent: Rent) -> None:
    program = training(ws)
    ws.file("work", "done just before the end")
    program.send(signal.SIGTERM)
    assert "everything is stored" in program.end(75).err
    assert ws.facts("status")["state"] == "preempted"
    other = rent("other").init()
    second = training(other)  # `saved` and `work` are there before the command is
    assert (other.path / "saved").read_text() == "saved\n"
    assert (other.path / "work").read_text() == "done just before the end"
    second.send(signal.SIGTERM)
    second.end(75)
    assert other.facts("status")["generation"] == 2


def test_ctrl_c_once_stops_and_a_bare_run_continues(ws: Machine) -> None:
    program = training(ws)
    program.send(signal.SIGINT)
    assert "everything is stored" in program.end(130).err
    assert (ws.path / "saved").exists()
    assert ws.facts("status")["state"] == "stopped"
    again = ws.start("run")
    again.until(lambda: b"ready" in again.out)
    again.send(signal.SIGINT)
    again.end(130)


def test_ctrl_c_twice_is_now_and_says_what_that_costs(ws: Machine) -> None:
    program = training(ws, command="trap '' INT TERM; echo ready; while :; do sleep 0.05; done")
    program.send(signal.SIGINT)
    program.until(lambda: "Ctrl-C again" in program.err)
    program.send(signal.SIGINT)
    assert "not stored" in program.end(130).err
    assert ws.processes() == []
    assert ws.facts("status", code=None)["state"] != "stopped"  # no seal without a final snapshot
    ws("run", "--command", "exit 0")


def test_a_signal_before_the_command_starts_ends_the_wait(ws: Machine, rent: Rent) -> None:
    holder = training(ws)
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 75)):
        waiting = rent(f"second-{code}").init().start("run", "--command", "touch never")
        waiting.until(partial(waits, waiting), "the wait for the holder")
        waiting.send(number)
        waiting.end(code)
        assert not ws.path.with_name(f"second-{code}").joinpath("never").exists()
    assert holder.process.poll() is None


def test_a_closed_terminal_stops_nothing(ws: Machine) -> None:
    leader, follower = pty.openpty()
    command = "touch ready; for i in $(seq 40); do echo line $i; sleep 0.05; done; touch ended; exit 6"
    program = ws.start("run", "--command", command, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    program.until((ws.path / "ready").exists)
    os.close(leader)
    program.send(signal.SIGHUP)
    assert program.process.wait(60) == 6
    assert (ws.path / "ended").exists()
    log = (ws.path / ".spotwarp" / "log" / "output-0001.log").read_bytes()
    assert b"line 40" in log
    assert ws.facts("status")["exit"] == 6


# --- newer local work, torn checkpoints, other holders


def behind(ws: Machine, rent: Rent) -> Machine:
    """A second machine that is behind the run and has work of its own."""
    other = rent("other").init()
    ws.file("model", "first")
    ws("run", "--command", "exit 1", code=1)
    other("restore")
    ws.file("model", "second")
    ws("run", "--command", "exit 1", code=1)
    other.file("model", "own work")
    return other


def test_newer_local_work_is_the_users_decision(ws: Machine, rent: Rent) -> None:
    other = behind(ws, rent)
    refused = other("run", "--command", "touch never", code=125)
    assert "model" in refused.err
    assert "--keep-local" in refused.err
    assert "--restore" in refused.err
    assert (other.path / "model").read_text() == "own work"
    assert not (other.path / "never").exists()
    assert ws.facts("status")["generation"] == 2


def test_keep_local_goes_on_from_what_is_here(ws: Machine, rent: Rent) -> None:
    other = behind(ws, rent)
    assert other("run", "--keep-local", "--command", "cat model; exit 1", code=1).out == b"own work"
    assert other("run", "--command", "cat model; exit 1", code=1).out == b"own work"


def test_restore_sets_local_work_aside(ws: Machine, rent: Rent) -> None:
    other = behind(ws, rent)
    assert other("run", "--restore", "--command", "cat model; exit 1", code=1).out == b"second"
    kept = [p for p in (other.path / ".spotwarp" / "set-aside").rglob("model")]
    assert [p.read_text() for p in kept] == ["own work"]


def test_a_torn_checkpoint_on_this_disk_is_set_aside_before_the_command(ws: Machine) -> None:
    ws("run", "--command", "exit 1", code=1)
    write_files(ws.path / "out" / "checkpoint-10", huggingface_files(10))
    torn = huggingface_files(20)
    del torn["trainer_state.json"]
    write_files(ws.path / "out" / "checkpoint-20", torn)
    done = ws("run", "--command", 'ls out; echo "$SPOTWARP_LAST_CHECKPOINT"; exit 1', code=1)
    names = done.out.decode().split()
    assert "checkpoint-20" not in names
    assert names[-1].endswith("/out/checkpoint-10")
    assert "set aside out/checkpoint-20" in done.err
    assert any("checkpoint-20.torn" in name for name in names)


def test_a_holder_that_fell_silent_is_taken_over_after_its_lease(ws: Machine, rent: Rent) -> None:
    ws.file("work", "of the first machine")
    training(ws)
    until(lambda: ws.snapshots(), "a snapshot")
    ws.die()
    other = rent("other").init()
    done = other("run", "--command", "test -e work && exit 8", code=8)
    assert "holds the run" in done.err
    assert other.facts("status")["generation"] == 2


def test_takeover_does_not_wait_and_the_old_holder_stops(ws: Machine, rent: Rent) -> None:
    old = training(ws)
    other = rent("other").init()
    other("run", "--takeover", "--command", "exit 8", code=8)
    assert "fenced" in old.end(125).err
    assert [p for p in ws.processes() if p.pid != old.process.pid] == []
    assert {s["generation"] for s in ws.snapshots()} <= {1, 2}
    assert ws.snapshots()[-1]["generation"] == 2
    assert ws.facts("status")["state"] == "stopped"


def test_output_reaches_a_reader_at_once(ws: Machine) -> None:
    """A progress bar without a newline is not held back."""
    command = "printf '10%%\\r'; until test -e go; do sleep 0.02; done"
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as output:
        program = ws.start("run", "--command", command, stdout=writer)
        os.close(writer)
        assert output.read(100) == b"10%\r"  # while the command waits for us
        ws.file("go", "")
        program.end(0)
