"""The repository: one prefix in a store, its identity, its runs. What the verbs share.

Created once, never changed. It knows nothing of workspaces, machines or training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec

from spotwarp.clock import Clock, Rng
from spotwarp.errors import (
    AlreadyExists,
    CorruptObject,
    ObjectMissing,
    OtherRepository,
    RepositoryMissing,
    SnapshotMissing,
    UsageError,
    WrongKey,
)
from spotwarp.model import checked_run
from spotwarp.persistence import layout
from spotwarp.persistence import manifest as manifests
from spotwarp.persistence.encryption.keyring import Keyring, Opened, open_keys
from spotwarp.persistence.encryption.sealed import SealedStore
from spotwarp.persistence.encryption.secret import Secret
from spotwarp.persistence.envelope import FORMAT_VERSION, PLAIN, SEALED, Kind, encryption_of, seal, unseal
from spotwarp.persistence.manifest import Manifest, PackRef, decode
from spotwarp.persistence.reads import twice, whole
from spotwarp.persistence.runlog.entry import Snapshot, State
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.store.retrying import Patient

Read = TypeVar("Read")

BALLAST_BYTES = 1 << 20


class Identity(msgspec.Struct, frozen=True):
    """The `config` object."""

    format: int
    id: str
    created: str = ""
    single_writer: bool = False
    """Made on a store without create-if-absent: only one machine may ever write, which nothing can enforce."""


class Known(msgspec.Struct, frozen=True):
    """The repository that a workspace belongs to: what is put in its place later, in the bucket, is not believed."""

    id: str
    encrypted: bool

    def confirm(self, identity: Identity, encrypted: bool, url: str) -> None:
        """Raises `OtherRepository` when what is found at `url` is not this one."""
        if self.id != identity.id:
            raise OtherRepository(
                f"the repository at {url} is not the one that this workspace belongs to: it was replaced"
            )
        if self.encrypted != encrypted:
            now = "encrypted now, and was not" if encrypted else "not encrypted now, and was"
            raise OtherRepository(f"the repository at {url} is {now}: what this workspace belongs to was replaced")


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
        return Repository(self.store.with_budget(seconds), self.identity) if isinstance(self.store, Patient) else self

    @property
    def encrypted(self) -> bool:
        """Whether what is stored can only be read with the key."""
        return isinstance(self.store, SealedStore)

    @property
    def known(self) -> Known:
        """What a workspace has to remember of it."""
        return Known(self.identity.id, self.encrypted)

    def runs(self) -> list[str]:
        """Names of all runs."""
        prefix = layout.NAMES + "/"
        return [meta.key.removeprefix(prefix) for meta in self.store.list(layout.NAMES)]

    def enlist(self, run: str) -> None:
        """Make `run` known to `runs`, unless it is: some stores refuse a rewrite within a second. Idempotent."""
        key = layout.name_key(checked_run(run))
        try:
            self.store.head(key)
        except ObjectMissing:
            self.store.put(key, seal(Kind.CONFIG, b"{}"))

    def manifest(self, run: str, snapshot: Snapshot) -> Manifest:
        """The manifest that a snapshot entry names. Raises `CorruptObject` when it is damaged or gone."""
        return self._of(run, snapshot, partial(decode, fetch=whole(self.store)))

    def packs(self, run: str, snapshot: Snapshot) -> tuple[PackRef, ...]:
        """The packs that a snapshot needs. Raises `CorruptObject` when its manifest is damaged or gone."""
        return self._of(run, snapshot, manifests.packs)

    def _of(self, run: str, snapshot: Snapshot, read: Callable[..., Read]) -> Read:
        key = layout.manifest_key(run, snapshot.manifest)
        try:
            return twice(lambda: read(self.store.get(key), key, expected=snapshot.address))
        except ObjectMissing as error:
            raise CorruptObject(
                f"the manifest of snapshot {snapshot.n} is gone ({key})",
                hint="`spotwarp snapshots` lists the others; `spotwarp check` says which are whole.",
            ) from error


def create(
    store: Store,
    *,
    clock: Clock,
    rng: Rng,
    single_writer: bool = False,
    secret: Secret | None = None,
    encrypt: bool = False,
    known: Known | None = None,
) -> tuple[Repository, bool]:
    """Make a repository here, or open the one that exists; the flag says which (True: made now).

    `encrypt` makes one that opens with `secret` only; none is made where there must be a `known` one. Raises as
    `open_repository`, and `UsageError` where there is none yet and a secret without a word whether to encrypt.
    """
    if secret is not None or known is not None:
        try:
            return open_repository(store, secret, known), False
        except RepositoryMissing as missing:
            if known is not None:
                raise OtherRepository(f"the repository that this workspace belongs to is gone from {store.url}") from (
                    missing
                )
            if not encrypt:
                raise UsageError(
                    f"{missing.message}, and a key is given here: is it to be encrypted?",
                    hint="`spotwarp init --encrypt` makes an encrypted repository; unset the key for a plain one.",
                ) from missing
    opened: Opened | None = None
    if not encrypt and any(True for _ in store.list(layout.KEYS)):
        if _is_there(store):
            return open_repository(store, secret, known), False
        raise WrongKey(
            f"there are keys at {store.url}, and no repository: an encrypted one was begun, or its `config` is gone",
            hint="End that `spotwarp init --encrypt` with its key; or take another remote path.",
        )
    identifier = rng.token(16)
    if encrypt:
        if secret is None:
            raise ValueError("encryption needs a secret")
        # The key stands before anything can be put under it: a machine that dies here leaves no locked repository.
        opened = Keyring(store, clock=clock, rng=rng).begin(identifier, secret)
        identifier = opened.repository
    identity = Identity(
        format=FORMAT_VERSION,
        id=identifier,
        created=clock.wall().isoformat(timespec="seconds"),
        single_writer=single_writer,
    )
    body = msgspec.json.encode(identity)
    try:
        store.put_new(layout.CONFIG, seal(Kind.CONFIG, body, encryption=SEALED if opened else PLAIN))
    except AlreadyExists:
        return open_repository(store, secret), False
    repository = Repository(SealedStore(store, opened.cipher) if opened else store, identity)
    repository.store.put(layout.BALLAST, seal(Kind.BALLAST, bytes(BALLAST_BYTES)))
    return repository, True


def open_repository(store: Store, secret: Secret | None = None, known: Known | None = None) -> Repository:
    """Open what `create` made; `secret` is this process's key, if it has one; `known` is what must be there.

    Raises `RepositoryMissing`, `OtherRepository`, `WrongKey`, `UnsupportedFormat`, `CorruptObject`.
    """
    identity, encrypted = read_identity(store)
    if known is not None:
        known.confirm(identity, encrypted, store.url)
    if encrypted:
        return Repository(SealedStore(store, open_keys(store, secret).of(identity.id).cipher), identity)
    if secret is not None:
        # Also what a store would say that wants to see what is put there.
        raise WrongKey(
            f"the repository at {store.url} is not encrypted, though a key is given here",
            hint="To use it as it is, leave out SPOTWARP_KEY, SPOTWARP_KEY_FILE, `key_file` and --key-file. What is to "
            "be encrypted is made so by `spotwarp init --encrypt`, at another remote path.",
        )
    return Repository(store, identity)


def _is_there(store: Store) -> bool:
    try:
        read_identity(store)
    except RepositoryMissing:
        return False
    return True


def read_identity(store: Store) -> tuple[Identity, bool]:
    """What the `config` object says, and whether the repository is encrypted: its header has the encryption id of all
    others, so that whoever does not know that keeps away, but its body can be read by anybody.

    Raises `RepositoryMissing`, `UnsupportedFormat`, `CorruptObject`.
    """

    def read() -> tuple[bytes, int]:
        data = store.get(layout.CONFIG)
        encryption = encryption_of(data)
        return unseal(data, Kind.CONFIG, layout.CONFIG, encryption=encryption), encryption

    try:
        body, encryption = twice(read)
    except ObjectMissing as error:
        raise RepositoryMissing(
            f"nothing was initialised at {store.url}",
            hint=f"Run `spotwarp init --remote-path {store.url}`, or correct the path.",
        ) from error
    try:
        return msgspec.json.decode(body, type=Identity), encryption == SEALED
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
