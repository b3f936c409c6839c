"""The doer beside the training command: carries out what the supervisor decides and reports back with events.

One queue of events, one loop in the main thread, threads for what waits: the tree's end, a sync, checkpoints,
requests. It never
decides; every rule of the end is in `supervisor`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from spotwarp.clock import Clock
from spotwarp.config import Config
from spotwarp.errors import Fenced, Interrupted, RunEnded, SpotWarpError, StoreFull, WorkspaceFault
from spotwarp.execution import supervisor
from spotwarp.execution.checkpoints import find, judge, newest, walk
from spotwarp.execution.child import ProcessTree
from spotwarp.execution.command import Command, environment, with_checkpoint
from spotwarp.execution.control_socket import ControlSocket
from spotwarp.execution.firstupload import screen
from spotwarp.execution.localstate import NOTICE_FILE, runtime
from spotwarp.execution.notice import NoticeFile
from spotwarp.execution.sync import Synced, Syncer, snapshot_answer
from spotwarp.execution.terminal import OutputPump
from spotwarp.execution.watch import CheckpointWatch
from spotwarp.model import human_bytes, human_seconds
from spotwarp.persistence.backup import Progress
from spotwarp.persistence.entries import shown
from spotwarp.persistence.prune import prune
from spotwarp.persistence.receipts import Verified, complete, seal
from spotwarp.persistence.repository import Repository
from spotwarp.persistence.runlog.entry import Phase
from spotwarp.persistence.runlog.fold import Refusal
from spotwarp.persistence.runlog.lease import Heart
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.persistence.telemetry import Sample, TelemetryWriter

TICK_S = 0.2
AUTO_LEAST_S, AUTO_MOST_S, AUTO_SHARE = 15.0, 300.0, 0.1
PRUNE_EVERY_S = 600.0
SAMPLE_EVERY_S = 10.0
RETRY_S = 5.0
PROGRESS_EVERY_S = 20.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How `run` ended: its exit code, why, and the last snapshot."""

    code: int
    reason: str
    snapshot: int | None
    sealed: str = ""
    generation: int = 0
    error: str = ""

    def facts(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "exit_code": self.code,
            "reason": self.reason,
            "snapshot": self.snapshot,
            "sealed": self.sealed,
            "generation": self.generation,
            "error": self.error,
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
        resume_args: str | None,
        *,
        generation: int,
        resumed: bool,
        heart: Heart,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self._root, self._config, self._repository, self._log = workspace, config, repository, log
        self._syncer, self._command, self._resume_args = syncer, command, resume_args
        self._generation, self._resumed, self._heart = generation, resumed, heart
        self._clock, self._say = clock, say
        self._events: queue.SimpleQueue[supervisor.Event] = queue.SimpleQueue()
        self._state = supervisor.State(
            supervisor.Policy(grace_s=config.grace_s, sync_share=config.sync_share, linger_s=config.linger_s)
        )
        self._tree: ProcessTree | None = None
        self._phase = "bootstrapping"
        self._cancel_sync = threading.Event()
        self._sync_done: Synced | None = None
        self._verified: Verified | None = None
        self._due: float | None = None
        self._took_s = 0.0
        self._exit: supervisor.Exit | None = None
        self._sealed = ""
        self._error = ""
        self._told_error = ""
        self._told_skipped: set[bytes] = set()
        self._pruned_at = clock.monotonic()
        self._sampled_at = clock.monotonic()
        self._telemetry = TelemetryWriter(repository.store, log.run, generation, clock)
        self._notice = NoticeFile(runtime(workspace) / NOTICE_FILE, clock)

    # ---- what others ask and tell ----------------------------------------------------------------------------------

    def beat(self) -> tuple[str, dict[str, str | int | float | bool | None]]:
        """Phase and facts for the heartbeat."""
        facts = self._syncer.facts
        best = newest_fact(facts.checkpoints)
        return self._phase, {
            "at_risk_s": round(self._syncer.at_risk_s(), 1),
            "at_risk_bytes": facts.pending_bytes,
            "error": facts.error,
            "error_since": facts.error_since,
            "step": best.step if best else None,
            "loss": best.loss if best else None,
        }

    def fenced(self, reason: str) -> None:
        """The run has moved on; may be called from any thread."""
        self._events.put(supervisor.FencedOff(reason, self._clock.monotonic()))

    # ---- the life --------------------------------------------------------------------------------------------------

    def run(self, lost: Refusal | None) -> Outcome:
        """Start the command and stay beside it to the end."""
        if lost is not None:
            return Outcome(
                125, f"fenced before the command was started: {lost.reason}", None, generation=self._generation
            )
        pump = OutputPump(
            runtime(self._root) / "log" / f"output-{self._generation:04d}.log",
            self._config.log_limit,
            clock=self._clock,
            say=self._say,
        )
        watch = CheckpointWatch(
            self._root, settle_s=self._config.settle_s, clock=self._clock, on_complete=lambda _: self._checkpoint()
        )
        self._notice.clear()
        with self._signals(pump), ControlSocket(self._root, self._answer):
            self._start(pump)
            watch.start()
            try:
                self._loop()
            finally:
                watch.stop()
                self._cancel_sync.set()
                pump.finish(5.0)
                self._telemetry.flush()
        return self._outcome()

    def _start(self, pump: OutputPump) -> None:
        checkpoint = self._newest_checkpoint()
        shown_path = str(self._root / checkpoint) if checkpoint else None
        env = environment(
            os.environ, run=self._log.run, generation=self._generation, resumed=self._resumed, checkpoint=shown_path
        )
        env |= self._notice.environment()
        cwd = self._root / self._command.cwd
        if not cwd.is_dir():
            raise WorkspaceFault(f"the command's directory {cwd} is not there", hint="Run it from a directory that is.")
        if checkpoint:
            self._say(f"resuming from {checkpoint}")
        self._note_phase("training")
        for line in screen(self._root, self._config.exclude, None) if not self._resumed else ():
            self._say(line)
        start = with_checkpoint(self._command, self._resume_args, shown_path)
        self._tree = ProcessTree.start(start, cwd=cwd, env=env, stdio=pump.child_stdio)
        pump.start()
        self._phase = "training"
        self._due = self._clock.monotonic() + self._interval()
        self._events.put(supervisor.Started(self._clock.monotonic()))  # before its end can be: a command may be short
        threading.Thread(target=self._await_tree, name="tree", daemon=True).start()

    def _newest_checkpoint(self) -> str | None:
        best = newest(judge(self._root, path) for path in find(walk(self._root)))
        return shown(best.path) if best else None

    def _note_phase(self, phase: Any, seconds: float | None = None) -> None:
        """An entry that only informs: trouble with it is told by the next sync."""
        with contextlib.suppress(SpotWarpError):
            self._log.append(lambda _: Phase(generation=self._generation, phase=phase, seconds=seconds), budget_s=5.0)

    def _loop(self) -> None:
        while self._exit is None:
            try:
                event: supervisor.Event = self._events.get(timeout=TICK_S)
            except queue.Empty:
                event = supervisor.Tick(self._clock.monotonic())
            self._state, actions = supervisor.step(self._state, event)
            for action in actions:
                self._do(action)
            self._routine()

    def _routine(self) -> None:
        """What is due by time alone."""
        now = self._clock.monotonic()
        if self._due is not None and now >= self._due:
            self._due = None
            self._events.put(supervisor.IntervalDue(now))
        if now - self._sampled_at >= SAMPLE_EVERY_S:
            self._sampled_at = now
            self._sample()
        trouble = self._syncer.facts.error or self._heart.error
        if trouble != self._told_error:
            self._told_error = trouble
            if trouble:
                self._say(f"NOT STORED: {trouble}; training goes on, trying again")
            else:
                self._say("storing works again")

    def _sample(self) -> None:
        facts = self._syncer.facts
        best = newest_fact(facts.checkpoints)
        self._telemetry.add(
            Sample(
                wall=self._clock.wall().isoformat(timespec="seconds"),
                at_risk_s=round(self._syncer.at_risk_s(), 1),
                at_risk_bytes=facts.pending_bytes,
                step=best.step if best else None,
                loss=best.loss if best else None,
                read_bytes=facts.read_bytes,
                stored_bytes=facts.stored_bytes,
                error=facts.error,
            )
        )

    def _interval(self) -> float:
        if self._config.interval_s is not None:
            return self._config.interval_s
        return min(AUTO_MOST_S, max(AUTO_LEAST_S, self._took_s / AUTO_SHARE))

    # ---- events ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self, pump: OutputPump) -> Iterator[None]:
        def told(number: int, _: FrameType | None) -> None:
            self._events.put(supervisor.Signalled(number, self._clock.monotonic()))

        def resized(_number: int, _: FrameType | None) -> None:
            pump.resized()

        wanted: dict[int, Any] = {
            signal.SIGINT: told,
            signal.SIGTERM: told,
            signal.SIGHUP: told,
            signal.SIGWINCH: resized,
        }
        before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _await_tree(self) -> None:
        tree = self._tree
        assert tree is not None  # noqa: S101 - started before this thread
        status = tree.wait_leader()
        if status is not None:
            self._events.put(supervisor.ChildExited(status.shell_code, status.describe(), self._clock.monotonic()))
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
                self._thread(lambda: self._end_tree(action.term_grace_s))
            case supervisor.StartSync():
                self._thread(lambda: self._sync(None, final=False))
            case supervisor.CancelSync():
                self._cancel_sync.set()
            case supervisor.FinalSync():
                self._phase = "final sync"
                self._thread(lambda: self._sync(action.deadline, final=True))
            case supervisor.WriteNotice():
                self._write_notice(action)
            case supervisor.Seal():
                self._seal(action)
            case supervisor.Exit():
                self._leave(action)

    def _thread(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="action", daemon=True).start()

    def _end_tree(self, term_grace_s: float) -> None:
        assert self._tree is not None  # noqa: S101 - as above
        ended = self._tree.end(term_grace_s, self._clock)
        if ended.killed:
            self._say(f"{len(ended.killed)} process(es) did not end by themselves and were killed")
        left = tuple(f"{one.pid}" for one in ended.left)
        self._events.put(supervisor.TreeGone(self._clock.monotonic(), left))

    def _write_notice(self, action: supervisor.WriteNotice) -> None:
        self._phase = "saving"
        try:
            self._notice.write(action.seconds_left, action.source)
        except WorkspaceFault as error:
            self._say(error.message)
        deadline = self._state.deadline
        left = max(0.0, deadline - self._clock.monotonic()) if deadline is not None else action.seconds_left
        self._thread(lambda: self._note_phase("notice", seconds=left))

    def _sync(self, deadline: float | None, *, final: bool) -> None:
        """One sync in a thread of its own; a final one is tried again while that can help."""
        if not final:
            self._cancel_sync.clear()
        patience = self._clock.monotonic() + self._config.patience_s
        ok = False
        while True:
            try:
                cancel = threading.Event() if final else self._cancel_sync
                done = self._syncer.sync(final=final, quiet=final, cancel=cancel, progress=self._meter())
                self._synced(done)
                ok = True
            except (Fenced, RunEnded) as error:
                self.fenced(error.message)
            except Interrupted:
                pass
            except SpotWarpError as error:
                self._error = error.message
                if isinstance(error, StoreFull):
                    self._make_room()
                give_up = self._state.deadline or deadline or patience  # a notice may have come meanwhile
                if final and error.retryable and self._clock.monotonic() + RETRY_S < give_up and self._exit is None:
                    self._clock.sleep(RETRY_S)
                    continue
            break
        self._after_sync()
        self._events.put(supervisor.SyncFinished(ok, self._clock.monotonic()))

    def _meter(self) -> Callable[[Progress], None]:
        """Says how far a long sync is, now and then."""
        started = self._clock.monotonic()
        last = [started]

        def tell(now: Progress) -> None:
            moment = self._clock.monotonic()
            if moment - last[0] < PROGRESS_EVERY_S or not now.bytes:
                return
            last[0] = moment
            rate = now.bytes / (moment - started)
            left = human_seconds((now.bytes_total - now.bytes) / rate)
            self._say(f"storing: {human_bytes(now.bytes)} of {human_bytes(now.bytes_total)}, {left} left")

        return tell

    def _make_room(self) -> None:
        """A full bucket takes deletes even when it takes no writes: let go of what is dead, without any grace."""
        with contextlib.suppress(SpotWarpError):
            done = prune(self._repository, self._log, grace_s=0.0)
            if done.bytes:
                self._say(f"the store is full: deleted {human_bytes(done.bytes)} that retention had let go")

    def _synced(self, done: Synced) -> None:
        self._sync_done, self._verified, self._took_s, self._error = done, done.verified, done.duration_s, ""
        new = [one for one in done.skipped if one.path not in self._told_skipped]
        self._told_skipped |= {one.path for one in new}
        if new:
            some = ", ".join(f"{shown(one.path)} ({one.reason})" for one in new[:5])
            more = f" and {len(new) - 5} more" if len(new) > 5 else ""
            self._say(f"not stored: {some}{more}")

    def _after_sync(self) -> None:
        self._due = self._clock.monotonic() + self._interval()
        now = self._clock.monotonic()
        if self._config.prune and self._phase == "training" and now - self._pruned_at >= PRUNE_EVERY_S:
            self._pruned_at = now
            with contextlib.suppress(SpotWarpError):
                prune(self._repository, self._log)

    def _seal(self, action: supervisor.Seal) -> None:
        """The generation's last entry, on the receipt of the final snapshot."""
        verified = self._verified
        try:
            if verified is None:
                raise WorkspaceFault("no final snapshot was read back")
            if action.kind == "complete":
                complete(self._log, verified, exit_code=action.exit_code or 0)
            else:
                seal(self._log, verified, phase=action.kind, exit_code=action.exit_code, reason="")
            self._sealed = action.kind
        except SpotWarpError as error:
            self._error = error.message
            self._exit = supervisor.Exit(125, f"everything is stored, but the run could not be sealed: {error.message}")

    def _leave(self, action: supervisor.Exit) -> None:
        if self._exit is None:
            self._exit = action
        self._phase = "ended"

    def _outcome(self) -> Outcome:
        assert self._exit is not None  # noqa: S101 - the loop ends with it
        last = self._syncer.facts.last
        reason = self._exit.reason
        if self._exit.code == 125 and self._error and self._error not in reason:
            reason = f"{reason}: {self._error}"
        where = f"; last snapshot {last.n}" if last else "; nothing was stored by this attempt"
        self._say(reason + where)
        return Outcome(self._exit.code, reason, last.n if last else None, self._sealed, self._generation, self._error)

    # ---- requests --------------------------------------------------------------------------------------------------

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("verb") == "status":
            phase, facts = self.beat()
            last = self._syncer.facts.last
            return {
                "run": self._log.run,
                "generation": self._generation,
                "phase": phase,
                **facts,
                "last_snapshot": last.n if last else None,
            }
        if request.get("verb") != "sync":
            return {"error": f"unknown request {request.get('verb')!r}"}
        try:
            done = self._syncer.sync(cancel=self._cancel_sync)
        except SpotWarpError as error:
            return {"error": error.message, "hint": error.hint, "code": error.code}
        return snapshot_answer(done.snapshot)


def newest_fact(checkpoints: Any) -> Any:
    """The newest resumable of some checkpoint facts, None when there is none."""
    resumable = [c for c in checkpoints if c.cls == "resumable"]
    return max(resumable, key=lambda c: c.step if c.step is not None else -1, default=None)
