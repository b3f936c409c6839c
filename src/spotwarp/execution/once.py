"""`spotwarp sync` where no run is at work: one sync, and the run is left as it was found, stopped and resumable.

lock → recover → is there anything to store? → beat → wait for the turn → claim → store, read back → seal. Imports
little: the answer is nearly always that nothing is new.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from spotwarp.clock import Clock, Rng
from spotwarp.config import Config
from spotwarp.errors import ExecutionError, LocalWork, SnapshotMissing
from spotwarp.execution import localstate
from spotwarp.execution.claiming import Claimant, claim, last_claim, refuse_ended
from spotwarp.execution.command import Command
from spotwarp.execution.localstate import runtime
from spotwarp.execution.occupancy import lock
from spotwarp.execution.occupancy.leftovers import refuse_leftovers
from spotwarp.execution.occupancy.note import occupy
from spotwarp.execution.origin import BEHIND_HINT, stem_of
from spotwarp.execution.syncing.syncer import Synced, Syncer
from spotwarp.persistence.entries import shown
from spotwarp.persistence.receipts import Base, commit, seal, verify
from spotwarp.persistence.repository import Repository
from spotwarp.persistence.retention import Retention
from spotwarp.persistence.runlog.entry import Snapshot
from spotwarp.persistence.runlog.lease import Heart, Holding
from spotwarp.persistence.runlog.log import Head, RunLog
from spotwarp.persistence.view import snapshot_facts

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Place:
    """The workspace, its run, and what this process has of its own."""

    workspace: Path
    config: Config
    repository: Repository
    log: RunLog
    clock: Clock
    rng: Rng
    say: Callable[[str], None]


def sync_once(at: Place, *, takeover: bool) -> dict[str, Any]:
    """Store the workspace unless the last snapshot has all there is; returns the snapshot's facts.

    A workspace that is behind the run is not stored over it: `LocalWork`. A run that has ended is not touched:
    `RunEnded`.
    """
    lease_s = at.config.lease_s
    with contextlib.ExitStack() as held:
        since = at.clock.wall().isoformat(timespec="seconds")
        held.enter_context(lock.hold(at.workspace, what="sync", since=since, say=at.say))
        head = at.log.head()
        refuse_ended(head, at.log.run)
        held.enter_context(
            occupy(at.workspace, at.repository, at.log, lease_s=lease_s, clock=at.clock, rng=at.rng, say=at.say)
        )
        refuse_leftovers(at.workspace)
        _recover(at)
        head = _refuse_behind(at)
        sealed = bool(head.state.seal and head.state.snapshot) and not takeover
        done = _syncer(at, head.state.generation).standing() if sealed else None
        new = done is None
        if done is None:
            done = _stored(at, head, takeover=takeover)
    return {**snapshot_facts(done.snapshot), "lacking": done.lacking, "unchanged": not new}


def repair_once(at: Place) -> dict[str, Any]:
    """Put a snapshot in the place of the run's last one if that is damaged; returns its facts, and what is lost.

    What is here is sent again if it is from the last snapshot. Then what other packs have is put again, and what is
    nowhere whole is left out. An ended run is not touched: `RunEnded`.
    """
    with contextlib.suppress(LocalWork):
        sync_once(at, takeover=False)
    with contextlib.ExitStack() as held:
        since = at.clock.wall().isoformat(timespec="seconds")
        held.enter_context(lock.hold(at.workspace, what="check --repair", since=since, say=at.say))
        refuse_ended(head := at.log.head(), at.log.run)
        if not _last_and_its_damage(at, head)[1]:
            return {"repaired": False, "found": 0, "lost": []}
        return _in_a_generation(at, head, lambda generation: _repaired(at, generation), takeover=False)


def _repaired(at: Place, generation: int) -> dict[str, Any]:
    from spotwarp.persistence.repair import repair  # noqa: PLC0415 - seldom

    store, log = at.repository.store, at.log
    base, bad = _last_and_its_damage(at, log.head())  # of the last one below our claim (R10)
    if base.manifest is None:
        raise SnapshotMissing("there is no snapshot to repair")
    done = repair(store, log.run, generation, base.manifest, bad, at.rng)
    retention = Retention(at.config.keep_resumable, at.config.keep_hourly)
    committed = commit(log, done, base, generation=generation, retention=retention, clock=at.clock, final=True)
    verified = verify(store, log.run, committed, thorough=True)
    seal(log, verified, phase="stopped", exit_code=None, reason="repair")
    return {
        **snapshot_facts(verified.entry),
        "repaired": True,
        "found": done.found,
        "lost": [shown(path) for path in done.lost],
    }


def _last_and_its_damage(at: Place, head: Head) -> tuple[Base, frozenset[int]]:
    """The run's last snapshot, and the numbers of its blobs that cannot be read."""
    from spotwarp.persistence.repair import damaged  # noqa: PLC0415

    entry = at.log.read(head.state.snapshot) if head.state.snapshot else None
    if not isinstance(entry, Snapshot):
        return Base(), frozenset()
    manifest = at.repository.manifest(at.log.run, entry)
    return Base(entry.n, manifest), damaged(at.repository.store, manifest)


def _stored(at: Place, head: Head, *, takeover: bool) -> Synced:
    """A snapshot of a generation of its own, read back and sealed."""

    def work(generation: int) -> Synced:
        _refuse_behind(at)  # again: the one we waited for may have stored more (R10)
        at.repository.enlist(at.log.run)
        done = _syncer(at, generation).sync(final=True, recheck=True)
        if done.verified is None:
            raise ExecutionError("the snapshot was not committed")
        seal(at.log, done.verified, phase="stopped", exit_code=None, reason=done.lacking or "sync")
        return done

    return _in_a_generation(at, head, work, takeover=takeover)


def _in_a_generation(at: Place, head: Head, work: Callable[[int], Result], *, takeover: bool) -> Result:
    """Claim the run, do `work` in the new generation, beating."""
    recorded = last_claim(at.log, head)
    command = None
    if recorded and recorded.command:
        command = Command(recorded.command, recorded.shell, recorded.cwd, recorded.resume_args or None)
    runtime(at.workspace).mkdir(exist_ok=True)
    store, lease_s = at.repository.store, at.config.lease_s
    heart = Heart(at.log, store, lease_s=lease_s, clock=at.clock, facts=lambda: ("syncing", {}), on_lost=lambda _: None)
    heart.start()
    try:
        who = Claimant(command, at.workspace, lease_s, recorded.shape if recorded else None)
        claimed = claim(
            at.log, store, lambda: who, lease_s=lease_s, takeover=takeover, clock=at.clock, say=at.say
        )  # fmt: skip
        heart.holding = Holding(claimed.generation, at.log.life)
        return work(claimed.generation)
    finally:
        heart.stop()


def _syncer(at: Place, generation: int) -> Syncer:
    return Syncer(at.workspace, at.config, at.repository, at.log, generation, clock=at.clock, rng=at.rng, say=at.say)


def _recover(at: Place) -> None:
    """Finish the restore that an earlier life left half done, if there is one."""
    if (runtime(at.workspace) / localstate.RESTORING).exists():
        from spotwarp.execution.restoring.restorer import Restorer  # noqa: PLC0415 - seldom, and much

        Restorer(at.workspace, at.config, at.repository, at.log, clock=at.clock, say=at.say).recover()


def _refuse_behind(at: Place) -> Head:
    stem = stem_of(at.workspace, at.repository, at.log)
    if stem.behind:
        raise LocalWork(stem.behind, hint=BEHIND_HINT)
    head = at.log.head()
    if head.state.snapshot and stem.snapshot != head.state.snapshot:
        raise LocalWork(
            f"this workspace is not from the run's last snapshot ({head.state.snapshot}); storing it would bury that",
            hint="`spotwarp restore` brings it up; `spotwarp run --keep-local` goes on from what is here.",
        )
    return head
