"""The process tree, with real processes."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock
from spotwarp.errors import CommandNotFound, CommandNotRunnable, ExecutionError, WorkspaceFault
from spotwarp.execution.process.brief import run_briefly
from spotwarp.execution.process.child import ExitStatus, ProcessTree
from spotwarp.execution.process.proc import Process, look, look_all, send
from spotwarp.execution.process.starter import Stdio

CLOCK = SystemClock()
NAP = 120  # longer than any test: whoever sleeps so long is ended by the test


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ProcessTree]]:
    trees: list[ProcessTree] = []

    def begin(command: str | list[str], **changes: object) -> ProcessTree:
        given = {"cwd": tmp_path, "env": dict(os.environ)} | changes
        trees.append(ProcessTree.start(command, **given))  # type: ignore[arg-type]
        return trees[-1]

    yield begin
    for tree in trees:
        assert not tree.end(0, CLOCK).left


def script(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def outcome(tree: ProcessTree) -> ExitStatus:
    status = tree.wait_leader(20)
    assert status is not None
    return status


# --- What the command gets


@pytest.mark.parametrize("command", ["exit 3", ["bash", "-c", "exit 3"]])
def test_the_exit_code_is_the_commands_own(start: Callable[..., ProcessTree], command: str | list[str]) -> None:
    assert outcome(start(command)) == ExitStatus(3)


def test_a_string_goes_through_one_bash_and_arrives_byte_for_byte(
    start: Callable[..., ProcessTree], tmp_path: Path
) -> None:
    long = "x" * 100_000
    tree = start(
        f"""printf '%s|' "a b" 'c"d' 'e'\\''f' '$HOME' "$NAME" é$'\\n' {long} > out; FOO=1 env | grep ^FOO >> out""",
        env={**os.environ, "NAME": "val ue"},
    )
    assert outcome(tree) == ExitStatus(0)
    assert (tmp_path / "out").read_text() == f"""a b|c"d|e'f|$HOME|val ue|é\n|{long}|FOO=1\n"""


def test_a_string_runs_in_sh_where_there_is_no_bash(start: Callable[..., ProcessTree], tmp_path: Path) -> None:
    assert outcome(start("exit 4", env={"PATH": str(tmp_path)})) == ExitStatus(4)


def test_bashs_own_codes_come_through(start: Callable[..., ProcessTree]) -> None:
    assert outcome(start("no-such-command-here 2> /dev/null")) == ExitStatus(127)
    assert outcome(start("/etc/passwd 2> /dev/null")) == ExitStatus(126)


def test_the_environment_is_exactly_the_given_one(start: Callable[..., ProcessTree], tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "A": "1", "EMPTY": "", "BASH_FUNC_f%%": "() { :; }", "LC_ALL": "C", "É": "ü=ü"}
    assert outcome(start(["cp", "/proc/self/environ", "out"], env=env)) == ExitStatus(0)
    expected = [os.fsencode(f"{name}={value}") for name, value in env.items()]
    assert sorted((tmp_path / "out").read_bytes().split(b"\0")) == sorted([b"", *expected])


def test_no_descriptor_of_ours_leaks_not_even_an_inheritable_one(
    start: Callable[..., ProcessTree], tmp_path: Path
) -> None:
    ours = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(ours, True)
    try:
        assert outcome(start("ls /proc/$$/fd > out")) == ExitStatus(0)
    finally:
        os.close(ours)
    assert (tmp_path / "out").read_text().split() == ["0", "1", "2"]


def test_a_closed_stdin_is_given_as_dev_null(start: Callable[..., ProcessTree], tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        tree = start("readlink /proc/self/fd/0", stdio=Stdio(987, out.fileno(), out.fileno()))
    assert outcome(tree) == ExitStatus(0)
    assert (tmp_path / "out").read_text() == "/dev/null\n"


def test_signals_are_at_their_defaults_and_unblocked_whatever_ours_are(
    start: Callable[..., ProcessTree], tmp_path: Path
) -> None:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    try:
        tree = start(["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"], stdio=_into(tmp_path / "out"))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
    assert outcome(tree) == ExitStatus(0)
    assert [_signals(line) for line in (tmp_path / "out").read_text().splitlines()] == [0, 0]


def test_sighup_stays_ignored_under_nohup(start: Callable[..., ProcessTree], tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        tree = start(["grep", "SigIgn", "/proc/self/status"], stdio=_into(tmp_path / "out"))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert outcome(tree) == ExitStatus(0)
    assert _signals((tmp_path / "out").read_text()) == 1 << (signal.SIGHUP - 1)


def _signals(line: str) -> int:
    """The mask in a line of /proc/self/status, without 32 and 33, which are the C library's own."""
    return int(line.split()[1], 16) & ~(3 << 31)


def _into(path: Path) -> Stdio:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    return Stdio(0, fd, fd)


def test_it_has_a_session_of_its_own(start: Callable[..., ProcessTree]) -> None:
    tree = start(["sleep", str(NAP)])
    seen = look(tree.pid)
    assert seen is not None
    assert (seen.group, seen.session, seen.parent) == (tree.pid, tree.pid, os.getpid())


def test_it_can_be_started_from_many_threads(start: Callable[..., ProcessTree]) -> None:
    trees: list[ProcessTree] = []
    threads = [threading.Thread(target=lambda n=n: trees.append(start(f"exit {n}"))) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome(tree).shell_code for tree in trees) == list(range(1, 9))


# --- What cannot start


def test_a_command_that_does_not_exist(start: Callable[..., ProcessTree]) -> None:
    for name in ("no-such-command-here", "./nope", "/no/such/file"):
        with pytest.raises(CommandNotFound) as caught:
            start([name])
        assert name in caught.value.message
        assert caught.value.exit_code == 127


def test_a_command_that_cannot_run(start: Callable[..., ProcessTree], tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("echo hello")
    headless = tmp_path / "headless"
    headless.write_text("echo hello")
    headless.chmod(0o755)
    orphan = tmp_path / "orphan"
    orphan.write_text("#!/no/such/interpreter\n")
    orphan.chmod(0o755)
    for command in (["./plain"], ["./headless"], ["./orphan"], ["true", "x" * 200_000], [], ["true", "\0"]):
        with pytest.raises(CommandNotRunnable) as caught:
            start(command)
        assert caught.value.exit_code == 126
        assert caught.value.hint


def test_a_string_too_long_for_one_argument_says_so(start: Callable[..., ProcessTree]) -> None:
    with pytest.raises(CommandNotRunnable, match=os.strerror(errno.E2BIG)) as caught:
        start("true " + "x" * 200_000)
    assert caught.value.hint is not None
    assert "script" in caught.value.hint


def test_a_workspace_that_is_gone(start: Callable[..., ProcessTree], tmp_path: Path) -> None:
    with pytest.raises(WorkspaceFault):
        start("true", cwd=tmp_path / "gone")


def test_a_limit_on_processes_is_named(
    start: Callable[..., ProcessTree], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    with pytest.raises(ExecutionError, match="Cannot start a process"):
        start("true")
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ExecutionError):
        start("true")
    monkeypatch.setattr(sys, "executable", "/bin/false")  # ends without a word
    with pytest.raises(ExecutionError, match="ended before"):
        start("true")


# --- Signals and ends


def test_a_death_by_signal_is_told_apart(start: Callable[..., ProcessTree]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    try:
        statuses = [outcome(start(f"kill -{number} $$")) for number in (9, 11, 15)]
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    assert statuses == [ExitStatus(None, number) for number in (9, 11, 15)]
    assert [status.shell_code for status in statuses] == [137, 139, 143]


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (ExitStatus(0), 0, ["exited with 0"]),
        (ExitStatus(255), 255, ["exited with 255"]),
        (ExitStatus(None, 9), 137, ["SIGKILL (9)", "out-of-memory"]),
        (ExitStatus(None, 7), 135, ["SIGBUS (7)", "/dev/shm"]),
        (ExitStatus(None, 40), 168, ["signal 40"]),
        (ExitStatus(137), 137, ["exited with 137", "SIGKILL (9)"]),
        (ExitStatus(None), 125, ["lost"]),
    ],
)
def test_an_end_in_words(status: ExitStatus, code: int, words: list[str]) -> None:
    assert status.shell_code == code
    assert all(word in status.describe() for word in words)


def test_the_tree_ends_gently_when_it_can(start: Callable[..., ProcessTree], tmp_path: Path) -> None:
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(7)); open('ready', 'w'); signal.pause()"
    tree = start(script(code))
    until((tmp_path / "ready").exists)
    ended = tree.end(20, CLOCK)
    assert (ended.killed, ended.left, tree.alive()) == ((), (), False)
    assert tree.status == ExitStatus(7)


def test_a_stopped_process_still_hears_the_end(start: Callable[..., ProcessTree], tmp_path: Path) -> None:
    code = "import os, signal, sys; signal.signal(15, lambda *_: sys.exit(7)); os.kill(os.getpid(), 19)"
    tree = start(script(code))
    until(lambda: (seen := look(tree.pid)) is not None and seen.state == "T")
    assert not tree.end(20, CLOCK).killed
    assert tree.status == ExitStatus(7)


def test_what_will_not_end_is_killed_and_named(start: Callable[..., ProcessTree], tmp_path: Path) -> None:
    tree = start("trap '' TERM; touch ready; while :; do read -t 1 < <(:); sleep 0.01; done")
    until((tmp_path / "ready").exists)
    ended = tree.end(0.1, CLOCK)
    assert tree.pid in {one.pid for one in ended.killed}
    assert tree.status == ExitStatus(None, 9)
    assert not tree.alive()


def test_a_launcher_that_starts_its_workers_anew_is_ended_with_them(
    start: Callable[..., ProcessTree], tmp_path: Path
) -> None:
    tree = start(f"trap '' TERM; while :; do setsid sleep {NAP} & touch ready; wait $!; done")
    until((tmp_path / "ready").exists)
    ended = tree.end(0.3, CLOCK)
    assert not ended.left
    assert not tree.alive()


def test_an_end_of_what_has_ended_does_nothing(start: Callable[..., ProcessTree]) -> None:
    tree = start("true")
    assert outcome(tree) == ExitStatus(0)
    ended = tree.end(5, CLOCK)
    assert (ended.killed, ended.left) == ((), ())
    tree.signal_group(signal.SIGTERM)
    assert tree.signal_tree(signal.SIGTERM) == set()


def test_a_second_end_with_less_patience_overtakes(start: Callable[..., ProcessTree], tmp_path: Path) -> None:
    tree = start("trap '' TERM; touch ready; while :; do sleep 0.01; done")
    until((tmp_path / "ready").exists)
    patient = threading.Thread(target=tree.end, args=(NAP, CLOCK))
    patient.start()
    tree.end(0, CLOCK)
    patient.join(20)
    assert not patient.is_alive()


def test_the_group_is_signalled_also_when_its_leader_has_ended(start: Callable[..., ProcessTree]) -> None:
    tree = start(f"sleep {NAP} & exit 5")
    assert outcome(tree) == ExitStatus(5)
    assert len(tree.descendants()) == 1
    tree.signal_group(signal.SIGTERM)
    until(lambda: not tree.alive())


def test_a_process_that_is_not_of_the_tree_is_left_alone(start: Callable[..., ProcessTree]) -> None:
    with subprocess.Popen(["sleep", str(NAP)]) as ours:
        tree = start(f"sleep {NAP}")
        assert ours.pid not in {one.pid for one in tree.descendants()}
        tree.end(1, CLOCK)
        assert ours.poll() is None
        ours.terminate()


def test_the_exit_codes_of_our_own_children_are_not_taken(start: Callable[..., ProcessTree]) -> None:
    tree = start(f"sleep {NAP}")
    codes = []
    for code in (3, 4, 5):
        with subprocess.Popen(["sh", "-c", f"exit {code}"]) as ours:
            until(lambda pid=ours.pid: (seen := look(pid)) is not None and seen.state == "Z")
            tree.signal_tree(0)
            codes.append(ours.wait(20))
    assert codes == [3, 4, 5]


def test_a_zombie_of_ours_does_not_hide_the_end_of_the_tree(start: Callable[..., ProcessTree]) -> None:
    with subprocess.Popen(["true"]) as ours:
        until(lambda: (seen := look(ours.pid)) is not None and seen.state == "Z")
        assert outcome(start("exit 6")) == ExitStatus(6)
        assert ours.wait(20) == 0


def test_what_a_hook_left_behind_is_reaped(start: Callable[..., ProcessTree]) -> None:
    start("sleep 60")  # the reaper is at work
    assert run_briefly("sleep 0.05 &", env=os.environ, timeout_s=30).code == 0

    def left() -> list[Process]:
        ours = [one for one in look_all() if one.parent == os.getpid() and one.session == os.getsid(0)]
        return [one for one in ours if one.group not in (one.pid, os.getpgrp())]

    until(lambda: not left())


def test_a_reused_pid_is_not_signalled(start: Callable[..., ProcessTree]) -> None:
    tree = start(["sleep", str(NAP)])
    seen = look(tree.pid)
    assert seen is not None
    another = Process(seen.pid, seen.started - 1, seen.name, seen.state, seen.parent, seen.group, seen.session)
    assert not send(another, signal.SIGKILL)
    assert tree.alive()
    assert send(seen, signal.SIGKILL)


def test_a_process_whose_main_thread_ended_is_alive(start: Callable[..., ProcessTree]) -> None:
    code = (
        "import ctypes, threading, time\n"
        f"threading.Thread(target=time.sleep, args=({NAP},)).start()\n"
        "ctypes.CDLL(None).syscall(60, 0)\n"  # exit, of this thread alone
    )
    tree = start(script(code))
    until(lambda: (seen := look(tree.pid)) is not None and seen.state == "Z")
    assert tree.alive()
    assert tree.wait_leader(0) is None
    assert tree.end(5, CLOCK).left == ()
    assert not tree.alive()
