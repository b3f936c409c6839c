"""Group C of the case book, as far as the process tree goes: nothing outlives it, no signal or status gets lost.

`AGENT` is what `spotwarp run` does around a command, in a few lines and without a store, so that it can be PID 1 or
lose its terminal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spotwarp
from spotwarp.clock import SystemClock
from spotwarp.execution.process.child import ProcessTree
from spotwarp.execution.process.proc import look_all
from spotwarp.execution.supervisor import ChildExited, Exit, Seal, Started, State, SyncFinished, TreeGone, step

CLOCK = SystemClock()
PYTHON = sys.executable
ENV = {**os.environ, "PYTHONPATH": str(Path(spotwarp.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}
IN_NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc"]

AGENT = """
import fcntl, os, signal, sys, termios
from pathlib import Path
from spotwarp.clock import SystemClock
from spotwarp.execution.process.child import ProcessTree
from spotwarp.execution.process.proc import look_all
from spotwarp.execution.output.terminal import OutputPump

clock, here = SystemClock(), Path.cwd()
if "controlling" in sys.argv:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
pump = OutputPump(here / "log", 1 << 20, clock=clock)
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(signal.SIGTERM))
signal.signal(signal.SIGHUP, lambda *_: (here / "hup").touch())
tree = ProcessTree.start(sys.argv[1], cwd=here, env=os.environ, stdio=pump.child_stdio)
pump.start()


def zombies():
    return sum(one.state == "Z" and one.parent == os.getpid() for one in look_all())


most_zombies = 0
while not tree.wait_leader(0.02) or tree.alive():
    while told:
        tree.signal_tree(told.pop())
    most_zombies = max(most_zombies, zombies())
pump.finish(20)
limit = clock.monotonic() + 20
while zombies() and clock.monotonic() < limit:
    clock.sleep(0.01)
(here / "result.part").write_text(f"{os.getpid()} {tree.status.shell_code} {most_zombies} {zombies()}")
(here / "result.part").rename(here / "result")
"""

# Counts until it is told to save; then saves (SIGTERM) and says when.
TRAINER = """
import signal, sys, time
from pathlib import Path

def save(number, frame):
    Path("saved").write_text(str(time.monotonic()))
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
Path("ready").touch()
while True:
    time.sleep(0.05)
"""


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], ProcessTree]]:
    trees: list[ProcessTree] = []

    def begin(command: str) -> ProcessTree:
        trees.append(ProcessTree.start(command, cwd=tmp_path, env=ENV))
        return trees[-1]

    yield begin
    for tree in trees:
        assert not tree.end(0, CLOCK).left


def write(folder: Path, name: str, code: str) -> Path:
    path = folder / name
    path.write_text(code)
    return path


def result(folder: Path) -> list[int]:
    until((folder / "result").exists)
    return [int(word) for word in (folder / "result").read_text().split()]


# --- C02


def test_C02_a_launcher_that_exits_before_its_child_does_not_hide_it(
    start: Callable[[str], ProcessTree], tmp_path: Path
) -> None:
    write(
        tmp_path,
        "slowwriter.py",
        "import time\nfor i in range(20):\n    open('out', 'a').write(f'{i}\\n')\n    time.sleep(0.05)\n",
    )
    tree = start(f'{PYTHON} -c "import subprocess,sys; subprocess.Popen([sys.executable, \\"slowwriter.py\\"])"')
    status = tree.wait_leader(30)
    assert status is not None
    assert status.code == 0
    assert tree.alive()  # the launcher's success is not the end of the tree
    until(lambda: not tree.alive())
    assert (tmp_path / "out").read_text().split() == [str(i) for i in range(20)]


# --- C03

STRAY = """
import os, signal, sys, time
if os.fork():
    time.sleep(120)
    sys.exit()
os.setsid()
if os.fork():
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open("late.bin", "ab", buffering=0) as late:
    open("stray", "w").write(str(os.getpid()))
    while True:
        late.write(b"x" * 100)
        time.sleep(0.001)
"""


def test_C03_a_stray_that_double_forked_is_gone_and_writes_no_more(
    start: Callable[[str], ProcessTree], tmp_path: Path
) -> None:
    write(tmp_path, "stray.py", STRAY)
    tree = start(f"{PYTHON} stray.py")
    late = tmp_path / "late.bin"
    until(lambda: late.exists() and late.stat().st_size > 1000 and (tmp_path / "stray").read_text())
    stray = int((tmp_path / "stray").read_text())
    assert stray in {one.pid for one in tree.descendants()}

    tree.signal_group(signal.SIGTERM)  # what a launcher does: the stray outlives it
    assert tree.wait_leader(30)
    size = late.stat().st_size
    until(lambda: late.stat().st_size > size)
    assert [one.pid for one in tree.descendants()] == [stray]

    ended = tree.end(0.2, CLOCK)
    size = late.stat().st_size
    assert [one.pid for one in ended.killed] == [stray]
    assert not ended.left
    assert stray not in {one.pid for one in look_all() if one.living}
    time.sleep(0.1)  # a hundred of its writes
    assert late.stat().st_size == size


# --- C04


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("{python} fail.py", 1),
        ("{python} fail.py; true", 0),
        ("{python} fail.py | tee log", 0),
        ("set -o pipefail; {python} fail.py | tee log", 1),
    ],
)
def test_C04_the_code_is_bashs_own_neither_better_nor_worse(
    start: Callable[[str], ProcessTree], tmp_path: Path, command: str, code: int
) -> None:
    write(tmp_path, "fail.py", "import sys; sys.exit(1)")
    status = start(command.format(python=PYTHON)).wait_leader(30)
    assert status is not None
    assert status.code == code


# --- C05


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("ulimit -c 0; kill -9 $$", 137, "SIGKILL"),
        ("ulimit -c 0; kill -11 $$", 139, "SIGSEGV"),
        ("ulimit -c 0; kill -15 $$", 143, "SIGTERM"),
        (f"{PYTHON} -c 'import os; os.kill(os.getpid(), 9)' 2> /dev/null; exit $?", 137, "SIGKILL"),
        ("exit 3", 3, "3"),
        ("exit 255", 255, "255"),
    ],
)
def test_C05_a_death_by_signal_has_its_name_and_is_no_preemption(
    start: Callable[[str], ProcessTree], command: str, code: int, words: str
) -> None:
    status = start(command).wait_leader(30)
    assert status is not None
    assert status.shell_code == code
    assert words in status.describe()
    state = State()
    for event in (Started(0), ChildExited(status.shell_code, status.describe(), 1), TreeGone(1), SyncFinished(True, 2)):
        state, actions = step(state, event)
    assert actions == (Seal("stopped", code), Exit(code, f"everything is stored; the command {status.describe()}"))


# --- C06


def test_C06_the_trainer_behind_a_shell_hears_sigterm_within_a_second(
    start: Callable[[str], ProcessTree], tmp_path: Path
) -> None:
    write(tmp_path, "trainer.py", TRAINER)
    tree = start(f"{PYTHON} trainer.py; echo post > post")
    until((tmp_path / "ready").exists)
    told = time.monotonic()
    tree.signal_tree(signal.SIGTERM)
    until(lambda: not tree.alive())
    assert float((tmp_path / "saved").read_text()) - told < 1
    assert not (tmp_path / "post").exists()


@pytest.mark.deep
def test_C06_the_same_as_pid_1(tmp_path: Path) -> None:
    write(tmp_path, "trainer.py", TRAINER)
    agent = [*IN_NAMESPACE, PYTHON, "-c", AGENT, f"{PYTHON} trainer.py; echo post > post"]
    with subprocess.Popen(agent, cwd=tmp_path, env=ENV, stdin=subprocess.DEVNULL) as outside:
        until((tmp_path / "ready").exists)
        (first,) = [one.pid for one in look_all() if one.parent == outside.pid]
        told = time.monotonic()
        os.kill(first, signal.SIGTERM)
        pid, code, *_ = result(tmp_path)
    assert pid == 1
    assert code == 143  # bash died of it; the trainer behind it saved
    assert float((tmp_path / "saved").read_text()) - told < 1


# --- C07


def test_C07_what_is_reparented_to_us_is_reaped(tmp_path: Path) -> None:
    _, code, most, left = forks(tmp_path, 300, [])
    assert code == 7
    assert most < 100  # however busy this machine is
    assert left == 0


@pytest.mark.deep
def test_C07_five_thousand_as_pid_1(tmp_path: Path) -> None:
    pid, code, most, left = forks(tmp_path, 5000, IN_NAMESPACE)
    assert pid == 1
    assert code == 7
    assert most < 500
    assert left == 0


def forks(folder: Path, count: int, prefix: list[str]) -> list[int]:
    command = f"for ((i = 0; i < {count}; i++)); do (true &) ; done; exit 7"
    subprocess.run([*prefix, PYTHON, "-c", AGENT, command], cwd=folder, env=ENV, check=True, timeout=300)
    return result(folder)


# --- C08


def test_C08_a_closed_terminal_stops_nothing(tmp_path: Path) -> None:
    write(
        tmp_path,
        "trainer.py",
        "import os, signal, time\n"
        "from pathlib import Path\n"
        "for number in (1, 13, 15): signal.signal(number, lambda n, f: Path(f'signal-{n}').touch())\n"
        "print('on a terminal:', os.isatty(1))\n"
        "while not Path('closed').exists(): time.sleep(0.02)\n"
        "for i in range(50): print('after', i)\n",
    )
    master, slave = os.openpty()
    with subprocess.Popen(
        [PYTHON, "-c", AGENT, f"{PYTHON} trainer.py", "controlling"],
        cwd=tmp_path,
        env=ENV,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    ) as agent:
        os.close(slave)
        seen = b""
        while b"on a terminal: True" not in seen:
            seen += os.read(master, 1000)
        os.close(master)  # the kernel sends SIGHUP to the agent, the owner of the terminal
        until((tmp_path / "hup").exists)
        (tmp_path / "closed").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(30)
        assert agent.returncode == 0
    assert result(tmp_path)[1] == 0
    assert (tmp_path / "log").read_bytes().splitlines()[-50:] == [b"after %d" % i for i in range(50)]
    assert not list(tmp_path.glob("signal-*"))
