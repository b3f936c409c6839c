"""The doer beside the training command: carries out what the supervisor decides and reports back with events.

One queue of events, one loop in the main thread, threads for what waits: the tree's end, a sync, checkpoints, requests.
It never decides; every rule of the end is in `supervisor`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from spotwarp.clock import Clock
from spotwarp.config import Config
from spotwarp.errors import SpotWarpError, WorkspaceFault
from spotwarp.execution import localstate, supervisor
from spotwarp.execution.checkpoints import find, judge, newest, walk
from spotwarp.execution.command import Command, environment, serves, with_checkpoint
from spotwarp.execution.localstate import NOTICE_FILE, runtime
from spotwarp.execution.news.facts import PLENTY_S, ending
from spotwarp.execution.news.notifier import Notifier
from spotwarp.execution.notice.choosing import choose
from spotwarp.execution.notice.platform import detect
from spotwarp.execution.notice.telling import NoticeFile
from spotwarp.execution.notice.watching import Notices
from spotwarp.execution.output.cursor import Cursor
from spotwarp.execution.output.outputlog import Recent, log_path
from spotwarp.execution.output.terminal import OutputPump, nowhere
from spotwarp.execution.process.child import ProcessTree
from spotwarp.execution.redaction import Redactor
from spotwarp.execution.restoring.arriving import Arrivals
from spotwarp.execution.syncing.firstupload import screen
from spotwarp.execution.syncing.storing import Facts, Storing
from spotwarp.execution.syncing.syncer import Syncer
from spotwarp.execution.syncing.unstored import Unstored
from spotwarp.execution.syncing.unstored import find as find_unstored
from spotwarp.execution.syncing.versions import End
from spotwarp.execution.syncing.watch import CheckpointWatch
from spotwarp.persistence.receipts import complete, seal
from spotwarp.persistence.repository import Repository
from spotwarp.persistence.runlog.entry import Phase, PhaseName
from spotwarp.persistence.runlog.fold import Refusal
from spotwarp.persistence.runlog.lease import Heart
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.persistence.view import snapshot_facts

TICK_S = 0.2
OUTPUT_S = 5.0
SEAL_S = 60.0
PREEMPTED = 75


@dataclass(frozen=True, slots=True)
class Outcome:
    """How `run` ended: its exit code, why, and the last snapshot."""

    code: int
    reason: str
    snapshot: int | None
    sealed: str = ""
    generation: int = 0
    error: str = ""
    unstored: tuple[str, ...] = ()
    """Files that are only here, the largest first."""
    stored: bool = False
    """Everything is in the last snapshot, which was read back; `code` alone does not tell, it may be the command's."""

    def facts(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "exit_code": self.code,
            "reason": self.reason,
            "snapshot": self.snapshot,
            "sealed": self.sealed,
            "generation": self.generation,
            "error": self.error,
            "stored": self.stored,
            "unstored": list(self.unstored),
        }


class Supervised:
    """One attempt's command, from its start to its exit code."""

    def __init__(
        self,
        workspace: Path,
        config: Config,
        repository: Repository,
        log: RunLog,
        syncer: Syncer,
        command: Command,
        *,
        generation: int,
        resumed: bool,
        heart: Heart,
        clock: Clock,
        say: Callable[[str], None],
        notifier: Notifier,
        redactor: Redactor,
        shown: bool = True,
        started: Callable[[], None] = lambda: None,
        cursor: Cursor | None = None,
        base: int = 0,
        arrivals: Arrivals | None = None,
    ) -> None:
        """`shown`: whether our stdout and stderr take the command's output, which the log has in any case. `started`
        is called once the command runs. `base` is the snapshot that this attempt starts from, 0 for none. `arrivals`
        bring in what was restored only in part."""
        self._root, self._config, self._log = workspace, config, log
        self._notifier, self._redactor = notifier, redactor
        self._command, self._arrivals = command, arrivals
        self._generation, self._resumed, self._heart, self._base = generation, resumed, heart, base
        self._clock, self._say, self._started = clock, say, started
        self._events: queue.SimpleQueue[supervisor.Event] = queue.SimpleQueue()
        platform = detect(os.environ)
        policy = supervisor.Policy(platform.grace_s, platform.why, config.sync_share, linger_s=config.linger_s)
        policy = replace(policy, service=serves(command) if config.service is None else config.service)
        if config.grace_s is not None:
            policy = replace(policy, grace_s=config.grace_s, grace_by="the option grace", stop_s=config.grace_s)
        self._state, self._slurm = supervisor.State(policy), platform.slurm
        chosen = choose(config, platform, workspace, os.environ, clock)
        self._notices = Notices(chosen, f"{policy.grace_s:g} s: {policy.grace_by}", clock=clock, say=say)
        recent = Recent()
        self._storing = Storing(
            syncer, repository, log, config, generation=generation, clock=clock, say=say, post=self._events.put,
            notifier=notifier, output=recent.take,
        )  # fmt: skip
        self._notice = NoticeFile(runtime(workspace) / NOTICE_FILE, clock)
        self._pump = OutputPump(
            log_path(runtime(workspace), generation), config.log_limit, clock=clock, say=say, redactor=redactor,
            ours=None if shown else nowhere(), recent=recent, cursor=cursor if shown else None,
        )  # fmt: skip
        self._finishing = threading.Lock()
        self._tree: ProcessTree | None = None
        self._phase = "bootstrapping"
        self._exit: supervisor.Exit | None = None
        self._sealed = ""
        self._stored = self._succeeded = self._killed = False

    # ---- what others ask and tell ----------------------------------------------------------------------------------

    def beat(self) -> tuple[str, Facts]:
        """Phase and facts for the heartbeat."""
        arriving = self._arrivals.words() if self._arrivals is not None else ""
        facts = {**self._storing.facts(), "notices": self._notices.standing(), "arriving": arriving}
        return self._phase, {k: self._redactor.text(v) if isinstance(v, str) else v for k, v in facts.items()}

    def fenced(self, reason: str) -> None:
        """The run has moved on; may be called from any thread."""
        self._events.put(supervisor.FencedOff(reason, self._clock.monotonic()))

    def status(self) -> dict[str, Any]:
        """What is known here, fresher than any heartbeat. May be called from any thread, as the two below."""
        self._storing.look_anew()
        phase, facts = self.beat()
        return {
            "phase": phase,
            **facts,
            "error": facts["error"] or self._heart.error,
            "last_snapshot": self._storing.last_snapshot or self._base or None,
        }

    def sync(self) -> dict[str, Any]:
        """Store now; the snapshot's facts. Raises what `Syncer.sync` raises."""
        done = self._storing.now()
        return {**snapshot_facts(done.snapshot), "lacking": done.lacking, "unchanged": done.verified is None}

    def interrupt(self) -> None:
        """As Ctrl-C: the first time stop, the second time at once."""
        self._events.put(supervisor.Signalled(signal.SIGINT, self._clock.monotonic()))

    # ---- the life --------------------------------------------------------------------------------------------------

    def run(self, lost: Refusal | None) -> Outcome:
        """Start the command and stay beside it to the end."""
        if lost is not None:
            return Outcome(
                125, f"fenced before the command was started: {lost.reason}", None, generation=self._generation
            )
        watch = CheckpointWatch(
            self._root, settle_s=self._config.settle_s, clock=self._clock, on_complete=lambda _: self._checkpoint()
        )
        self._notice.clear()
        self._take_signals()
        with contextlib.ExitStack() as stack:
            stack.callback(self._finish_output)
            stack.callback(self._storing.end)
            self._notices.start(self._events.put)
            stack.callback(self._notices.stop)
            watch.start()  # before the command: what it finds then is known already
            stack.callback(watch.stop)
            stack.push(self._end_orphans)
            stack.callback(self._end_arrivals)
            self._start()
            if self._arrivals is not None:
                self._arrivals.start()
            self._loop()
        outcome = self._outcome()
        if outcome.code == PREEMPTED:
            self._notices.acknowledge()
        return outcome

    def _end_arrivals(self) -> None:
        """What has not come in by now must not compete with what is to be stored; the next start goes on with it."""
        if self._arrivals is not None:
            self._arrivals.stop()

    def _end_orphans(self, kind: type[BaseException] | None, *_: object) -> None:
        """Whatever goes wrong in here, no trainer is left running without anybody beside it."""
        if kind is not None and self._tree is not None:
            self._tree.end(self._state.policy.kill_after_s, self._clock)

    def _start(self) -> None:
        checkpoint = self._newest_checkpoint()
        path = str(self._root / checkpoint) if checkpoint else None
        env = environment(
            os.environ, run=self._log.run, generation=self._generation, resumed=self._resumed, checkpoint=path
        )
        env |= self._notice.environment()
        cwd = self._root / self._command.cwd
        if not cwd.is_dir():
            raise WorkspaceFault(f"the command's directory {cwd} is not there", hint="Run it from a directory that is.")
        if checkpoint:
            self._say(f"resuming from {checkpoint}")
        self._note_phase("training")
        self._show_first_upload()
        start = with_checkpoint(self._command, path)
        self._tree = ProcessTree.start(start, cwd=cwd, env=env, stdio=self._pump.child_stdio)
        self._pump.start()
        self._phase = "training"
        self._storing.start(at_once=not self._resumed or self._generation == 1)
        self._started()
        if self._generation > 1:
            place = checkpoint or "the last snapshot, which has no resumable checkpoint"
            self._notifier.send("resumed", f"{self._log.run} resumes from {place}", checkpoint=checkpoint)
        self._events.put(supervisor.Started(self._clock.monotonic()))  # before its end can be: a command may be short
        threading.Thread(target=self._await_tree, name="tree", daemon=True).start()

    def _show_first_upload(self) -> None:
        if self._resumed:
            return
        rate = localstate.load(runtime(self._root) / localstate.RATE, localstate.Rate)
        for line in screen(self._root, self._config.exclude, rate.bytes_s if rate else None):
            self._say(line)

    def _newest_checkpoint(self) -> str | None:
        best = newest(judge(self._root, path) for path in find(walk(self._root)))
        return os.fsdecode(best.path) if best else None

    def _note_phase(self, phase: PhaseName, seconds: float | None = None, reason: str = "") -> None:
        """An entry that only informs: trouble with it is told by the next sync."""
        entry = Phase(generation=self._generation, phase=phase, seconds=seconds, reason=reason)
        with contextlib.suppress(SpotWarpError):
            self._log.append(lambda _: entry, budget_s=5.0)

    def _loop(self) -> None:
        while self._exit is None:
            try:
                event: supervisor.Event = self._events.get(timeout=TICK_S)
            except queue.Empty:
                event = supervisor.Tick(self._clock.monotonic())
            if isinstance(event, supervisor.Signalled) and event.sig == signal.SIGTERM:
                self._aside(self._notices.at_sigterm)  # not in the handler: it may have interrupted a thread's start
            self._state, actions = supervisor.step(self._state, event)
            for action in actions:
                self._do(action)
            self._storing.look(self._heart.error)

    def _finish_output(self) -> None:
        """Everything the command printed is shown and in its log. Safe to repeat, from any thread."""
        deadline = self._state.deadline
        left = OUTPUT_S if deadline is None else min(OUTPUT_S, max(0.5, (deadline - self._clock.monotonic()) / 10))
        with self._finishing, contextlib.suppress(OSError):
            self._pump.finish(left)

    # ---- events ----------------------------------------------------------------------------------------------------

    def _take_signals(self) -> None:
        """Signals become events, to the end of the process: a verdict must not be overtaken by one that comes after
        it."""

        def told(number: int, _: FrameType | None) -> None:
            self._events.put(supervisor.Signalled(number, self._clock.monotonic()))

        def passed_on(number: int, _: FrameType | None) -> None:
            self._pass_on(number)

        def resized(number: int, frame: FrameType | None) -> None:
            if self._pump.resized():
                passed_on(number, frame)

        def unmoved(_number: int, _: FrameType | None) -> None:
            """Ctrl-Z: a stopped SpotWarp would stop beating and lose the run while its command trains on."""

        handlers: dict[Callable[[int, FrameType | None], None], tuple[int, ...]] = {
            told: (signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
            passed_on: (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT),
            resized: (signal.SIGWINCH,),
            unmoved: (signal.SIGTSTP,),
        }
        for handler, numbers in handlers.items():
            for number in numbers:
                signal.signal(number, handler)

    def _pass_on(self, number: int) -> None:
        if self._tree is not None:
            self._tree.signal_group(number)
        if number == signal.SIGUSR1 and self._slurm:  # what `--signal=USR1@60` sends before the end
            self._events.put(supervisor.Hint(self._clock.monotonic()))

    def _await_tree(self) -> None:
        tree = self._tree
        assert tree is not None  # noqa: S101 - started before this thread
        status = tree.wait_leader()
        if status is not None:
            self._succeeded = status.shell_code == 0
            words = status.describe(by_us=self._phase == "ending")
            self._events.put(supervisor.ChildExited(status.shell_code, words, self._clock.monotonic()))
        while tree.alive():
            self._clock.sleep(0.1)
        self._events.put(supervisor.TreeGone(self._clock.monotonic()))

    def _checkpoint(self) -> None:
        self._events.put(supervisor.CheckpointCompleted(self._clock.monotonic()))

    # ---- actions ---------------------------------------------------------------------------------------------------

    def _do(self, action: supervisor.Action) -> None:
        match action:
            case supervisor.Say():
                self._say(action.text)
            case supervisor.SignalTree():
                assert self._tree is not None  # noqa: S101 - the supervisor acts after `Started`
                self._tree.signal_tree(action.sig)
            case supervisor.EndTree():
                self._phase = "ending"
                self._aside(lambda: self._end_tree(action.term_grace_s))
            case supervisor.StartSync():
                self._storing.routine(lambda: self._state.deadline)
            case supervisor.CancelSync():
                self._storing.cancel()
            case supervisor.FinalSync():
                self._phase = "final sync"
                self._end_arrivals()
                # The deadline as it is then: a notice may come during the last sync. The log must be whole before it.
                self._storing.final(lambda: self._state.deadline, before=self._finish_output, end=self._end())
            case supervisor.WriteNotice():
                self._write_notice(action)
            case supervisor.Seal():
                self._seal(action)
            case supervisor.Exit():
                self._exit = self._exit or action
                self._phase = "ended"

    def _end(self) -> End:
        """Whether what the command wrote last can be taken for written to its end."""
        return End.CLEAN if self._succeeded and not self._killed else End.CUT

    def _aside(self, work: Callable[[], None]) -> None:
        """Do `work` in a thread of its own; here and now where the process limit gives none."""
        try:
            threading.Thread(target=work, name="action", daemon=True).start()
        except RuntimeError:
            work()

    def _end_tree(self, term_grace_s: float) -> None:
        assert self._tree is not None  # noqa: S101 - as above
        ended = self._tree.end(term_grace_s, self._clock)
        if ended.killed:
            self._killed = True
            self._say(f"{len(ended.killed)} process(es) did not end by themselves and were killed")
        left = tuple(f"{one.pid}" for one in ended.left)
        self._events.put(supervisor.TreeGone(self._clock.monotonic(), left))

    def _write_notice(self, action: supervisor.WriteNotice) -> None:
        self._phase = "saving"
        self._storing.press_on()
        self._end_arrivals()
        try:
            self._notice.write(action.seconds_left, action.source)
        except WorkspaceFault as error:
            self._say(error.message)
        deadline = self._state.deadline
        left = max(0.0, deadline - self._clock.monotonic()) if deadline is not None else action.seconds_left
        self._aside(lambda: self._note_phase("notice", left, action.detail))
        if left >= PLENTY_S:  # otherwise the final sync needs the time, the network and the processor more
            text = f"{self._log.run} is being preempted ({action.source}): {left:.0f} s left, saving"
            self._notifier.send("preempted", text, seconds_left=round(left, 1), source=action.source)

    def _seal(self, action: supervisor.Seal) -> None:
        """The generation's last entry, on the receipt of the final snapshot."""
        verified, lacking = self._storing.verified, self._storing.lacking
        kind = "stopped" if lacking and action.kind == "complete" else action.kind
        try:
            if verified is None:
                raise WorkspaceFault("no final snapshot was read back")
            if kind == "complete":
                complete(self._log, verified, exit_code=action.exit_code or 0, budget_s=self._seal_budget())
            else:
                seal(
                    self._log,
                    verified,
                    phase=kind,
                    exit_code=action.exit_code,
                    reason=lacking,
                    budget_s=self._seal_budget(),
                )
                if lacking:
                    self._exit = supervisor.Exit(125, f"not everything is stored: {lacking}")
            self._sealed, self._stored = kind, not lacking
        except SpotWarpError as error:
            self._storing.error = error.message
            self._exit = supervisor.Exit(125, f"everything is stored, but the run could not be sealed: {error.message}")

    def _seal_budget(self) -> float:
        """Seconds for the last entry: what is left to the deadline, never nothing."""
        deadline = self._state.deadline
        return SEAL_S if deadline is None else min(SEAL_S, max(2.0, deadline - self._clock.monotonic()))

    def _outcome(self) -> Outcome:
        assert self._exit is not None  # noqa: S101 - the loop ends with it
        last, error, reason = self._storing.last_snapshot, self._storing.error, self._exit.reason
        if self._exit.code == 125 and error and error not in reason:
            reason = f"{reason}: {error}"
        left = Unstored() if self._sealed else find_unstored(self._root, self._config.exclude)
        words = reason + (f"; last snapshot {last}" if last else "; nothing was stored by this attempt")
        words += f"; {left}" if left.count else ""
        self._say(words)
        if self._arrivals is not None and (rest := self._arrivals.words()):
            self._say(f"{rest.partition(',')[0]} did not come in here: they are stored, `spotwarp restore` brings them")
        self._tell_end(words, last)
        return Outcome(self._exit.code, reason, last, self._sealed, self._generation, error, left.paths, self._stored)

    def _tell_end(self, words: str, last: int | None) -> None:
        """The end as news, once all is stored that will be."""
        assert self._exit is not None  # noqa: S101 - as above
        deadline = self._state.deadline
        if deadline is not None:
            self._notifier.hurry(deadline)
        event = ending(self._exit.code, self._sealed, preempted=deadline is not None)
        if event is not None:
            text = f"{self._log.run} {event}: {words}"
            self._notifier.send(event, text, exit_code=self._exit.code, snapshot=last, stored=self._stored)
