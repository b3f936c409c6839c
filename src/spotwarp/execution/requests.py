"""What the SpotWarp at work in a workspace can be asked, and what it answers.

Owns the verbs of the control socket: `status`, `sync`, and, answered when the run has ended, `wait` and `stop`. It is
there from before the restore to the exit code. Decides nothing: a stop is the user's Ctrl-C by another way.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import Any, Protocol

from spotwarp.errors import AlreadyRunning, ExecutionError, SpotWarpError

Answer = dict[str, Any]
LAST_ANSWERS_S = 2.0
LASTING = ("wait", "stop")
"""Answered when the run has ended."""


class AtWork(Protocol):
    """The command's side of it, once there is one."""

    def status(self) -> Answer:
        """Phase and facts."""
        ...

    def sync(self) -> Answer:
        """Store now; the snapshot's facts."""
        ...

    def interrupt(self) -> None:
        """As Ctrl-C."""
        ...


class Requests:
    """Answers the requests of one `spotwarp run`. Its methods may be called from any thread."""

    def __init__(self, run: str, *, since: str, detached: bool) -> None:
        self._own: Answer = {
            "run": run,
            "generation": 0,
            "phase": "preparing",
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": since,
            "detached": detached,
        }
        self._at_work: AtWork | None = None
        self._changed = threading.Condition()
        self._waiting = 0
        self._outcome: Answer | None = None

    def begin(self, at_work: AtWork, generation: int) -> None:
        """The run is claimed; the command is about to start."""
        self._own["generation"] = generation
        self._at_work = at_work

    def end(self, outcome: Answer) -> None:
        """Give everybody who waits the outcome; returns when they have it, or after two seconds."""
        with self._changed:
            self._outcome = outcome
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting, LAST_ANSWERS_S)

    def answer(self, request: Answer) -> Answer:
        """The answer to one request; may block. Trouble is an answer, too: `error`, `hint`, `code`."""
        if request.get("verb") in LASTING:
            with self._changed:
                self._waiting += 1
        if request.get("run") not in (None, self._own["run"]):
            return told(
                AlreadyRunning(
                    f"run {self._own['run']!r} is at work in this workspace, not {request['run']!r}",
                    hint="Leave --run out, or store the other run from a directory of its own.",
                )
            )
        try:
            match request.get("verb"):
                case "status":
                    return {**self._own, **(self._at_work.status() if self._at_work else {})}
                case "sync":
                    return self._sync()
                case "stop":
                    return self._stop(now=bool(request.get("now")))
                case "wait":
                    return self._wait()
        except SpotWarpError as error:
            return told(error)
        return {"error": f"unknown request {request.get('verb')!r}"}

    def sent(self, request: Answer) -> None:
        """The answer to `request` is on its way."""
        if request.get("verb") in LASTING:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()

    def _sync(self) -> Answer:
        if self._at_work is None:
            raise ExecutionError("the run is being prepared: there is nothing to store yet", hint="Try again soon.")
        return self._at_work.sync()

    def _stop(self, *, now: bool) -> Answer:
        for _ in range(2 if now else 1):
            if self._at_work is not None:
                self._at_work.interrupt()
            else:
                os.kill(os.getpid(), signal.SIGINT)
        return self._wait()

    def _wait(self) -> Answer:
        with self._changed:
            self._changed.wait_for(lambda: self._outcome is not None)
            assert self._outcome is not None  # noqa: S101 - waited for
            return self._outcome


def told(error: SpotWarpError) -> Answer:
    """An error as an answer, under the name that it has in the tree."""
    known = next(kind for kind in type(error).__mro__ if kind.__module__ == SpotWarpError.__module__)
    return {"error": error.message, "hint": error.hint, "code": known.__name__}
