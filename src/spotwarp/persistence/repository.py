"""The repository: one prefix in a store, its identity, its runs. What the verbs share.

Created once, never changed. It knows nothing of workspaces, machines or training.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import msgspec

from spotwarp.clock import Clock, Rng
from spotwarp.errors import AlreadyExists, CorruptObject, ObjectMissing, RepositoryMissing, SnapshotMissing
from spotwarp.model import checked_run
from spotwarp.persistence import layout
from spotwarp.persistence.envelope import FORMAT_VERSION, Kind, seal, unseal
from spotwarp.persistence.manifest import Manifest, decode
from spotwarp.persistence.reads import twice
from spotwarp.persistence.runlog.entry import Snapshot, State
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.store.retrying import RetryingStore
from spotwarp.persistence.store.single_writer import SingleWriterStore

BALLAST_BYTES = 1 << 20


class Identity(msgspec.Struct, frozen=True):
    """The `config` object."""

    format: int
    id: str
    created: str = ""
    single_writer: bool = False
    """Made on a store without create-if-absent: only one machine may ever write, which nothing can enforce."""


@dataclass(frozen=True, slots=True)
class Repository:
    """An open repository."""

    store: Store
    identity: Identity

    def log(self, run: str, *, life: str, clock: Clock, rng: Rng) -> RunLog:
        """The log of `run` as the process life `life` sees it."""
        return RunLog(self.store, checked_run(run), life=life, clock=clock, rng=rng)

    def with_budget(self, seconds: float) -> Repository:
        """The same repository, whose store gives up after `seconds` of trying: for what must not wait long."""
        if isinstance(self.store, (RetryingStore, SingleWriterStore)):
            return Repository(self.store.with_budget(seconds), self.identity)
        return self

    def runs(self) -> list[str]:
        """Names of all runs."""
        prefix = layout.NAMES + "/"
        return [meta.key.removeprefix(prefix) for meta in self.store.list(layout.NAMES)]

    def enlist(self, run: str) -> None:
        """Make `run` known to `runs`. Idempotent, and never a rewrite, which Google allows once a second only."""
        with contextlib.suppress(AlreadyExists):
            self.store.put_new(layout.name_key(checked_run(run)), seal(Kind.CONFIG, b"{}"))

    def manifest(self, run: str, snapshot: Snapshot) -> Manifest:
        """The manifest that a snapshot entry names. Raises `CorruptObject` when it is damaged or gone."""
        key = layout.manifest_key(run, snapshot.manifest)
        try:
            return twice(lambda: decode(self.store.get(key), key, expected=snapshot.address))
        except ObjectMissing as error:
            raise CorruptObject(
                f"the manifest of snapshot {snapshot.n} is gone ({key})",
                hint="`spotwarp snapshots` lists the others; `spotwarp check` says which are whole.",
            ) from error


def create(store: Store, *, clock: Clock, rng: Rng, single_writer: bool = False) -> tuple[Repository, bool]:
    """Make a repository here, or open the one that exists; the flag says which (True: made now)."""
    identity = Identity(
        format=FORMAT_VERSION,
        id=rng.token(16),
        created=clock.wall().isoformat(timespec="seconds"),
        single_writer=single_writer,
    )
    try:
        store.put_new(layout.CONFIG, seal(Kind.CONFIG, msgspec.json.encode(identity)))
    except AlreadyExists:
        return open_repository(store), False
    store.put(layout.BALLAST, seal(Kind.BALLAST, bytes(BALLAST_BYTES)))
    return Repository(store, identity), True


def open_repository(store: Store) -> Repository:
    """Open what `create` made. Raises `RepositoryMissing`, `UnsupportedFormat`, `CorruptObject`."""
    try:
        body = twice(lambda: unseal(store.get(layout.CONFIG), Kind.CONFIG, layout.CONFIG))
    except ObjectMissing as error:
        raise RepositoryMissing(
            f"nothing was initialised at {store.url}",
            hint=f"Run `spotwarp init --remote-path {store.url}`, or correct the path.",
        ) from error
    try:
        return Repository(store, msgspec.json.decode(body, type=Identity))
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptObject(f"{layout.CONFIG} at {store.url} is not a repository's: {error}") from error


def retained_snapshots(log: RunLog, state: State) -> list[Snapshot]:
    """The snapshot entries that are retained, oldest first. A damaged entry is left out (`check` names it)."""
    found = []
    for n in state.retained:
        try:
            entry = log.read(n)
        except CorruptObject:
            continue
        if isinstance(entry, Snapshot):
            found.append(entry)
    return found


def choose(log: RunLog, state: State, wanted: str) -> Snapshot:
    """The retained snapshot that `wanted` means: a number, `latest` or `latest-resumable`.

    Raises `SnapshotMissing`.
    """
    snapshots = retained_snapshots(log, state)
    if not snapshots:
        raise SnapshotMissing(f"run {log.run!r} has no snapshot yet")
    if wanted == "latest":
        return snapshots[-1]
    if wanted == "latest-resumable":
        resumable = [s for s in snapshots if s.cls == "resumable"]
        if not resumable:
            raise SnapshotMissing(
                f"no snapshot of run {log.run!r} has a resumable checkpoint", hint="Use `--snapshot latest`."
            )
        return resumable[-1]
    for snapshot in snapshots:
        if str(snapshot.n) == wanted:
            return snapshot
    raise SnapshotMissing(
        f"run {log.run!r} has no snapshot {wanted!r}",
        hint=f"It has {', '.join(str(s.n) for s in snapshots[-8:])}; also `latest` and `latest-resumable`.",
    )
