"""Deleting what is dead. Whether an object is dead is a function of the run's log alone and never turns back (P5).

So a prune needs no lock, no entry and no clock, may come arbitrarily late or twice, and several may run at once. The
grace is courtesy to running restores and is measured in the store's own time. Nothing under `log/` is ever deleted,
and a root whose manifest cannot be read stops everything (I3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spotwarp.errors import CorruptObject, ObjectMissing, StoreDenied, StoreUnsupported
from spotwarp.persistence import layout
from spotwarp.persistence.envelope import Kind, seal
from spotwarp.persistence.repository import BALLAST_BYTES, Repository
from spotwarp.persistence.runlog.entry import Forget, Snapshot, State
from spotwarp.persistence.runlog.log import Head, RunLog
from spotwarp.persistence.store.api import ObjectMeta

GRACE_S = 6 * 3600.0
SAME_TIME_S = 5.0


@dataclass(slots=True)
class Pruned:
    """What a prune did."""

    packs: int = 0
    manifests: int = 0
    bytes: int = 0
    kept_for_grace: int = 0
    skipped: str = ""
    """Why nothing (more) was deleted: no right to delete, or damage."""
    deleted: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a decision on deadness needs besides the fold."""

    named_by_roots: frozenset[str]
    """Pack ids."""
    root_manifests: frozenset[str]
    forgotten: Mapping[str, frozenset[str]]
    """Forgotten snapshots of the current generation that still have a manifest: its id → the pack ids it names."""


def dead(
    state: State, evidence: Evidence, packs: Iterable[str], manifests: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Which of the listed pack and manifest ids no legal continuation of the log can ever name. Pure (P5)."""
    current = state.generation + (1 if state.terminal else 0)
    lapsed = frozenset().union(*evidence.forgotten.values()) if evidence.forgotten else frozenset()

    def old(object_id: str) -> bool:
        generation = layout.generation_of(object_id)
        return generation is not None and generation < current

    dead_packs = [p for p in packs if p not in evidence.named_by_roots and (old(p) or p in lapsed)]
    dead_manifests = [m for m in manifests if m not in evidence.root_manifests and (old(m) or m in evidence.forgotten)]
    return dead_packs, dead_manifests


def prune(repository: Repository, log: RunLog, *, grace_s: float = GRACE_S) -> Pruned:
    """Delete what is dead in one run, unless it died less than `grace_s` (store time) ago.

    Without the right to delete, with a damaged root, or in a log that this SpotWarp does not fully understand, nothing
    is deleted and the result says why.
    """
    head = log.head()
    while True:
        try:
            if head.readonly:
                return Pruned(skipped=f"nothing is deleted: {head.readonly}")
            return _prune_at(repository, log, head, grace_s)
        except CorruptObject as error:
            newer = log.head()
            if newer.n == head.n:
                return Pruned(skipped=f"a retained snapshot is damaged, so nothing is deleted: {error}")
            head = newer  # forgotten meanwhile, and another prune was faster: start over


def make_room(repository: Repository, log: RunLog) -> Pruned:
    """For a full store: delete what is dead without grace, then let go of every snapshot but the last and the last
    resumable one, and delete what that frees. The ballast gives way for the entry that this needs, and is put back.

    Raises `StoreFull` when even that entry finds no room.
    """
    store, done = repository.store, prune(repository, log, grace_s=0.0)
    state = log.head().state
    spare = tuple(n for n in state.retained if n not in (state.snapshot, state.resumable))
    if done.skipped or not spare:
        return done
    store.delete(layout.BALLAST)
    log.append(lambda head: Forget(snapshots=tuple(n for n in spare if n in head.state.retained)))
    more = prune(repository, log, grace_s=0.0)
    done.packs += more.packs
    done.manifests += more.manifests
    done.bytes += more.bytes
    done.deleted += more.deleted
    done.skipped = more.skipped
    store.put(layout.BALLAST, seal(Kind.BALLAST, bytes(BALLAST_BYTES)))
    return done


def _prune_at(repository: Repository, log: RunLog, head: Head, grace_s: float) -> Pruned:
    """Prune by the prefix that ends at `head`. Raises `CorruptObject` on a damaged root, before it deletes."""
    store, run, done = repository.store, log.run, Pruned()
    roots = _root_packs(repository, log, head.state)
    listed_packs = {m.key.rpartition("/")[2]: m for m in store.list(layout.packs_prefix(run))}
    listed_manifests = {m.key.rpartition("/")[2]: m for m in store.list(layout.manifests_prefix(run))}
    evidence = Evidence(
        named_by_roots=frozenset().union(*roots.values()),
        root_manifests=frozenset(roots),
        forgotten=_forgotten(repository, log, head, set(listed_manifests) - set(roots)),
    )
    packs, manifests = dead(head.state, evidence, listed_packs, listed_manifests)
    if grace_s > 0:
        done.skipped = _contradiction(repository, [*listed_packs.values(), *listed_manifests.values()])
        if done.skipped:
            return done
    spared_packs, spared_manifests = _in_grace(
        repository, log, head, grace_s, [m.modified for m in listed_packs.values()]
    )
    done.kept_for_grace = len(spared_packs & set(packs)) + len(spared_manifests & set(manifests))
    try:
        for pack in packs:
            if pack not in spared_packs:
                store.delete(layout.pack_key(run, pack))
                done.packs += 1
                done.bytes += listed_packs[pack].size
                done.deleted.append(layout.pack_key(run, pack))
        for manifest in manifests:  # the evidence goes last
            if manifest not in spared_manifests:
                store.delete(layout.manifest_key(run, manifest))
                done.manifests += 1
                done.bytes += listed_manifests[manifest].size
                done.deleted.append(layout.manifest_key(run, manifest))
    except (StoreDenied, StoreUnsupported) as error:
        done.skipped = f"this credential may not delete: {error}"
    return done


def _contradiction(repository: Repository, listed: list[ObjectMeta]) -> str:
    """Why the store's times tell no age: it says one thing in a listing and another of the object itself."""
    newest = max(listed, key=lambda meta: meta.modified, default=None)
    if newest is None:
        return ""
    try:
        said = repository.store.head(newest.key).modified
    except ObjectMissing:  # another prune was here
        return ""
    if abs((said - newest.modified).total_seconds()) <= SAME_TIME_S:
        return ""
    return (
        f"the store's times contradict each other ({newest.modified:%Y-%m-%d %H:%M} and {said:%Y-%m-%d %H:%M} for one "
        "object), so nothing is deleted by age; `--grace 0s` deletes by the log alone"
    )


def _root_packs(repository: Repository, log: RunLog, state: State) -> dict[str, frozenset[str]]:
    """The manifests of all roots (ids), with the packs of the run that they name."""
    found = {}
    for n in sorted(state.roots):
        entry = log.read(n)
        if not isinstance(entry, Snapshot):
            raise CorruptObject(f"entry {n} is retained but no snapshot")
        found[entry.manifest] = _own(repository, log, entry)
    return found


def _own(repository: Repository, log: RunLog, entry: Snapshot) -> frozenset[str]:
    return frozenset(pack.id for pack in repository.packs(log.run, entry) if pack.run == log.run)


def _forgotten(repository: Repository, log: RunLog, head: Head, candidates: set[str]) -> dict[str, frozenset[str]]:
    """Of `candidates` (manifest ids), those of forgotten snapshots of the current generation, with the packs they name.

    Walks the chain of snapshots down until every candidate is found or the generation ends.
    """
    found: dict[str, frozenset[str]] = {}
    missing = {c for c in candidates if layout.generation_of(c) == head.state.generation}
    n = head.state.snapshot
    while n and missing:
        try:
            entry = log.read(n)
        except CorruptObject:
            break  # less evidence only means that less is deleted
        if not isinstance(entry, Snapshot) or entry.generation != head.state.generation:
            break
        if entry.manifest in missing and n not in head.state.roots:
            missing.discard(entry.manifest)
            try:
                found[entry.manifest] = _own(repository, log, entry)
            except CorruptObject:
                found[entry.manifest] = frozenset()  # names nothing provable: its packs wait for the next claim
        n = entry.base
    return found


def _in_grace(
    repository: Repository, log: RunLog, head: Head, grace_s: float, seen: list[datetime]
) -> tuple[set[str], set[str]]:
    """Packs and manifests of what was still a root `grace_s` ago, in store time: a restore may be reading it."""
    if grace_s <= 0 or not head.n:
        return set(), set()
    store, run = repository.store, log.run
    newest = max([*seen, store.head(layout.log_key(run, head.n)).modified, *_beat_times(repository, run)])
    before = newest - timedelta(seconds=grace_s)
    low, high = 0, head.n + 1  # entries are written in order, so their store times ascend
    while high - low > 1:
        middle = (low + high) // 2
        if store.head(layout.log_key(run, middle)).modified <= before:
            low = middle
        else:
            high = middle
    then = _state_after(log, low)
    packs: set[str] = set()
    manifests: set[str] = set()
    recent = set(then.roots) | set(_committed_since(log, low, head))
    for n in recent - head.state.roots:
        entry = log.read(n)
        if isinstance(entry, Snapshot):
            manifests.add(entry.manifest)
            try:
                packs.update(p.id for p in repository.packs(run, entry))
            except (CorruptObject, ObjectMissing):
                continue  # another prune was here
    return packs, manifests


def _committed_since(log: RunLog, low: int, head: Head) -> list[int]:
    numbers, n = [], head.state.snapshot
    while n > low:
        entry = log.read(n)
        if not isinstance(entry, Snapshot):
            break
        numbers.append(n)
        n = entry.base
    return numbers


def _state_after(log: RunLog, n: int) -> State:
    from spotwarp.persistence.runlog.entry import Unknown
    from spotwarp.persistence.runlog.fold import apply

    if not n:
        return State()
    entry = log.read(n)
    return State() if isinstance(entry, Unknown) else apply(entry.state, entry)


def _beat_times(repository: Repository, run: str) -> list[datetime]:
    return [meta.modified for meta in repository.store.list(layout.run_prefix(run) + "/beats")]
