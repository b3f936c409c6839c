"""One workspace stored, again and again: backup, commit, read back. What the job and `spotwarp sync` share.

Owns the facts about work at risk. A failed sync leaves everything as it was and is told, never raised into training
(I10). It decides neither when to sync nor what a failure means for the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from spotwarp.clock import Clock, Rng
from spotwarp.config import Config
from spotwarp.errors import (
    CorruptObject,
    Fenced,
    Interrupted,
    ObjectMissing,
    ReadBackFailed,
    RunEnded,
    StoreUnavailable,
    WorkspaceFault,
)
from spotwarp.execution import localstate
from spotwarp.execution.localstate import Origin, runtime
from spotwarp.execution.syncing.emptied import refuse_emptied
from spotwarp.execution.syncing.judging import file_system_time, judge_all
from spotwarp.execution.syncing.lacking import lacking
from spotwarp.execution.syncing.measuring import Measuring
from spotwarp.execution.syncing.room import shortage
from spotwarp.execution.syncing.unstored import dirty_bytes
from spotwarp.execution.syncing.versions import End, Moment, WholeVersions
from spotwarp.execution.workspace import awaited
from spotwarp.persistence import fork
from spotwarp.persistence.backup import (
    Carry,
    Cutoff,
    Judge,
    Pages,
    Progress,
    Uploaded,
    backup,
    cut_before,
    own_size,
    unchanged,
)
from spotwarp.persistence.excludes import Excludes
from spotwarp.persistence.manifest import (
    CheckpointFact,
    FileFact,
    Manifest,
    Skipped,
    without_packs,
)
from spotwarp.persistence.receipts import Base, BaseForgotten, Committed, Verified, commit, verify
from spotwarp.persistence.repository import Repository
from spotwarp.persistence.retention import Retention
from spotwarp.persistence.runlog.entry import Snapshot, State
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.persistence.scan import Scanned
from spotwarp.persistence.statcache import Record, StatCache
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.table import Table
from spotwarp.values import spell

TRIES = 4
_TAIL_GUESS_S, _TAIL_LEAST_S, _TAIL_TIMES = 1.0, 1.0, 2.0
"""What is kept for committing and proving: so many times what it took last, so many seconds at least."""
_TELLING = 4 << 20
"""So many stored bytes say how fast storing is."""


@dataclass(slots=True)
class Facts:
    """How the backup stands, for heartbeat, status and telemetry. Guarded by the syncer's lock."""

    safe_since: float
    """Monotonic: everything older than this is stored."""
    error: str = ""
    error_since: str = ""
    read_bytes: int = 0
    stored_bytes: int = 0
    last: Snapshot | None = None
    checkpoints: tuple[CheckpointFact, ...] = ()
    versions: tuple[FileFact, ...] = ()
    """The single-file checkpoints of the last snapshot, those included that are older there than on disk."""


@dataclass(frozen=True, slots=True)
class Synced:
    """A sync that ended well: the receipt, or None when nothing had changed since `snapshot`."""

    verified: Verified | None
    snapshot: Snapshot
    duration_s: float
    skipped: tuple[Skipped, ...] = ()
    """What is not in it, and why."""

    @property
    def lacking(self) -> str:
        """What should be in it and is not, in words; empty when nothing is missing."""
        return lacking(self.snapshot, self.skipped)


@dataclass(slots=True)
class _Known:
    """The last snapshot's manifest, so that it is fetched once."""

    number: int = 0
    manifest: Manifest | None = None
    distrusted: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class _How:
    """How one sync shall be done; see `Syncer.sync`."""

    final: bool
    always: bool
    """Commit a snapshot even if nothing has changed."""
    at: Moment
    recheck_s: float
    cancel: threading.Event | None
    progress: Callable[[Progress], None] | None
    cutoff: Cutoff


class Syncer:
    """Stores one workspace for one generation. One sync at a time; callers may come from any thread."""

    def __init__(
        self,
        workspace: Path,
        config: Config,
        repository: Repository,
        log: RunLog,
        generation: int,
        *,
        clock: Clock,
        rng: Rng,
        say: Callable[[str], None],
        excludes: Callable[[], Sequence[str]] | None = None,
        notice_s: float | None = None,
    ) -> None:
        """`notice_s` is what a notice is likely to leave for storing, in seconds."""
        self._root = workspace
        self._config = config
        self._repository = repository
        self._log = log
        self._generation = generation
        self._clock = clock
        self._rng = rng
        self._say = say
        self._excludes = excludes or (lambda: config.exclude)
        self._one = threading.Lock()
        self._guard = threading.Lock()
        self._known = _Known()
        self._cache = StatCache.load(runtime(workspace) / localstate.STATCACHE, workspace)
        self._written: list[Record] = []
        """Files that came here from the store since the last sync."""
        self._pages = Pages(runtime(workspace) / localstate.PAGES, rng)
        self._told_fault = False
        self._carry = Carry()
        self._last = 0
        """The run's last snapshot, as of the last look; what is carried was put on top of it."""
        self._waiting: dict[bytes, int] = {}
        self._tail_s = _TAIL_GUESS_S
        self._rate: float | None = None
        self.measuring = Measuring(workspace, repository, config, clock, notice_s=notice_s)
        self._told_blind = False
        self._parent = 0
        """The parent's snapshot that a run without one of its own began from."""
        self._ended_ns = 0
        status = workspace.stat()
        self._place = (status.st_dev, status.st_ino)
        self.facts = Facts(safe_since=clock.monotonic())

    def sync(
        self,
        *,
        final: bool = False,
        end: End = End.LIVE,
        recheck: bool = False,
        cancel: threading.Event | None = None,
        progress: Callable[[Progress], None] | None = None,
        deadline: Callable[[], float | None] | None = None,
    ) -> Synced:
        """Store the workspace now. `end`: what became of those who write in it. `final`: always commits, and reads all
        back. `recheck`: reads every file that was held for writing when it was last read, and whoever asks says that no
        checkpoint is being written; `final` reads them too.

        Before `deadline` (monotonic seconds, asked for again and again; None: none) it commits what it has by then, the
        newest resumable checkpoint first; what is late is named in `skipped`, and counted in the snapshot's entry.

        Raises store and workspace errors, `Fenced`, `RunEnded`, `Interrupted`; then nothing changed but `facts`.
        """
        with self._one:
            started = self._clock.monotonic()
            try:
                recheck_s = 0.0 if final or recheck else self._config.recheck_s
                at = self._moment(end, asked=recheck)
                how = _How(final, final, at, recheck_s, cancel, progress, self._cutoff(deadline))
                done = self._attempts(started, how)
            except (Fenced, RunEnded, Interrupted):
                raise  # no trouble with storing: the run is another's, or ours to leave
            except OSError as error:
                fault = WorkspaceFault(f"the workspace cannot be read or written: {error.strerror or error}")
                self.failed(fault.message)
                raise fault from error
            except Exception as error:
                self.failed(str(error))
                raise
            self._succeeded(done, started)
            return done

    def standing(self) -> Synced | None:
        """The run's last snapshot, read back, if a look at the directories alone proves that it has all there is.

        Else None, which says nothing. Nothing is written to the store. Raises as `sync`, but not for what is read back.
        """
        with self._one:
            started = self._clock.monotonic()
            base = self._base()
            if base.manifest is None or base.number != self._last:
                return None
            excludes, judge = Excludes(self._excludes()), self._judge(base, self._config.settle_s)
            found = unchanged(
                root=self._root, base=base.manifest, cache=self._cache, excludes=excludes, judge=judge,
                clock=self._clock, recheck_s=0.0, awaited=self._awaited(base),
            )  # fmt: skip
            if found is None:
                return None
            entry = self._log.read(base.number)
            assert isinstance(entry, Snapshot)  # noqa: S101 - it is what `_base` read
            try:
                verified = read_back(self._repository.store, self._log.run, Committed(entry, found), thorough=True)
            except ReadBackFailed:
                return None
            return Synced(verified, entry, self._clock.monotonic() - started, found.skipped)

    def _cutoff(self, deadline: Callable[[], float | None] | None) -> Cutoff:
        """When to stop moving bytes, so that manifest, commit, proof and seal come before `deadline`."""
        began, rate = self._clock.monotonic(), self._rate or self.measuring.known.up_bytes_s

        def until() -> float | None:
            end = deadline() if deadline is not None else None
            if end is None:
                return None
            last = own_size(self._known.manifest) if self._known.manifest is not None else 0
            return cut_before(end, began, max(_TAIL_LEAST_S, _TAIL_TIMES * self._tail_s), last, rate)

        # Under a limit only the link itself tells what a notice, which lifts it, will find.
        return Cutoff(self._clock, until, rate)

    def _attempts(self, started: float, how: _How) -> Synced:
        problem: Exception | None = None
        for _ in range(TRIES):
            base = self._base()
            # What stands last is damaged: that nothing has changed since an older one is no reason to leave it so.
            how = replace(how, always=how.always or base.number != self._last)
            uploaded = self._upload(base, how)
            moved = self._clock.monotonic()
            if uploaded.unchanged:
                return self._nothing_new(base, uploaded, started)
            self._about_to_commit(uploaded)
            try:
                committed = self._commit(uploaded, base, final=how.final)
                self._carry, self._last = Carry(), committed.entry.n  # the log says now whose the packs are
                verified = read_back(self._repository.store, self._log.run, committed, thorough=how.final)
            except BaseForgotten as error:
                self._known = _Known(distrusted=self._known.distrusted)
                problem = error
                continue
            except ReadBackFailed as error:
                self._say(f"{error.message}; sending it again")
                self._known.distrusted |= error.packs
                problem = error
                continue
            self.measuring.took(uploaded, first=base.manifest is None)
            self._known = _Known(committed.entry.n, uploaded.manifest, self._known.distrusted)
            self._tail_s = self._clock.monotonic() - moved
            self._record(committed.entry, uploaded)
            return Synced(verified, committed.entry, self._clock.monotonic() - started, uploaded.skipped)
        raise StoreUnavailable(
            f"the store does not keep what it acknowledges ({TRIES} tries): {problem}",
            hint="Do not trust this store; `spotwarp check` lists what is missing.",
        ) from problem

    def _base(self) -> Base:
        """What to refer to: the run's last snapshot, from the log's head and never from memory alone (P3)."""
        head = self._log.head()
        number = head.state.snapshot
        if number != self._last:
            # A commit stands whose answer was lost: it names what is carried, which may be forgotten with it (P3).
            self._carry, self._last = Carry(), number
        bad = localstate.distrusted(self._root, self._repository.identity.id, self._log.run)
        self._known.distrusted |= frozenset(bad.packs)
        if not number:
            self._know_parent(head.state)
        elif not (number := self._readable(n for n in reversed(head.state.retained) if n not in bad.snapshots)):
            return Base()
        manifest = self._known.manifest
        if manifest is not None and self._known.distrusted & {p.id for p in manifest.packs}:
            manifest = without_packs(manifest, self._known.distrusted)
        return Base(number, manifest)

    def _readable(self, numbers: Iterable[int]) -> int:
        """The first of `numbers` whose manifest can be read, which is known then; 0: none.

        What cannot be read cannot be referred to; it must not keep what is here from being stored.
        """
        for number in numbers:
            if self._known.number == number and self._known.manifest is not None:
                return number
            try:
                entry = self._log.read(number)
                if isinstance(entry, Snapshot):
                    read = self._repository.manifest(self._log.run, entry)
                    self._known = _Known(number, read, self._known.distrusted)
                    self._cache.known_as(read, entry.manifest)
                    return number
            except CorruptObject as damage:
                self._say(f"snapshot {number} is damaged: {damage.message}; what only it has is sent again")
        return 0

    def _know_parent(self, state: State) -> None:
        """A run without a snapshot refers to the one that it was forked from: its pin keeps that alive (P3, P6)."""
        if self._known.manifest is None and state.fork is not None:
            try:
                parent = fork.origin(self._repository, state)
                if parent is not None:
                    self._known.manifest, self._parent = self._repository.manifest(*parent), parent[1].n
            except (CorruptObject, ObjectMissing) as damage:
                self._say(f"the run that this one began from is damaged: {damage.message}; sending everything")

    def _upload(self, base: Base, how: _How) -> Uploaded:
        settle_s = self._config.settle_s if how.at.end is End.LIVE else 0.0
        with self._guard:
            new, self._written = self._written, []
        if new:
            self._cache.add(*new)
        uploaded = backup(
            store=self._repository.store,
            run=self._log.run,
            generation=self._generation,
            root=self._root,
            base=base.manifest,
            cache=self._cache,
            excludes=Excludes(self._excludes()),
            judge=self._judge(base, settle_s),
            clock=self._clock,
            rng=self._rng,
            options=self.measuring.options(hurried=how.cutoff.left() is not None),
            progress=how.progress,
            cancel=how.cancel,
            always=how.always,
            cutoff=how.cutoff,
            carry=self._carry,
            recheck_s=how.recheck_s,
            versions=WholeVersions(base.number or self._parent, how.at, self._waiting),
            pages=self._pages,
            awaited=self._awaited(base),
        )
        limited = self._config.limits.bandwidth
        if not limited and uploaded.stored_bytes >= _TELLING and uploaded.duration_s > 0:
            self._rate = uploaded.stored_bytes / uploaded.duration_s
        if not uploaded.sighted and not self._told_blind:
            self._say(
                "it cannot be seen which files are held open for writing: all are read again every "
                f"{spell(self._config.recheck_s)} and at the end"
            )
            self._told_blind = True
        return uploaded

    def _judge(self, base: Base, settle_s: float) -> Judge:
        def judge(root: Path, entries: Table[Scanned]) -> tuple[CheckpointFact, ...]:
            refuse_emptied(self._root, self._place, entries, base.manifest)
            return judge_all(root, entries, settle_s=settle_s)

        return judge

    def _moment(self, end: End, *, asked: bool) -> Moment:
        """The moment of a sync; tries of the last one all speak of the end that they are about."""
        now_ns = self._ended_ns or file_system_time(self._root)
        if end is not End.LIVE:
            self._ended_ns = now_ns
        return Moment(now_ns, end, 0.0 if asked else self._config.settle_s, asked)

    def _about_to_commit(self, uploaded: Uploaded) -> None:
        """Let whoever starts here after our death know the commit for its own, if it stands (R3 for the next life)."""
        identity, run = self._repository.identity.id, self._log.run
        origin = localstate.committing(self._root, identity, run, uploaded.manifest_id)
        self._note(origin, runtime(self._root) / localstate.STATE)

    def _commit(self, uploaded: Uploaded, base: Base, *, final: bool) -> Committed:
        retention = Retention(self._config.keep_resumable, self._config.keep_hourly)
        return commit(
            self._log,
            uploaded,
            base,
            generation=self._generation,
            retention=retention,
            clock=self._clock,
            final=final,
        )

    def _nothing_new(self, base: Base, uploaded: Uploaded, started: float) -> Synced:
        entry = self._log.read(base.number)
        assert isinstance(entry, Snapshot)  # noqa: S101 - it is what `_base` read
        self._cache.known_as(uploaded.manifest, entry.manifest)
        self._save_cache()
        with self._guard:
            self.facts.checkpoints = uploaded.manifest.checkpoints
            self.facts.versions = uploaded.manifest.versions
        return Synced(None, entry, self._clock.monotonic() - started, uploaded.skipped)

    def _record(self, entry: Snapshot, uploaded: Uploaded) -> None:
        """Remember locally what was committed. All of it may be lost without harm.

        The origin first: what the cache proves to be stored is in its snapshot, or in an earlier one.
        """
        identity, boot = self._repository.identity.id, localstate.boot_id()
        origin = Origin(identity, self._log.run, entry.n, boot=boot, manifest=entry.manifest)
        self._note(origin, runtime(self._root) / localstate.STATE)
        self._cache.known_as(uploaded.manifest, entry.manifest)
        self._save_cache()
        with self._guard:
            self.facts.read_bytes += uploaded.read_bytes
            self.facts.stored_bytes += uploaded.stored_bytes
            self.facts.checkpoints = uploaded.manifest.checkpoints
            self.facts.versions = uploaded.manifest.versions

    def _note(self, origin: Origin, path: Path) -> None:
        """Write down where the content stems from. A full disk must not keep it from being stored elsewhere."""
        try:
            localstate.save(path, origin)
        except WorkspaceFault as fault:
            if localstate.overwrite(path, origin):
                return
            if not self._told_fault:
                self._say(f"{fault.message}; storing goes on")
            self._told_fault = True

    def _save_cache(self) -> None:
        self._cache.save(runtime(self._root) / localstate.STATCACHE, self._root)

    def _succeeded(self, done: Synced, started: float) -> None:
        with self._guard:
            self.facts.safe_since = started
            self.facts.error = self.facts.error_since = ""
            self.facts.last = done.snapshot

    def failed(self, words: str) -> None:
        """Note that a sync failed, or could not even be begun; stands until one succeeds."""
        with self._guard:
            self.facts.error = words
            self.facts.error_since = self.facts.error_since or self._clock.wall().isoformat(timespec="seconds")

    def _awaited(self, base: Base) -> tuple[bytes, ...]:
        return awaited(self._root, self._repository.identity.id, self._log.run, base.manifest)

    def idle(self) -> None:
        """Return once no sync is at work."""
        with self._one:
            return

    def written(self, records: Iterable[Record]) -> None:
        """Files as they were put here from the store: the next sync need not read them."""
        with self._guard:
            self._written += records

    def dirty_bytes(self) -> int:
        """Bytes of files that are not stored as they are now, whatever a sync at work may be waiting for.

        Raises `WorkspaceFault`.
        """
        return dirty_bytes(self._root, Excludes(self._excludes()), self._cache.twin(), self._known.manifest)

    def shortage(self) -> str:
        """Why the next checkpoint may not fit on the disk, in words."""
        return shortage(self._root, self.facts.checkpoints)

    def at_risk_s(self) -> float:
        """Seconds of work that are stored nowhere, at most."""
        with self._guard:
            return max(0.0, self._clock.monotonic() - self.facts.safe_since)


def read_back(store: Store, run: str, committed: Committed, *, thorough: bool) -> Verified:
    """`receipts.verify`, under the name by which this plane speaks of it."""
    return verify(store, run, committed, thorough=thorough)
