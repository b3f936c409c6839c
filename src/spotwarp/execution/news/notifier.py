"""News delivered: to a command or a web address, by threads of its own, whatever the receivers do.

Nothing in here may make the run wait, raise into it or fail it (I10). A receiver that fails is said once, and stands in
`error` until a delivery works; what it missed is dropped after a few tries, oldest first. That a delivery failed is
never news itself.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from spotwarp.clock import Clock
from spotwarp.execution.news import webhook
from spotwarp.execution.news.facts import Event, Fact, News, environment
from spotwarp.execution.process.brief import run_briefly

TRY_S = 10.0
PAUSES_S = (1.0, 4.0)
WAITING = 100
LAST_WORDS_S = 10.0
LAST_BLOW_S = 0.5

_Document = dict[str, Fact]


@dataclass(frozen=True, slots=True)
class Target:
    """One receiver: a web address or a shell command. `name` is what may be shown of it."""

    name: str
    command: str = ""
    url: str = ""


def targets(options: Sequence[str], env: Mapping[str, str]) -> tuple[list[Target], list[str]]:
    """The receivers that the option names, and in words what is wrong with the others. Pure."""
    found, wrong = [], []
    for number, option in enumerate(options, 1):
        place = f"notify {number}" if len(options) > 1 else "notify"
        text = option
        if option.startswith("env:"):
            place = f"notify {option}"
            text = env.get(option[4:], "").strip()
            if not text:
                wrong.append(f"{place}: the variable is empty, so nobody is told there")
                continue
        if text.startswith(("http://", "https://")):
            found.append(Target(f"{place} ({webhook.shown(text)})", url=text))
        else:
            found.append(Target(f"{place} (a command)", command=text))
    return found, wrong


class Notifier:
    """Sends news to every receiver. `origin` gives what goes with each (run, host, time …)."""

    def __init__(
        self,
        options: Sequence[str],
        *,
        clock: Clock,
        env: Mapping[str, str],
        origin: Callable[[], Mapping[str, Fact]],
        say: Callable[[str], None],
        redact: Callable[[str], str] = lambda text: text,
    ) -> None:
        found, wrong = targets(options, env)
        self._clock, self._origin, self._say, self._redact = clock, origin, say, redact
        self._hurry_at: float | None = None
        self._receivers = [_Receiver(target, clock, dict(env), self._failed) for target in found]
        self._errors = {one: one for one in wrong}
        for one in wrong:
            say(one)

    @property
    def error(self) -> str:
        """Whose deliveries fail, and why; empty when none does."""
        return "; ".join(self._errors.values())

    def send(self, event: Event, text: str, **facts: Fact) -> None:
        """Have everybody told; returns at once."""
        if not self._receivers:
            return
        document = News(event, text, facts).document(self._origin())
        clean = {k: self._redact(v) if isinstance(v, str) else v for k, v in document.items()}
        for receiver in self._receivers:
            receiver.take(clean)

    def hurry(self, deadline: float) -> None:
        """The machine may be gone at `deadline` (monotonic): `close` does not wait longer than that."""
        self._hurry_at = deadline if self._hurry_at is None else min(deadline, self._hurry_at)

    def close(self, budget_s: float = LAST_WORDS_S) -> None:
        """Let what is under way arrive, for at most `budget_s`."""
        if self._hurry_at is not None:
            budget_s = min(budget_s, max(0.5, self._hurry_at - 1.0 - self._clock.monotonic()))
        until = self._clock.monotonic() + budget_s
        for receiver in self._receivers:
            receiver.close(max(0.0, until - self._clock.monotonic()))

    def _failed(self, target: Target, reason: str) -> None:
        """Note how a delivery ended; a change from working to failing is said, once."""
        if not reason:
            self._errors.pop(target.name, None)
        elif target.name not in self._errors:
            self._errors[target.name] = f"{target.name}: {reason}"
            self._say(self._redact(f"nobody was told through {target.name}: {reason}; the run is not affected"))


class _Receiver:
    def __init__(self, target: Target, clock: Clock, env: dict[str, str], ended: Callable[[Target, str], None]) -> None:
        self._target, self._clock, self._env, self._ended = target, clock, env, ended
        self._waiting: queue.Queue[_Document | None] = queue.Queue()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, document: _Document) -> None:
        if self._waiting.qsize() >= WAITING:
            with contextlib.suppress(queue.Empty):
                self._waiting.get_nowait()
        self._waiting.put(document)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="notify", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no thread to be had: the pids limit
                self._ended(self._target, f"no thread: {error}")
                return
            self._thread = thread

    def close(self, budget_s: float) -> None:
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(budget_s)
            self._closing.set()
            if self._target.command:  # it is ended, not left behind
                self._thread.join(LAST_BLOW_S)

    def _run(self) -> None:
        while (document := self._waiting.get()) is not None:
            self._ended(self._target, self._deliver(document))

    def _deliver(self, document: _Document) -> str:
        """Why it did not arrive after a few tries; empty when it did."""
        reason = ""
        for pause_s in (*PAUSES_S, None):
            reason, again = self._once(document)
            if not reason or not again or pause_s is None or self._clock.wait(self._closing, pause_s):
                break
        return reason

    def _once(self, document: _Document) -> tuple[str, bool]:
        body = json.dumps(document).encode()
        if self._target.url:
            return webhook.post(self._target.url, body, timeout_s=TRY_S, clock=self._clock)
        env = {**self._env, **environment(document)}
        ran = run_briefly(self._target.command, env=env, data=body, timeout_s=TRY_S, heard=False, enough=self._closing)
        if ran.code == 0:
            return "", False
        return ran.reason or f"it exited with {ran.code}", ran.code is not None
