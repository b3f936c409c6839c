"""The final order as types: uploaded → committed → verified → sealed. Each step takes the receipt before it (I6).

`commit` is the only place that appends a snapshot entry, `verify` the only one that makes a `Verified`, and nothing can
seal or complete a run without one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from spotwarp.clock import Clock
from spotwarp.errors import CorruptObject, ObjectMissing, ReadBackFailed, SnapshotMissing
from spotwarp.persistence import layout
from spotwarp.persistence.entries import older_versions
from spotwarp.persistence.listing import sizes
from spotwarp.persistence.manifest import CheckpointFact, Manifest, PackRef, address
from spotwarp.persistence.pack import read_trailer
from spotwarp.persistence.reads import twice
from spotwarp.persistence.repository import retained_snapshots
from spotwarp.persistence.retention import Retention, forgets
from spotwarp.persistence.runlog.entry import Complete, Phase, PhaseName, Snapshot, decode
from spotwarp.persistence.runlog.log import Head, RunLog, Stands
from spotwarp.persistence.store.api import Store

_NAMED, _WORDS = 5, 1000
"""So many files, in so many characters, an entry names; the manifest has them all."""


class BaseForgotten(SnapshotMissing):
    """The snapshot whose data this one reuses is no root any more (P3): upload again without it."""


class Upload(Protocol):
    """What `backup` hands over: packs and a manifest, every one of them acknowledged by the store (I1)."""

    @property
    def manifest_id(self) -> str:
        """Of the manifest object."""
        ...

    @property
    def address(self) -> str:
        """The hash of the manifest object."""
        ...

    @property
    def manifest(self) -> Manifest:
        """What it says."""
        ...

    @property
    def new_packs(self) -> tuple[PackRef, ...]:
        """The packs uploaded for it; all others are named by its base."""
        ...

    @property
    def files(self) -> int:
        """In the snapshot."""
        ...

    @property
    def bytes(self) -> int:
        """In the snapshot."""
        ...

    @property
    def read_bytes(self) -> int:
        """Read from the workspace for it."""
        ...

    @property
    def stored_bytes(self) -> int:
        """Uploaded for it."""
        ...

    @property
    def late_files(self) -> int:
        """Which did not get to the store before the machine's end."""
        ...

    @property
    def late_bytes(self) -> int:
        """In them."""
        ...


@dataclass(frozen=True, slots=True)
class Base:
    """The committed snapshot that a backup refers to; number 0: none."""

    number: int = 0
    manifest: Manifest | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """Receipt: the snapshot entry stands in the log, and every object it names was acknowledged."""

    entry: Snapshot
    uploaded: Upload


@dataclass(frozen=True, slots=True)
class Verified:
    """Receipt: the entry, its manifest and its packs were read back from the store."""

    entry: Snapshot
    thorough: bool


def commit(
    log: RunLog,
    uploaded: Upload,
    base: Base,
    *,
    generation: int,
    retention: Retention,
    clock: Clock,
    final: bool = False,
) -> Committed:
    """Append the snapshot entry: the one commit point (I1).

    Raises `Fenced`, `RunEnded`, `BaseForgotten` when a legal commit needs a fresh upload, and `StoreUnavailable`: after
    that the same call finds an entry that landed all the same, so that nothing is committed twice (P3: an upload is its
    writer's own only until an entry names it).
    """

    def decide(head: Head) -> Snapshot:
        _find_own(log, head, uploaded)
        if base.number and base.number not in head.state.roots:
            raise BaseForgotten(f"snapshot {base.number} was forgotten meanwhile")
        best = best_checkpoint(uploaded.manifest.checkpoints)
        entry = Snapshot(
            generation=generation,
            manifest=uploaded.manifest_id,
            address=uploaded.address,
            base=head.state.snapshot,
            cls=best.cls if best else "none",
            checkpoint=printable(best.path) if best and best.cls == "resumable" else "",
            step=best.step if best else None,
            loss=best.loss if best else None,
            world_size=best.world_size if best and best.cls == "resumable" else None,
            files=uploaded.files,
            bytes=uploaded.bytes,
            read_bytes=uploaded.read_bytes,
            stored_bytes=uploaded.stored_bytes,
            final=final,
            late=uploaded.late_files,
            late_bytes=uploaded.late_bytes,
            older="; ".join(older_versions(uploaded.manifest.versions)[:_NAMED])[:_WORDS],
            wall=clock.wall().isoformat(timespec="milliseconds"),
        )
        return _forgetting(entry, log, head, retention)

    return Committed(log.append(decide), uploaded)


def _find_own(log: RunLog, head: Head, uploaded: Upload) -> None:
    try:
        last = log.read(head.state.snapshot) if head.state.snapshot else None
    except CorruptObject:
        return  # a damaged entry is nobody's, and must not keep the next one from being written
    if isinstance(last, Snapshot) and last.manifest == uploaded.manifest_id:
        raise Stands(last)


def _forgetting(entry: Snapshot, log: RunLog, head: Head, retention: Retention) -> Snapshot:
    return replace(entry, forgets=forgets(retained_snapshots(log, head.state), entry, retention))


def best_checkpoint(facts: tuple[CheckpointFact, ...]) -> CheckpointFact | None:
    """The newest resumable checkpoint by step, else the newest weights-only one, else None. Never by time."""
    for cls in ("resumable", "weights-only"):
        of_class = [f for f in facts if f.cls == cls]
        if of_class:
            return max(of_class, key=lambda f: (f.step if f.step is not None else -1, f.path))
    return None


def printable(path: bytes) -> str:
    """A path for JSON and for people: UTF-8 with undecodable and control bytes escaped."""
    text = path.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def verify(store: Store, run: str, committed: Committed, *, thorough: bool) -> Verified:
    """Read the snapshot back from the store, past every cache.

    Always: the log slot, the manifest's bytes, the trailer of each pack uploaded for it. `thorough` (the final
    snapshot): also that every pack it names is there with its exact size. Raises `ReadBackFailed` naming the packs not
    to be trusted again.
    """
    entry = committed.entry
    key = layout.log_key(run, entry.n)
    try:
        if twice(lambda: decode(store.get(key), entry.n, key)).nonce != entry.nonce:
            raise ReadBackFailed(f"{key} holds another entry than the one that was acknowledged")
        manifest_key = layout.manifest_key(run, entry.manifest)
        if address(store.get(manifest_key)) != entry.address != address(store.get(manifest_key)):
            raise ReadBackFailed(f"{manifest_key} is not what was written")
    except (ObjectMissing, CorruptObject) as error:
        raise ReadBackFailed(f"the store lost an acknowledged object: {error}") from error
    bad = {pack.id for pack in committed.uploaded.new_packs if not _trailer_whole(store, run, pack.id, pack.size)}
    if thorough:
        packs = committed.uploaded.manifest.packs
        for owner in dict.fromkeys(p.run for p in packs):  # a forked run names its parent's packs too
            named = {layout.pack_key(owner, p.id): p for p in packs if p.run == owner}
            there = sizes(store, layout.packs_prefix(owner), {key: p.size for key, p in named.items()})
            bad |= {p.id for key, p in named.items() if there.get(key) != p.size}
    if bad:
        raise ReadBackFailed(
            f"the store acknowledged {len(bad)} pack(s) of snapshot {entry.n} that it does not have whole",
            packs=frozenset(bad),
            hint="What they hold is sent again; if this repeats, do not trust this store.",
        )
    return Verified(entry, thorough)


def _trailer_whole(store: Store, run: str, pack: str, size: int) -> bool:
    try:
        twice(lambda: read_trailer(store, layout.pack_key(run, pack), size))
    except (ObjectMissing, CorruptObject):
        return False
    return True


def seal(
    log: RunLog,
    verified: Verified,
    *,
    phase: PhaseName,
    exit_code: int | None,
    reason: str,
    budget_s: float | None = None,
) -> Phase:
    """Seal the generation as `preempted` or `stopped`: its last entry, written with the child dead (R12).

    The log refuses it when the verified snapshot is not the last. Called again after `StoreUnavailable` it finds a seal
    that landed all the same.
    """

    def decide(head: Head) -> Phase:
        if head.state.seal == phase:
            _find_last(log, head, Phase, verified)
        return Phase(
            generation=verified.entry.generation,
            phase=phase,
            snapshot=verified.entry.n,
            exit=exit_code,
            reason=reason,
        )

    return log.append(decide, budget_s=budget_s)


def complete(log: RunLog, verified: Verified, *, exit_code: int = 0, budget_s: float | None = None) -> Complete:
    """Close the run for good (R13); otherwise as `seal`."""

    def decide(head: Head) -> Complete:
        if head.state.terminal == "complete":
            _find_last(log, head, Complete, verified)
        return Complete(generation=verified.entry.generation, snapshot=verified.entry.n, exit=exit_code)

    return log.append(decide, budget_s=budget_s)


def _find_last(log: RunLog, head: Head, kind: type[Phase] | type[Complete], verified: Verified) -> None:
    """Raise `Stands` when the entry that closed the generation is this life's own; only bookkeeping lies above it."""
    for n in range(head.n, verified.entry.n, -1):
        entry = log.read(n)
        if isinstance(entry, kind) and entry.by == log.life and entry.generation == verified.entry.generation:
            raise Stands(entry)
