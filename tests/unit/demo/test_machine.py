"""The demo's machines: all of a tree stops, goes on and dies, wherever its processes went."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from spotwarp.clock import SystemClock
from spotwarp.demo.machine import Machine, StageFailed

# A parent and a child that left its session and its parent; both count in a file of their own.
TREE = """
import os, sys, time
from pathlib import Path
print("start at 30", flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    name = "child"
else:
    os.wait()
    name = "parent"
for number in range(31, 100000):
    Path(name + ".new").write_text(str(number))
    Path(name + ".new").rename(name)
    if name == "parent":
        print(f"step {number}/100000 loss=1.0", flush=True)
    time.sleep(0.001)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Machine(tmp_path / "machine", tmp_path / "logs", SystemClock()) as rented:
        yield rented


def begin(machine: Machine) -> None:
    machine.start([sys.executable, "-c", TREE], os.environ)
    machine.until(lambda: all((machine.directory / name).exists() for name in ("parent", "child")), "both")


def counts(machine: Machine) -> list[int]:
    return [int((machine.directory / name).read_text()) for name in ("parent", "child")]


def states(processes: list[psutil.Process]) -> set[str]:
    return {process.status() for process in processes}


def test_a_frozen_tree_stands_still_and_a_thawed_one_goes_on(machine: Machine) -> None:
    begin(machine)
    frozen = machine.freeze()
    assert len(frozen) == 2
    machine.until(lambda: states(frozen) == {psutil.STATUS_STOPPED}, "the stop of both")
    before = counts(machine)
    machine.thaw(frozen)
    machine.until(lambda: all(now > then for now, then in zip(counts(machine), before, strict=True)), "progress")


def test_the_program_itself_can_be_left_running(machine: Machine) -> None:
    begin(machine)
    frozen = machine.freeze(program=False)

    def stopped() -> list[psutil.Process]:
        return [process for process in frozen if process.status() == psutil.STATUS_STOPPED]

    machine.until(stopped, "the stop of the child")  # a stop is asked for, not done, when the signal is sent
    (child,) = stopped()
    before = counts(machine)[0]
    machine.until(lambda: counts(machine)[0] > before, "progress of the program")
    assert child.status() == psutil.STATUS_STOPPED


def test_a_kill_leaves_nothing_alive(machine: Machine) -> None:
    begin(machine)
    tree = machine.tree()
    assert len(tree) == 2
    machine.kill()
    assert [process for process in tree if process.is_running() and process.status() != psutil.STATUS_ZOMBIE] == []
    assert machine.tree() == []


def test_what_outlived_its_program_is_killed_too(machine: Machine) -> None:
    begin(machine)
    machine.notify()
    machine.exit_code()
    assert len(machine.tree()) == 1
    machine.kill()
    assert machine.tree() == []


def test_the_lines_are_read_with_their_moments(machine: Machine) -> None:
    begin(machine)
    machine.until(lambda: len(machine.steps) >= 3, "three steps")
    assert machine.start_step is not None
    assert machine.start_step[1] == 30
    moments, numbers = zip(*machine.steps[:3], strict=True)
    assert numbers == (31, 32, 33)
    assert list(moments) == sorted(moments)
    assert machine.start_step[0] <= moments[0]


def test_waiting_ends_with_the_program_and_says_its_last_words(machine: Machine) -> None:
    machine.start([sys.executable, "-c", "import sys; sys.exit('no GPU found')"], os.environ)
    with pytest.raises(StageFailed, match=r"machine exited with 1 before the first step.*no GPU found"):
        machine.until(lambda: bool(machine.steps), "the first step")


def test_waiting_ends_with_the_deadline(machine: Machine) -> None:
    begin(machine)
    with pytest.raises(StageFailed, match="the impossible did not come"):
        machine.until(lambda: False, "the impossible", seconds=0.05)
    with pytest.raises(StageFailed, match="did not end"):
        machine.exit_code(0.05)
