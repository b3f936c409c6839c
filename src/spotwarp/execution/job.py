"""`spotwarp run`, from the first step to the last.

lock → recover → beat → wait for the turn → restore → claim → catch up → clear the way → start → sync, again and again
→ the tree
is gone → final sync, read back → seal or complete → exit code. The order of the end is the supervisor's; this file does
what it says.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from spotwarp.clock import Clock, Rng
from spotwarp.config import Config, load
from spotwarp.errors import ConfigError, Interrupted, LocalWork, SpotWarpError, UsageError
from spotwarp.execution.claiming import Claimant, claim, last_claim, refuse_ended
from spotwarp.execution.command import Command, resolve
from spotwarp.execution.control_socket import ControlSocket
from spotwarp.execution.news.facts import Fact
from spotwarp.execution.news.notifier import Notifier
from spotwarp.execution.notice.platform import detect
from spotwarp.execution.occupancy import lock
from spotwarp.execution.occupancy.leftovers import refuse_leftovers
from spotwarp.execution.occupancy.note import occupy
from spotwarp.execution.origin import origin_of
from spotwarp.execution.output.cursor import Cursor
from spotwarp.execution.process.starter import refuse_missing
from spotwarp.execution.redaction import Redactor
from spotwarp.execution.requests import Requests, told
from spotwarp.execution.restoring.restorer import Restorer
from spotwarp.execution.sameness.compared import Compared, compare, shape_here, tell_moved
from spotwarp.execution.secrets import refuse_spelled_out, require
from spotwarp.execution.supervised import Outcome, Supervised
from spotwarp.execution.syncing.syncer import Syncer
from spotwarp.execution.workspace import Choice, is_empty
from spotwarp.persistence.repository import Repository
from spotwarp.persistence.runlog.entry import Claim, Shape
from spotwarp.persistence.runlog.fold import Refusal
from spotwarp.persistence.runlog.lease import Heart, Holding
from spotwarp.persistence.runlog.log import RunLog

Say = Callable[[str], None]
Facts = dict[str, str | int | float | bool | None]

EARLY_S = 3.0
"""What a machine that goes before the command was started has for news."""

__all__ = ["Choice", "Outcome", "Wish", "run_job"]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked of `run`."""

    command: tuple[str, ...]
    shell: bool
    resume_args: str | None = None
    takeover: bool = False
    choice: Choice = Choice.ASK
    detached: bool = False
    """Nobody sees our stdout: the command's output goes to its log only."""
    unsaid: tuple[str, ...] = field(default=(), repr=False)
    """What no log may hold, beside the values that `secrets` names."""


def run_job(
    workspace: Path,
    config: Config,
    repository: Repository,
    log: RunLog,
    wish: Wish,
    *,
    clock: Clock,
    rng: Rng,
    say: Say,
    ask: Callable[[str], str] | None = None,
    started: Callable[[], None] = lambda: None,
    cursor: Cursor | None = None,
) -> Outcome:
    """Run the command to its end, whatever that is; `started` is called once it runs, `cursor` follows its output.

    Must be called from the main thread (signals).
    """
    redactor = Redactor([*require(config.secrets, os.environ), *wish.unsaid])
    refuse_spelled_out((*wish.command, wish.resume_args or ""), redactor)

    def tell(line: str) -> None:
        say(redactor.text(line))

    since = clock.wall().isoformat(timespec="seconds")
    requests = Requests(log.run, since=since, detached=wish.detached)
    with (
        lock.hold(workspace, what="run --detach" if wish.detached else "run", since=since, say=tell),
        _interruptible() as cancel,
        _listening(workspace, requests, tell),
    ):
        job = _Job(
            workspace, config, repository, log, wish, clock=clock, rng=rng, say=tell, ask=ask, cancel=cancel,
            redactor=redactor, requests=requests, started=started, cursor=cursor,
        )  # fmt: skip
        try:
            outcome = job.run()
        except SpotWarpError as error:
            requests.end(told(error))
            raise
        requests.end(outcome.facts())
        return outcome


@contextlib.contextmanager
def _listening(workspace: Path, requests: Requests, say: Say) -> Iterator[None]:
    """Take requests, where there is any place for a socket: a run does not need one."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(ControlSocket(workspace, requests.answer, requests.sent))
        except OSError as error:
            say(f"no requests can be taken here (`stop`, `attach`, `sync` from inside the run): {error.strerror}")
        yield


@contextlib.contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Until the command starts, SIGINT and SIGTERM end whatever is being waited for; SIGHUP ends nothing.

    Once there is an outcome, whatever comes is too late to make it another: ignored.
    """
    cancel = threading.Event()

    def interrupt(number: int, _: object) -> None:
        cancel.set()
        raise _Signalled(number)

    before = {s: signal.signal(s, interrupt) for s in (signal.SIGINT, signal.SIGTERM)}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        yield cancel
    except BaseException:
        for number, handler in before.items():
            signal.signal(number, handler)
        raise
    for number in before:
        signal.signal(number, signal.SIG_IGN)


class _Signalled(Interrupted):
    def __init__(self, number: int) -> None:
        super().__init__(
            f"stopped by {signal.Signals(number).name} before the command was started; nothing was changed"
        )
        self.number = number


class _Job:
    def __init__(
        self,
        workspace: Path,
        config: Config,
        repository: Repository,
        log: RunLog,
        wish: Wish,
        *,
        clock: Clock,
        rng: Rng,
        say: Say,
        ask: Callable[[str], str] | None,
        cancel: threading.Event,
        redactor: Redactor,
        requests: Requests,
        started: Callable[[], None],
        cursor: Cursor | None,
    ) -> None:
        self._root, self._config, self._repository, self._log = workspace, config, repository, log
        self._wish, self._clock, self._rng, self._say, self._ask = wish, clock, rng, say, ask
        self._requests, self._started, self._cursor = requests, started, cursor
        self._restorer = Restorer(workspace, config, repository, log, clock=clock, say=say, cancel=cancel)
        self._supervised: Supervised | None = None
        self._redactor, self._generation = redactor, 0
        self._notifier = Notifier(
            config.notify, clock=clock, env=os.environ, origin=self._origin, say=say, redact=redactor.text
        )
        self._lost: Refusal | None = None
        self._only_stored = False
        """Nothing is in the workspace that is not in the run: whoever ends us here loses nothing."""

    def run(self) -> Outcome:
        """The whole life of one attempt."""
        try:
            return self._live()
        except _Signalled as stopped:
            if stopped.number != signal.SIGTERM:
                raise
            self._say(stopped.message)
            code, stored = 75 if self._only_stored else 125, self._only_stored
            self._notifier.hurry(self._clock.monotonic() + EARLY_S)
            self._notifier.send("preempted", f"{self._log.run}: {stopped.message}", exit_code=code, stored=stored)
            return Outcome(code, stopped.message, None, stored=stored)
        except SpotWarpError as error:
            if self._ask is None and not isinstance(error, (UsageError, Interrupted)):  # nobody is looking
                self._notifier.send("failed", f"{self._log.run} did not start: {error.message}", error=error.code)
            raise
        finally:
            self._notifier.close()

    def _origin(self) -> dict[str, Fact]:
        """Where news comes from."""
        return {
            "run": self._log.run,
            "generation": self._generation,
            "host": socket.gethostname(),
            "workspace": str(self._root),
            "time": self._clock.wall().isoformat(timespec="seconds"),
        }

    def _live(self) -> Outcome:
        self._only_stored = is_empty(self._root)
        if self._config.single_writer:
            self._say("single-writer: NOTHING stops a second machine from destroying this run; see that there is none")
        if (over := self._already_complete()) is not None:
            return over
        command = self._command()
        shape = shape_here(command, os.environ)
        before = last_claim(self._log, self._log.head())
        self._compare(before, command, shape).say(self._say)
        heart = self._start_heart()
        try:
            with self._occupied():
                return self._work(command, shape, before, heart)
        finally:
            heart.stop()

    def _occupied(self) -> contextlib.AbstractContextManager[None]:
        return occupy(
            self._root, self._repository, self._log, lease_s=self._config.lease_s, clock=self._clock, rng=self._rng,
            say=self._say,
        )  # fmt: skip

    def _work(self, command: Command, shape: Shape, before: Claim | None, heart: Heart) -> Outcome:
        """From here on the directory is ours."""
        refuse_leftovers(self._root)
        self._restorer.recover()
        fresh = origin_of(self._root, self._repository, self._log) is None
        restored = self._bring_up(command)
        # What is restored is stored; what was set aside for it, or lies beside it in a foreign place, is not.
        self._only_stored |= restored and not fresh and self._wish.choice is Choice.ASK
        if not command.shell:  # a typing mistake must not take the run, nor become its recorded command
            refuse_missing(command.words[0], self._root / command.cwd, os.environ)
        claimed = self._claim(command, shape)
        self._generation = claimed.generation
        heart.holding = Holding(claimed.generation, self._log.life)
        resumed = self._catch_up(claimed, command)
        tell_moved(self._root, before, self._config.exclude, clock=self._clock, say=self._say)
        self._supervised = self._prepare(command, claimed, heart, resumed=resumed)
        self._requests.begin(self._supervised, claimed.generation)
        return self._supervised.run(self._lost)

    def _already_complete(self) -> Outcome | None:
        """Running a finished job once more is no failure: a boot script may do it. Another command is refused later."""
        head = self._log.head()
        recorded = last_claim(self._log, head)
        same = not self._wish.command or (recorded is not None and self._wish.command == recorded.command)
        if head.state.terminal != "complete" or not same:
            return None
        words = f"run {self._log.run!r} is complete already; nothing was started"
        more = "more training: `spotwarp run --extend --command '…'`; another run: `--run NAME`"
        self._say(f"{words} (`spotwarp restore` gives its result; {more})")
        return Outcome(0, words, head.state.snapshot, "complete", head.state.generation, stored=True)

    def _command(self) -> Command:
        head = self._log.head()
        refuse_ended(head, self._log.run)
        recorded = last_claim(self._log, head)
        cwd = os.path.relpath(Path.cwd(), self._root)
        return resolve(
            self._wish.command,
            shell=self._wish.shell,
            cwd="" if cwd == "." else cwd,
            resume_args=self._wish.resume_args,
            recorded=recorded,
        )

    def _start_heart(self) -> Heart:
        def facts() -> tuple[str, Facts]:
            return self._supervised.beat() if self._supervised else ("preparing", {})

        def lost(refusal: Refusal) -> None:
            self._lost = refusal
            if self._supervised is not None:
                self._supervised.fenced(refusal.reason)

        quick = self._repository.with_budget(self._config.lease_s / 2)  # a holder must learn of its loss in time
        heart = Heart(
            quick.log(self._log.run, life=self._log.life, clock=self._clock, rng=self._rng),
            quick.store,
            lease_s=self._config.lease_s,
            clock=self._clock,
            facts=facts,
            on_lost=lost,
        )
        heart.start()
        return heart

    def _bring_up(self, command: Command) -> bool:
        """Restore where the workspace is behind; on a terminal the user is asked about newer local work."""
        words = (*command.words, command.resume_args or "", command.cwd, *os.environ.values())
        try:
            return self._restorer.bring_up(self._wish.choice, words)
        except LocalWork as work:
            if self._ask is None:
                raise
            self._say(work.message)
            answer = self._ask("restore (set local work aside), keep-local, or stop?").strip().lower()
            if answer not in ("restore", "keep-local"):
                raise
            self._wish = replace(self._wish, choice=Choice(answer))
            return self._restorer.bring_up(self._wish.choice, words)

    def _compare(self, before: Claim | None, command: Command, shape: Shape) -> Compared:
        """Against the attempt before. Raises `OtherShape`."""
        allowed = self._config.allow_other_shape
        return compare(self._log, self._log.head(), before, command, shape, self._root, allowed=allowed)

    def _claim(self, command: Command, shape: Shape) -> Claim:
        def compared() -> Claimant:
            """Once the wait is over: the one that was waited for may have stored a checkpoint meanwhile."""
            changes = self._compare(last_claim(self._log, self._log.head()), command, shape).changes
            return Claimant(command, self._root, self._config.lease_s, shape, changes)

        claimed = claim(
            self._log, self._repository.store, compared,
            lease_s=self._config.lease_s, takeover=self._wish.takeover, clock=self._clock, say=self._say,
        )  # fmt: skip
        self._repository.enlist(self._log.run)
        self._say(f"run {self._log.run!r}, generation {claimed.generation}: {_in_words(claimed.cause)}")
        return claimed

    def _catch_up(self, claimed: Claim, command: Command) -> bool:
        """R10: start from the last snapshot below the claim, not from what was prepared. True when there is one."""
        self._bring_up(command)
        self._restorer.clear_the_way()
        return claimed.base > 0 or self._log.head().state.fork is not None

    def _notice_s(self) -> float:
        """What a SIGTERM leaves for storing."""
        grace_s = detect(os.environ).grace_s if self._config.grace_s is None else self._config.grace_s
        return grace_s * self._config.sync_share

    def _prepare(self, command: Command, claimed: Claim, heart: Heart, *, resumed: bool) -> Supervised:
        syncer = Syncer(
            self._root,
            self._config,
            self._repository,
            self._log,
            claimed.generation,
            clock=self._clock,
            rng=self._rng,
            say=self._say,
            excludes=self._live_excludes(),
            notice_s=self._notice_s(),
        )
        return Supervised(
            self._root,
            self._config,
            self._repository,
            self._log,
            syncer,
            command,
            generation=claimed.generation,
            resumed=resumed,
            heart=heart,
            clock=self._clock,
            say=self._say,
            notifier=self._notifier,
            redactor=self._redactor,
            shown=not self._wish.detached,
            started=self._started,
            cursor=self._cursor,
            base=claimed.base,
            arrivals=self._restorer.arrivals(syncer.idle, syncer.written),
        )

    def _live_excludes(self) -> Callable[[], tuple[str, ...]]:
        """`exclude` as the config file has it now; a file that cannot be read at the moment changes nothing."""
        last = [self._config.exclude]

        def read() -> tuple[str, ...]:
            with contextlib.suppress(ConfigError):
                last[0] = load(self._root, env=os.environ).exclude
            return last[0]

        return read


def _in_words(cause: str) -> str:
    """Why a claim was made, for people."""
    kind, _, number = cause.partition("@")
    words = {
        "first": "its first",
        "sealed": f"goes on from generation {number}",
        "deadline": "the machine before it had notice and its time is over",
        "stale beat": "the machine before it has gone silent",
        "takeover": "taken over, as asked",
    }
    return words.get(kind, cause)
