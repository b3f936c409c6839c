"""The facts behind `doctor`, gathered one after the other; what one part cannot find out never hides the others.

Looks, and tries the store; decides nothing. Ends in bounded time whatever the store or a tool does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spotwarp.clock import Clock, Rng
from spotwarp.config import Config
from spotwarp.errors import RepositoryMissing, SpotWarpError
from spotwarp.execution import localstate
from spotwarp.execution.checkpoints import find, judge, newest, walk
from spotwarp.execution.control_socket import glimpse
from spotwarp.execution.doctor import verdict
from spotwarp.execution.doctor.verdict import Line, Load
from spotwarp.execution.news.notifier import targets
from spotwarp.execution.notice.choosing import choose
from spotwarp.execution.notice.platform import detect
from spotwarp.execution.origin import origin_of, stem_of
from spotwarp.execution.parts import glance
from spotwarp.execution.sameness.hardware import gpus
from spotwarp.execution.secrets import absent
from spotwarp.execution.supervisor import Policy
from spotwarp.execution.syncing.storing import newest_fact
from spotwarp.execution.workspace import is_empty
from spotwarp.persistence.encryption.secret import Secret
from spotwarp.persistence.manifest import FILE
from spotwarp.persistence.repository import Known, Repository, open_repository
from spotwarp.persistence.runlog.entry import Snapshot
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.persistence.statcache import StatCache
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.store.keylife import key_life
from spotwarp.persistence.store.probe import probe
from spotwarp.persistence.store.rate import Rates, measure
from spotwarp.persistence.store.retrying import RetryingStore
from spotwarp.persistence.store.url import Location

LOOK_S = 10.0
STORE_S = 20.0
SHM = Path("/dev/shm")  # noqa: S108 - asked for its size


@dataclass(slots=True)
class Asked:
    """What is examined: a workspace (initialised or not) and a place to store it."""

    workspace: Path
    config: Config
    location: Location
    store: Store
    env: Mapping[str, str]
    clock: Clock
    rng: Rng
    secret: Callable[[], Secret | None] = lambda: None
    """The key of the repository, if this process was given one."""
    known: Known | None = None
    """The repository that the workspace belongs to."""
    measured: dict[str, Any] = field(default_factory=dict)
    """The numbers behind the lines, for `--json`."""


def examine(asked: Asked) -> Iterator[Line]:
    """The findings, each as soon as it is known. Raises nothing of SpotWarp's."""
    yield _part("key", lambda: verdict.key(key_life(asked.location, asked.env), asked.clock.wall()))
    rates: Rates | None = None
    try:
        found = probe(asked.store, clock=asked.clock, rng=asked.rng)
        yield verdict.target(found, single_writer=asked.config.single_writer)
        if found.deletable:
            rates = measure(_hasty(asked.store), clock=asked.clock, rng=asked.rng)
            asked.measured["rates"] = asdict(rates)
        yield verdict.rate(rates, "what it would put could not be removed again")
        yield _part("encryption", lambda: _encryption(asked))
        if behind := _behind(asked):
            yield verdict.behind(behind)
    except SpotWarpError as error:
        yield Line("store", "fail", error.message, error.hint or "")
    if rates is not None:
        yield verdict.clock(rates)
        load = _load(asked)
        asked.measured["load"] = asdict(load)
        policy = Policy(sync_share=asked.config.sync_share)
        for seconds in verdict.NOTICES_S:
            share, most_s = policy.sync_share, policy.sync_max_s
            yield verdict.notice(seconds, rates, load, share=share, most_s=most_s)
    yield _part("disk", lambda: _disk(asked))
    yield _part("notices", lambda: _sources(asked))
    yield verdict.secrets(asked.config.secrets, absent(asked.config.secrets, asked.env))
    receivers, wrong = targets(asked.config.notify, asked.env)
    yield verdict.told([one.name for one in receivers], wrong)
    yield verdict.gpus(gpus(asked.env))
    yield verdict.shm(_size(SHM))
    import resource  # late: not on every system

    yield verdict.nofile(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield verdict.python(sys.version.split()[0], sys.executable)


def _part(name: str, find_out: Any) -> Line:
    try:
        line: Line = find_out()
    except SpotWarpError as error:
        return Line(name, "fail", error.message, error.hint or "")
    except OSError as error:
        return Line(name, "warn", f"cannot be told: {error.strerror or error}")
    return line


def _hasty(store: Store) -> Store:
    return store.with_budget(STORE_S) if isinstance(store, RetryingStore) else store


def _load(asked: Asked) -> Load:
    """What is not stored now, and how large the newest checkpoint is."""
    known = glimpse(asked.workspace) if _initialised(asked) else None
    dirty = known.get("at_risk_bytes") if known else None
    if not isinstance(dirty, int):
        dirty = _dirty(asked)
    best = newest(judge(asked.workspace, path) for path in find(walk(asked.workspace)))
    return Load(dirty, best.bytes if best else _stored_checkpoint(asked))


def _stored_checkpoint(asked: Asked) -> int:
    """Bytes of the newest resumable checkpoint of the run, where none is here."""
    try:
        repository, log = _opened(asked)
        number = log.head().state.resumable
        entry = log.read(number) if number else None
        facts = repository.manifest(log.run, entry).checkpoints if isinstance(entry, Snapshot) else ()
    except SpotWarpError:
        return 0
    best = newest_fact(tuple(facts))
    return best.bytes if best else 0


def _opened(asked: Asked) -> tuple[Repository, RunLog]:
    repository = open_repository(_hasty(asked.store), asked.secret(), asked.known)
    return repository, repository.log(asked.config.run, life="doctor", clock=asked.clock, rng=asked.rng)


def _encryption(asked: Asked) -> Line:
    try:
        repository, _ = _opened(asked)
    except RepositoryMissing:
        return verdict.encryption(None, asked.secret() is not None)
    return verdict.encryption(repository.encrypted, asked.secret() is not None)


def _behind(asked: Asked) -> str:
    """How the run's log lacks what this workspace stems from, in words; empty where it does not, or is not known."""
    try:
        return stem_of(asked.workspace, *_opened(asked)).behind
    except SpotWarpError:
        return ""  # the lines about the store say why


def _dirty(asked: Asked) -> int:
    try:
        seen = glance(asked.workspace, asked.config.exclude, asked.clock, budget_s=LOOK_S)
    except SpotWarpError:
        return 0
    if seen is None:
        return 0
    cache = StatCache.load(localstate.runtime(asked.workspace) / localstate.STATCACHE, asked.workspace)
    return sum(e.size for e in seen.entries if e.kind == FILE and cache.lookup(e) is None)


def _disk(asked: Asked) -> Line:
    status = os.statvfs(asked.workspace)
    free, inodes = status.f_bavail * status.f_frsize, status.f_favail if status.f_files else None
    need, files = _to_restore(asked)
    asked.measured["disk"] = {"free": free, "inodes": inodes, "restore_bytes": need, "restore_files": files}
    return verdict.disk(free, inodes, need, files)


def _to_restore(asked: Asked) -> tuple[int, int]:
    """Bytes and files that the run's last snapshot would bring here; none where there is none, or it is here."""
    try:
        repository, log = _opened(asked)
        last = log.head().state.snapshot
        if not last or (origin_of(asked.workspace, repository, log) == last and not is_empty(asked.workspace)):
            return 0, 0
        entry = log.read(last)
    except SpotWarpError:
        return 0, 0  # the line about the store says why
    return (entry.bytes, entry.files) if isinstance(entry, Snapshot) else (0, 0)


def _sources(asked: Asked) -> Line:
    platform = detect(asked.env)
    found = choose(asked.config, platform, asked.workspace, asked.env, asked.clock)
    grace_s = platform.grace_s if asked.config.grace_s is None else asked.config.grace_s
    why = platform.why if asked.config.grace_s is None else "the option grace"
    return verdict.sources(why, grace_s, [source.name for source in found.sources], found.refused)


def _initialised(asked: Asked) -> bool:
    return localstate.runtime(asked.workspace).is_dir()


def _size(path: Path) -> int | None:
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return status.f_blocks * status.f_frsize
