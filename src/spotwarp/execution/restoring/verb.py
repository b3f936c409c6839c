"""`spotwarp restore`: a snapshot, or parts of it, into the workspace or into a new directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spotwarp.clock import Clock, SystemRng
from spotwarp.config import Config
from spotwarp.errors import CorruptObject, SnapshotMissing, UsageError
from spotwarp.execution.occupancy import lock
from spotwarp.execution.occupancy.leftovers import refuse_leftovers
from spotwarp.execution.occupancy.note import occupy
from spotwarp.execution.origin import stem_of
from spotwarp.execution.restoring.pace import progress_said
from spotwarp.execution.restoring.pointers import mend_pointers
from spotwarp.execution.restoring.restorer import Restorer, Say, copies_said
from spotwarp.execution.workspace import VERB_HINT, Choice, Difference
from spotwarp.persistence import staging as stage
from spotwarp.persistence.beneath import ancestors
from spotwarp.persistence.entries import renamed_for_torn
from spotwarp.persistence.envelope import digest
from spotwarp.persistence.install import install
from spotwarp.persistence.manifest import DIRECTORY, FILE, Entry, Manifest, tabled
from spotwarp.persistence.repository import Repository, choose
from spotwarp.persistence.restore import FetchReport, fetch
from spotwarp.persistence.runlog.entry import Snapshot
from spotwarp.persistence.runlog.log import Head, RunLog


def restore_run(
    workspace: Path,
    config: Config,
    repository: Repository,
    log: RunLog,
    *,
    wanted: str,
    to: Path | None,
    paths: tuple[str, ...],
    force: bool,
    clock: Clock,
    say: Say,
) -> dict[str, Any]:
    """`spotwarp restore`: into the workspace, or to a new or empty directory. Returns the facts to print."""
    head = log.existing_head()
    snapshot = choose(log, head.state, wanted)
    restorer = Restorer(workspace, config, repository, log, clock=clock, say=say)
    started = clock.monotonic()
    report: FetchReport | None
    if to is not None:
        report = _restore_to(repository, log, snapshot, to.absolute(), paths, clock=clock, say=say)
        place = to
    else:
        since = clock.wall().isoformat(timespec="seconds")
        with (
            lock.hold(workspace, what="restore", since=since, say=say),
            occupy(workspace, repository, log, lease_s=config.lease_s, clock=clock, rng=SystemRng(), say=say),
        ):
            refuse_leftovers(workspace)
            restorer.recover()
            report = _restore_here(restorer, workspace, repository, log, head, snapshot, paths, force=force)
            if not paths:
                mend_pointers(workspace, snapshot.n, say)
        place = workspace
    return {
        "snapshot": snapshot.n,
        "to": str(place),
        "files": report.files if report else 0,
        "bytes": report.bytes if report else 0,
        "kept_bytes": report.kept_bytes if report else 0,
        "read_bytes": report.read_bytes if report else 0,
        "seconds": round(clock.monotonic() - started, 3),
    }


def _restore_here(
    restorer: Restorer,
    workspace: Path,
    repository: Repository,
    log: RunLog,
    head: Head,
    snapshot: Snapshot,
    paths: tuple[str, ...],
    *,
    force: bool,
) -> FetchReport | None:
    def chosen(difference: Difference) -> Difference:
        if not paths:
            return difference
        fetched = select(difference.fetch, paths, workspace, whole=difference.manifest)
        touched = {e.path for e in fetched}
        own = tuple(p for p in difference.own if p in touched)
        return replace(difference, fetch=fetched, stale=(), own=own)

    stem = stem_of(workspace, repository, log)
    choice = Choice.RESTORE if force else Choice.ASK
    difference, clear = restorer.decide(snapshot, head, choice, stem, hint=VERB_HINT, chosen=chosen)
    position = (stem.snapshot or 0) if paths else head.state.snapshot
    later = None if paths else ()
    return restorer.put_in_place(snapshot, difference, clear or (), position=position, later=later)


def _restore_to(
    repository: Repository,
    log: RunLog,
    snapshot: Snapshot,
    to: Path,
    paths: tuple[str, ...],
    *,
    clock: Clock,
    say: Say,
) -> FetchReport:
    """Fetch beside the target and move it there; what an interrupted call of the same kind left is continued."""
    manifest = renamed_for_torn(repository.manifest(log.run, snapshot), snapshot.n)
    wanted = select(manifest.entries, paths, None, whole=manifest) if paths else manifest.entries
    mark = f".spotwarp-part-{snapshot.n}" + (f"-{digest(*map(os.fsencode, paths)).hex()[:8]}" if paths else "")
    staging = to.with_name(to.name + mark)
    with lock.exclusive(to.with_name(to.name + ".spotwarp-lock"), what="restore --to"):
        begun = stage.ready(staging) is not None  # whole, and perhaps half moved already
        if not begun and to.exists() and (not to.is_dir() or any(to.iterdir())):
            raise UsageError(f"{to} is not empty; nothing was written", hint="Give a new or empty directory.")
        started = clock.monotonic()
        if begun:
            size = sum(e.size for e in wanted)
            files = sum(1 for e in wanted if e.kind == FILE)
            report = FetchReport(len(wanted), files, size, size, 0, 0.0)
        else:
            progress = progress_said(say, clock, sum(e.size for e in wanted))
            try:
                report = fetch(
                    store=repository.store,
                    manifest=manifest,
                    wanted=wanted,
                    staging=staging,
                    clock=clock,
                    progress=progress,
                )
            except CorruptObject:
                stage.discard(staging)  # it will never be whole: no reason to keep the rest
                raise
        if report.copies:
            say(copies_said(report.copies))
        aside = to.with_name(to.name + ".spotwarp-aside")
        install(staging, to, aside=aside)
        shutil.rmtree(aside, ignore_errors=True)
        if not paths:
            mend_pointers(to, snapshot.n, say, entries=((e.path, e.kind == DIRECTORY) for e in wanted))
        return replace(report, duration_s=clock.monotonic() - started)


def select(
    entries: Sequence[Entry], paths: tuple[str, ...], base: Path | None, *, whole: Manifest
) -> tuple[Entry, ...]:
    """The entries at or below `paths`, with the directories above them. Raises `SnapshotMissing` for a path that is
    not there."""
    names = []
    for text in paths:
        path = Path(text)
        if base is not None and path.is_absolute() and path.is_relative_to(base):
            path = path.relative_to(base)
        name = os.fsencode(path).strip(b"/")
        if not name or next(tabled(whole.entries).beneath(name), None) is None:
            raise SnapshotMissing(f"the snapshot has no {text!r}", hint="Paths are relative to the workspace.")
        names.append(name)
    chosen = {e.path for e in entries if any(e.path == n or e.path.startswith(n + b"/") for n in names)}
    above = {directory for path in chosen for directory in ancestors(path)}
    return tuple(e for e in entries if e.path in chosen or (e.path in above and e.kind == DIRECTORY))
