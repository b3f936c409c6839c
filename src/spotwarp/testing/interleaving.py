"""Several programs that share one world, interleaved by a seed: a whole schedule is one number.

Each task is a thread, but only the one that holds the baton runs. It passes the baton on at every `step` (before each
effect) and whenever it waits; who goes on is drawn from a seeded generator, and time passes only when it is told to. So
real, blocking code is run in any order that the real world could choose, again and again the same, and it can be
frozen or killed between any two effects. Nothing in here knows what the tasks do.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from spotwarp.testing.clocks import EPOCH


class Died(BaseException):
    """Raised in a task whose machine was killed; it gets no further effect, whatever it catches."""


class Task:
    """One thread of the world. `group` is what is frozen and killed together: a process life."""

    def __init__(self, name: str, group: str, work: Callable[[], object]) -> None:
        self.name = name
        self.group = group
        self.work = work
        self.thread: threading.Thread
        self.baton = threading.Semaphore(0)
        self.over = False
        self.dead = False
        self.wake = 0.0
        self.event: threading.Event | None = None
        self.frozen_until = 0.0

    def due(self) -> float:
        """When it can go on, in virtual seconds."""
        wake = 0.0 if self.event is not None and self.event.is_set() else self.wake
        return max(wake, self.frozen_until)


class Interleaver:
    """Runs tasks one at a time. Also the `Clock` that all of them share."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.steps = 0
        self._most_steps: float = math.inf
        self._restless = self.random.choice((0.15, 0.5, 1.0))
        self._tasks: list[Task] = []
        self._current: Task | None = None
        self._main = threading.Semaphore(0)
        self._failure: BaseException | None = None
        self._ending = False

    @property
    def current(self) -> Task | None:
        """The task that runs; None outside `run`."""
        return self._current

    def limit(self, steps: int) -> None:
        """End the world after so many steps, wherever everybody is."""
        self._most_steps = steps

    def spawn(self, name: str, work: Callable[[], object], *, group: str) -> None:
        """Add a task; it runs once the baton comes to it."""
        task = Task(name, group, work)
        task.wake = self.now
        self._tasks.append(task)
        task.thread = threading.Thread(target=self._thread, args=(task,), name=name, daemon=True)
        task.thread.start()

    def run(self) -> None:
        """Run until every task is over or dead, or the steps are used up. Raises what a task raised."""
        self._pass_on()
        self._main.acquire()
        self._ending = True
        for task in self._tasks:  # unwind those that are not over; a dead task has no effect any more
            task.dead, self._current = True, task
            task.baton.release()
            task.thread.join()
        self._current = None
        if self._failure is not None:
            raise self._failure

    def step(self, seconds: float = 0.0) -> None:
        """Called by the code under test before each effect, which takes `seconds`."""
        if self._current is not None:
            self.steps += 1
            self._yield(self.now + seconds)

    def kill(self, group: str) -> None:
        """No task of `group` ever runs again. Raises `Died` when the caller is one of them."""
        for task in self._tasks:
            if task.group == group:
                task.dead = True
        if self._current is not None and self._current.dead:
            raise Died(group)

    def freeze(self, group: str, seconds: float) -> None:
        """The tasks of `group` do not run for `seconds`; their next step comes after that."""
        for task in self._tasks:
            if task.group == group:
                task.frozen_until = self.now + seconds

    def alive(self, group: str) -> bool:
        """Whether some task of `group` can still run."""
        return any(t.group == group and not t.dead and not t.over for t in self._tasks)

    # ---- the clock -------------------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """See `Clock`."""
        return self.now

    def wall(self) -> datetime:
        """See `Clock`."""
        return EPOCH + timedelta(seconds=self.now)

    def thread_s(self) -> float:
        """See `Clock`."""
        return 0.0

    def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        if self._current is None:
            self.now += seconds
        else:
            self._yield(self.now + seconds)

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        """See `Clock`."""
        self._yield(math.inf if seconds is None else self.now + seconds, event)
        return event.is_set()

    # ---- the baton -------------------------------------------------------------------------------------------------

    def _yield(self, wake: float, event: threading.Event | None = None) -> None:
        task = self._current
        if task is None or task.dead:
            raise Died("outside the world" if task is None else task.group)
        task.wake, task.event = wake, event
        if self._pass_on() is not task:
            task.baton.acquire()
        if task.dead:
            raise Died(task.group)

    def _pass_on(self) -> Task | None:
        """Give the baton to the next task, or back to `run`; who has it now."""
        before = self._current
        self._current = None if self.steps >= self._most_steps or self._failure else self._draw(before)
        if self._current is None:
            self._main.release()
        elif self._current is not before:
            self._current.baton.release()
        return self._current

    def _draw(self, before: Task | None) -> Task | None:
        live = [t for t in self._tasks if not t.over and not t.dead]
        if not live:
            return None
        self.now = max(self.now, min(t.due() for t in live))
        if math.isinf(self.now):
            self._failure = AssertionError("every task waits for an event that nobody can set")
            return None
        ready = [t for t in live if t.due() <= self.now]
        if before in ready and self.random.random() >= self._restless:
            return before
        return self.random.choice(ready)

    def _thread(self, task: Task) -> None:
        task.baton.acquire()
        try:
            if not task.dead:
                task.work()
        except Died:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by `run`
            self._failure = self._failure or error
        task.over = True
        if not self._ending:
            self._pass_on()
