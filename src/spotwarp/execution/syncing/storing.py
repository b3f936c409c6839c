"""The syncs of one attempt, beside the command: in threads, when they are due, told when they fail, tried again at
the end.

Carries out what the supervisor orders and posts how it ended; never decides whether to sync. Nothing in here may raise
into the job's loop or wait in it (I10).
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable

from msgspec.structs import replace

from spotwarp.clock import Clock
from spotwarp.config import Config
from spotwarp.errors import (
    CredentialsExpired,
    ExecutionError,
    Fenced,
    Interrupted,
    RunEnded,
    SpotWarpError,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnsupported,
)
from spotwarp.execution import supervisor
from spotwarp.execution.news import alarm
from spotwarp.execution.news.notifier import Notifier
from spotwarp.execution.syncing.syncer import Synced, Syncer
from spotwarp.execution.syncing.versions import End
from spotwarp.model import human_bytes, human_seconds, legible
from spotwarp.persistence.backup import Progress
from spotwarp.persistence.entries import older_versions, shown
from spotwarp.persistence.manifest import CheckpointFact
from spotwarp.persistence.prune import GRACE_S, prune
from spotwarp.persistence.receipts import Verified
from spotwarp.persistence.repository import Repository
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.persistence.store.metered import CHARGED, charged
from spotwarp.persistence.store.retrying import Patient
from spotwarp.persistence.telemetry import Sample, TelemetryWriter

AUTO_LEAST_S, AUTO_MOST_S, AUTO_SHARE = 15.0, 300.0, 0.1
PRUNE_EVERY_S = 600.0
SAMPLE_EVERY_S = 10.0
RETRY_S = 5.0
DENIED_S = 60.0
LOOK_SHARE = 0.02
LOOK_QUICK_S = 1.0
"""A look at the workspace that took longer is not taken again only because somebody asks."""
LAST_SHARE = 0.15
"""Of the time that a notice leaves, what a sync before the final one leaves to that."""
PROGRESS_EVERY_S = 20.0
_NAMED = 5

Facts = dict[str, str | int | float | bool | None]


class Storing:
    """One attempt's syncs. Every method returns at once."""

    def __init__(
        self,
        syncer: Syncer,
        repository: Repository,
        log: RunLog,
        config: Config,
        *,
        generation: int,
        clock: Clock,
        say: Callable[[str], None],
        post: Callable[[supervisor.Event], None],
        notifier: Notifier,
        output: Callable[[], tuple[int, bytes] | None] = lambda: None,
    ) -> None:
        self._syncer, self._repository, self._log, self._config = syncer, repository, log, config
        self._clock, self._say, self._post, self._notifier = clock, say, post, notifier
        self._telemetry = TelemetryWriter(repository.store, log.run, generation, clock, output)
        self._cancel = threading.Event()
        self._ended = threading.Event()
        self._due: float | None = None
        self._took_s = 0.0
        self._pruned_at = clock.monotonic()
        self._pruned_after: int | None = None
        self._prune_again = math.inf
        """Monotonic: when what the last prune spared for its grace may go."""
        self._alarm = alarm.Alarm()
        self._moved_at: float | None = None
        """When the sync at work last got on, in monotonic seconds; None while none is at work."""
        self._told_skipped: set[bytes] = set()
        self._told_kept: set[bytes] = set()
        self._closing = False
        self._look_due = self._look_took_s = 0.0
        self._dirty: int | None = None
        """Bytes of files that are not stored as they are, at the last look."""
        self._told_prune = ""
        self._patience = 0.0
        self.verified: Verified | None = None
        """The receipt of the last snapshot that was read back."""
        self._disk = ""
        """Why the next checkpoint may not fit on the disk."""
        self.lacking = ""
        """What the last snapshot lacks, in words: what could not be read, or came too late. Empty: nothing."""
        self.error = ""
        """Why the last sync failed; empty when it did not."""

    # ---- the life --------------------------------------------------------------------------------------------------

    def start(self, *, at_once: bool) -> None:
        """The command runs: the first interval begins, or ends `at_once` where nothing is stored yet."""
        self._due = self._clock.monotonic() + (0.0 if at_once else self._interval())
        threading.Thread(target=self._sample_on, name="telemetry", daemon=True).start()

    def end(self) -> None:
        """The attempt is over: give up what still runs."""
        self._cancel.set()
        self._ended.set()
        if isinstance(self._repository.store, Patient):
            self._repository.store.cancel.set()

    def look(self, heart_error: str) -> None:
        """What is due by time alone: the interval's sync, and a word when storing begins to fail or works again."""
        now = self._clock.monotonic()
        if self._due is not None and now >= self._due:
            self._due = None
            self._post(supervisor.IntervalDue(now))
        self._hear(self._trouble(now) or heart_error, now)

    def _hear(self, trouble: str, now: float) -> None:
        """Say and tell what is to be said and told of a failing backup."""
        going_on = "still trying" if self._closing else "training goes on, trying again"
        self._alarm, heard = alarm.step(self._alarm, trouble, now, stall_s=self._stall_s(), going_on=going_on)
        if heard.line:
            self._say(heard.line)
        if heard.news:
            facts = self.facts()
            self._notifier.send(
                heard.news,
                heard.line,
                error=trouble,
                at_risk_s=facts["at_risk_s"],
                at_risk_bytes=facts["at_risk_bytes"],
                step=facts["step"],
                snapshot=self.last_snapshot,
            )

    def _trouble(self, now: float) -> str:
        """Why nothing is stored at the moment: the last sync failed, or the one at work does not get on."""
        moved = self._moved_at
        stuck = moved is not None and now - moved >= self._config.stall_after_s
        return self._syncer.facts.error or ("the sync at work does not get on: nothing moves" if stuck else "")

    def _stall_s(self) -> float:
        return alarm.stall_after(self._interval(), self._config.stall_intervals, self._config.stall_after_s)

    def _interval(self) -> float:
        if self._config.interval_s is not None:
            return self._config.interval_s
        return min(AUTO_MOST_S, max(AUTO_LEAST_S, self._took_s / AUTO_SHARE))

    # ---- syncs -----------------------------------------------------------------------------------------------------

    def routine(self, deadline: Callable[[], float | None] = lambda: None) -> None:
        """A sync beside the running command; posts `SyncFinished`.

        One that is begun with a `deadline` before it commits what it has in time for a final sync after it.
        """
        self._cancel.clear()
        end = deadline()
        if end is not None:
            self.press_on()
        last_s = 0.0 if end is None else LAST_SHARE * max(0.0, end - self._clock.monotonic())

        def until() -> float | None:
            now = deadline()
            return None if end is None or now is None else now - last_s

        self._begin(lambda: self._routine(until), "sync")

    def press_on(self) -> None:
        """The machine ends soon: keep no limit, and no pause that the store asks for; it may be longer than what is
        left. Also for what is under way."""
        if isinstance(self._repository.store, Patient):
            self._repository.store.press_on()

    def cancel(self) -> None:
        """Let the routine sync at work end at once."""
        self._cancel.set()

    def final(self, deadline: Callable[[], float | None], before: Callable[[], object], end: End = End.CLEAN) -> None:
        """The last sync, after `before`; tried again while that can help, until `deadline` (asked each time) or
        patience ends. `end`: how the command ended. Posts `SyncFinished`.
        """
        self._closing = True
        self._begin(lambda: self._final(deadline, before, end), "final-sync")

    def _begin(self, work: Callable[[], None], name: str) -> None:
        try:
            threading.Thread(target=work, name=name, daemon=True).start()
        except RuntimeError as error:  # no thread to be had: the pids limit
            self.error = f"no thread for a sync: {error}"
            self._syncer.failed(self.error)
            self._finished(ok=False)

    def now(self) -> Synced:
        """A sync for whoever asks through the socket. Blocks, and raises what `Syncer.sync` raises."""
        if self._closing:
            raise ExecutionError("the command has ended and the last snapshot is being taken: it will hold this too")
        # Its progress counts for a sync that waits behind it: that one is not stuck.
        return self._syncer.sync(recheck=True, cancel=self._cancel, progress=self._meter())

    def _routine(self, deadline: Callable[[], float | None]) -> None:
        try:
            ok, _ = self._try(final=False, cancel=self._cancel, deadline=deadline)
        except BaseException:
            self._finished(ok=False)  # a bug must not leave the supervisor waiting; it is raised all the same
            raise
        self._finished(ok=ok)
        self._prune_now_and_then()

    def _final(self, deadline: Callable[[], float | None], before: Callable[[], object], end: End) -> None:
        ok, again = False, True
        self._patience = self._clock.monotonic() + self._config.patience_s
        try:
            if deadline() is not None:
                self._cancel.set()  # a sync that somebody asked for makes way
            with contextlib.suppress(OSError):
                before()
            while again and not ok:
                if deadline() is not None:
                    self.press_on()
                ok, again = self._try(final=True, end=end, cancel=self._ended, deadline=deadline)
                again = again and self._clock.monotonic() + RETRY_S < (deadline() or self._patience)
                if again and not ok:
                    again = not self._clock.wait(self._ended, RETRY_S)
        finally:
            self._finished(ok=ok)

    def _finished(self, *, ok: bool) -> None:
        self._due = self._clock.monotonic() + self._interval()
        self._post(supervisor.SyncFinished(ok, self._clock.monotonic()))

    def _try(
        self,
        *,
        final: bool,
        cancel: threading.Event,
        end: End = End.LIVE,
        deadline: Callable[[], float | None] | None = None,
    ) -> tuple[bool, bool]:
        """One sync: whether it ended well, and whether another try could."""
        self._moved_at = self._clock.monotonic()
        try:
            done = self._syncer.sync(final=final, end=end, cancel=cancel, progress=self._meter(), deadline=deadline)
            self._took(done)
        except (Fenced, RunEnded) as error:
            self._post(supervisor.FencedOff(error.message, self._clock.monotonic()))
        except Interrupted:
            pass
        except SpotWarpError as error:
            self.error = error.message
            if isinstance(error, StoreFull) and self._config.prune:
                self._make_room()
            # Even a denial can pass (renewed keys, a disk mounted again); what a store cannot do it will never do.
            if isinstance(error, StoreDenied) and not isinstance(error, CredentialsExpired):
                self._patience = min(self._patience, self._clock.monotonic() + DENIED_S)
            return False, isinstance(error, StoreError) and not isinstance(error, StoreUnsupported)
        else:
            return True, False
        finally:
            self._moved_at = None
        return False, False

    def _took(self, done: Synced) -> None:
        self.verified, self._took_s, self.error = done.verified, done.duration_s, ""
        self._dirty = 0
        self.lacking = done.lacking
        self._look_at_disk()
        new = [one for one in done.skipped if one.path not in self._told_skipped]
        self._told_skipped |= {one.path for one in new}
        if new:
            some = ", ".join(f"{shown(one.path)} ({one.reason})" for one in new[:_NAMED])
            self._say(f"not stored: {some}" + (f" and {len(new) - _NAMED} more" if len(new) > _NAMED else ""))
        self._tell_kept()

    def _look_at_disk(self) -> None:
        """A word when the next checkpoint may not fit, once for as long as that is so."""
        words, before = self._syncer.shortage(), self._disk
        self._disk = words
        if words and not before:
            self._say(words)

    def _tell_kept(self) -> None:
        """Name the files that are older in the snapshot than on disk, each once for as long as it is."""
        kept = [fact for fact in self._syncer.facts.versions if fact.kept]
        for words in older_versions(fact for fact in kept if fact.path not in self._told_kept):
            self._say(words)
        self._told_kept = {fact.path for fact in kept}

    def _meter(self) -> Callable[[Progress], None]:
        """Says how far a long sync is, now and then."""
        started = self._clock.monotonic()
        last = [started]

        def tell(now: Progress) -> None:
            moment = self._clock.monotonic()
            self._moved_at = moment if self._moved_at is not None else None
            if moment - last[0] < PROGRESS_EVERY_S or not (now.bytes or now.seen):
                return
            last[0] = moment
            if now.seen:
                self._say(f"looking at the workspace: {now.seen} entries so far")
                return
            left = human_seconds((now.bytes_total - now.bytes) * (moment - started) / now.bytes)
            self._say(f"storing: {human_bytes(now.bytes)} of {human_bytes(now.bytes_total)}, {left} left")

        return tell

    # ---- room ------------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """A full store takes deletes even when it takes no writes: let go of what is dead, without any grace."""
        with contextlib.suppress(SpotWarpError):
            freed = prune(self._repository, self._log, grace_s=0.0).bytes
            if freed:
                self._say(f"the store is full: deleted {human_bytes(freed)} that retention had let go")

    def _prune_now_and_then(self) -> None:
        """Only where something can have died since: a prune lists, and an idle run must cost next to nothing."""
        now, last = self._clock.monotonic(), self.last_snapshot
        if not self._config.prune or now - self._pruned_at < PRUNE_EVERY_S:
            return
        if last == self._pruned_after and now < self._prune_again:
            return
        self._pruned_at, self._pruned_after = now, last
        with contextlib.suppress(SpotWarpError):
            done = prune(self._repository, self._log)
            self._prune_again = now + GRACE_S if done.kept_for_grace else math.inf
            if done.skipped and done.skipped != self._told_prune:
                self._say(f"old data is kept: {done.skipped}")
            self._told_prune = done.skipped

    # ---- facts -----------------------------------------------------------------------------------------------------

    def facts(self) -> Facts:
        """Work at risk and trouble, for the heartbeat."""
        facts = self._syncer.facts
        best = newest_fact(facts.checkpoints)
        return {
            "at_risk_s": round(self._syncer.at_risk_s(), 1),
            "at_risk_bytes": self._dirty,
            "error": legible(facts.error or self._trouble(self._clock.monotonic())),
            "error_since": facts.error_since,
            "stalled": self._alarm.stalled,
            "lacking": legible(self.lacking),
            "notify_error": self._notifier.error,
            "disk": self._disk,
            "step": best.step if best else None,
            "loss": best.loss if best else None,
            **self._syncer.measuring.facts(),
        }

    def look_at_risk(self) -> None:
        """Look at the workspace for what is not stored; unknown when that cannot be told just now."""
        started = self._clock.monotonic()
        with contextlib.suppress(SpotWarpError, OSError):
            self._dirty = self._syncer.dirty_bytes()
        # A large workspace is looked at more seldom: looking must not cost what storing would.
        self._look_took_s = self._clock.monotonic() - started
        self._look_due = started + self._look_took_s / LOOK_SHARE

    def look_anew(self) -> None:
        """As `look_at_risk`, for somebody who waits: not where it takes long."""
        if self._look_took_s <= LOOK_QUICK_S:
            self.look_at_risk()

    @property
    def last_snapshot(self) -> int | None:
        """The last snapshot that this attempt stored or found unchanged."""
        last = self._syncer.facts.last
        return last.n if last else None

    def _sample_on(self) -> None:
        last = None
        while not self._clock.wait(self._ended, SAMPLE_EVERY_S):
            if self._clock.monotonic() >= self._look_due:
                self.look_at_risk()
            self._look_at_disk()
            sample = self._sample()
            told, last = last, replace(sample, wall="", at_risk_s=0.0, up_bytes_s=None, **dict.fromkeys(CHARGED, 0))
            if last != told:  # an idle run writes no telemetry
                self._telemetry.add(sample)
            self._telemetry.flush_due()
        self._telemetry.flush()

    def _sample(self) -> Sample:
        facts = self._syncer.facts
        best = newest_fact(facts.checkpoints)
        return Sample(
            wall=self._clock.wall().isoformat(timespec="seconds"),
            at_risk_s=round(self._syncer.at_risk_s(), 1),
            at_risk_bytes=self._dirty or 0,
            step=best.step if best else None,
            loss=best.loss if best else None,
            read_bytes=facts.read_bytes,
            stored_bytes=facts.stored_bytes,
            error=legible(facts.error),
            up_bytes_s=self._syncer.measuring.known.up_bytes_s,
            **charged(self._repository.store),
        )


def newest_fact(checkpoints: tuple[CheckpointFact, ...]) -> CheckpointFact | None:
    """The newest resumable of some checkpoint facts, None when there is none."""
    resumable = [c for c in checkpoints if c.cls == "resumable"]
    return max(resumable, key=lambda c: c.step if c.step is not None else -1, default=None)
