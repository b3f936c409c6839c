"""The slots in the store: `keys/1`, `keys/2` …, each a whole set, the newest one in force.

A change is one create-if-absent of the next set, decided on the newest: two at once cannot both win, a machine that
dies leaves the old set or the new one, and no set without a slot is ever made. Sets that were replaced are deleted
afterwards. What is stored under the repository's key is never touched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from spotwarp.clock import Clock, Rng
from spotwarp.errors import (
    AlreadyExists,
    CorruptObject,
    ObjectMissing,
    StoreError,
    StoreUnavailable,
    UnsupportedFormat,
    UsageError,
    WrongKey,
)
from spotwarp.persistence import layout
from spotwarp.persistence.encryption.cipher import KEY_SIZE, Cipher
from spotwarp.persistence.encryption.secret import VARIABLE, Secret
from spotwarp.persistence.encryption.slots import USUAL, Slot, Work, effort, unwrap, wrap
from spotwarp.persistence.envelope import Kind, seal, unseal
from spotwarp.persistence.store.api import Store

MOST_SLOTS: Final = 16
_MOST_WORK: Final = MOST_SLOTS * USUAL.n * USUAL.r * USUAL.p
"""Of all passphrases of a set together: some seconds. Who writes the set may be who wants us to be busy."""
_ID: Final = re.compile(r"[0-9a-z]{1,64}")
_KIND: Final = re.compile(r"[0-9a-z-]{1,32}")
_VERSION: Final = 1
_TRIES: Final = 20
_GIVE: Final = (
    f"Set {VARIABLE} (passphrase or key); or name a key file: SPOTWARP_KEY_FILE, `key_file` in the config, "
    "or --key-file of `init`."
)


class KeySet(msgspec.Struct, frozen=True):
    """One object below `keys/`: the slots of the repository with this id."""

    v: int
    repository: str
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """The repository's key, and the slot that gave it."""

    repository: str
    key: bytes
    slot: str

    def of(self, repository: str) -> Opened:
        """This, if it is that repository's. Raises `CorruptObject`."""
        if self.repository != repository:
            raise CorruptObject("the keys in this store are another repository's: somebody has put them there")
        return self

    @property
    def cipher(self) -> Cipher:
        """The key at work."""
        return Cipher(self.key, self.repository)


class Keyring:
    """The slots of the repository in `store`; `work` is for passphrases that are added."""

    def __init__(self, store: Store, *, clock: Clock, rng: Rng, work: Work = USUAL) -> None:
        self._store, self._clock, self._rng, self._work = store, clock, rng, work

    def begin(self, repository: str, secret: Secret) -> Opened:
        """Make a key for a repository that is about to be made, or take the one that a dead `init` left here.

        It is then that one's repository id that counts. Raises `WrongKey` when another secret was used for it.
        """
        opened = Opened(repository, os.urandom(KEY_SIZE), self._rng.token(4))
        slots = (self._slot(opened, secret, opened.slot),)
        try:
            self._create(1, KeySet(_VERSION, repository, slots))
        except AlreadyExists:
            pass
        else:
            return opened
        try:
            return open_keys(self._store, secret)
        except WrongKey as error:
            raise WrongKey(
                f"an `init` with another key has begun at {self._store.url}, and has not ended",
                hint="Give that key; or take another remote path; or delete keys/ there, if there is nothing else.",
            ) from error

    def add(self, opened: Opened, secret: Secret) -> Slot:
        """One more slot. Raises `UsageError` for a secret that has one, or when there are too many; store errors."""
        self._refuse_known(opened, secret)
        new = self._slot(opened, secret, self._rng.token(4))

        def change(slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
            if len(slots) >= MOST_SLOTS:
                raise UsageError(f"there are {MOST_SLOTS} keys already", hint="`spotwarp key remove` takes one away.")
            return (*slots, new)

        self._change(opened, change, lambda slots: new in slots)
        return new

    def remove(self, opened: Opened, id: str) -> None:
        """Take a slot away; never the one that was opened, so that somebody is known to hold one that is left.

        Raises `UsageError` and the store's errors.
        """
        if id == opened.slot:
            raise UsageError(
                f"{id} is the key in use here: without another one nobody could open the repository any more",
                hint="`spotwarp key rotate` replaces it; or give another key of the repository, and remove it then.",
            )
        known = {slot.id for slot in self.slots()}
        self.clean()  # of a removal that died half-way, too
        if id not in known:
            raise UsageError(f"there is no key {id!r}", hint="`spotwarp key list` names them.")
        self._change(opened, lambda slots: tuple(s for s in slots if s.id != id), lambda s: id not in {x.id for x in s})

    def rotate(self, opened: Opened, secret: Secret) -> Slot:
        """Put a slot for `secret` in the place of the one that was opened, in one step; others stay.

        Raises `UsageError` for a secret that has a slot, and the store's errors.
        """
        self._refuse_known(opened, secret)
        new = self._slot(opened, secret, self._rng.token(4))

        def change(slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
            return (*(slot for slot in slots if slot.id != opened.slot), new)

        self._change(opened, change, lambda slots: new in slots)
        return new

    def slots(self) -> tuple[Slot, ...]:
        """Those in force."""
        return newest(self._store)[1].slots

    def clean(self) -> str:
        """Delete the sets that were replaced: a key that was removed opens them still. Why some are left, "" if none.

        Raises what `newest` does.
        """
        n, _ = newest(self._store)
        try:
            for older in _numbers(self._store):
                if older < n:
                    self._store.delete(layout.keys_key(older))
        except StoreError as error:
            return error.message
        return ""

    def _refuse_known(self, opened: Opened, secret: Secret) -> None:
        for slot in self.slots():
            if unwrap(slot, secret, opened.repository) is not None:
                raise UsageError(
                    f"{secret.words} opens the repository already: it is key {slot.id}",
                    hint="Take another one; `spotwarp key list` names those that there are.",
                )

    def _slot(self, opened: Opened, secret: Secret, id: str) -> Slot:
        created = self._clock.wall().isoformat(timespec="seconds")
        return wrap(opened.key, secret, repository=opened.repository, id=id, created=created, work=self._work)

    def _change(
        self,
        opened: Opened,
        change: Callable[[tuple[Slot, ...]], tuple[Slot, ...]],
        done: Callable[[tuple[Slot, ...]], bool],
    ) -> None:
        """Create the next set until the newest one has what is wanted: what another did meanwhile stays."""
        lost: StoreUnavailable | None = None
        for _ in range(_TRIES):
            n, present = newest(self._store)
            if present.repository != opened.repository:
                raise CorruptObject(f"{layout.keys_key(n)} is not this repository's")
            if done(present.slots):
                self.clean()
                return
            slots = change(present.slots)
            if opened.slot not in {slot.id for slot in present.slots}:
                raise WrongKey("the key in use here was removed meanwhile", hint="Give another key of the repository.")
            try:
                self._create(n + 1, KeySet(_VERSION, opened.repository, slots))
            except AlreadyExists:
                continue
            except StoreUnavailable as error:  # it may have arrived: the newest set tells
                lost = error
        raise lost or StoreUnavailable(f"the keys at {self._store.url} are being changed by others all the time")

    def _create(self, n: int, keys: KeySet) -> None:
        self._store.put_new(layout.keys_key(n), seal(Kind.KEYS, msgspec.json.encode(keys)))


def open_keys(store: Store, secret: Secret | None) -> Opened:
    """The key of the repository in `store`. Raises `WrongKey`, `CorruptObject`, `UnsupportedFormat`, store errors."""
    if secret is None:
        raise WrongKey(f"the repository at {store.url} is encrypted, and no key is given here", hint=_GIVE)
    _, keys = newest(store)
    for slot in keys.slots:
        if (key := unwrap(slot, secret, keys.repository)) is not None:
            return Opened(keys.repository, key, slot.id)
    raise WrongKey(f"{secret.words} does not open the repository at {store.url}", hint=_GIVE)


def newest(store: Store) -> tuple[int, KeySet]:
    """The set in force and its number. Raises `CorruptObject` when there is none, or it cannot be read."""
    for _ in range(_TRIES):
        n = max(_numbers(store), default=0)
        if not n:
            break
        key = layout.keys_key(n)
        try:
            return n, _decoded(store, key)
        except ObjectMissing:  # replaced and deleted since
            continue
    raise CorruptObject(
        f"the keys of the repository at {store.url} are gone: without them nothing in it can be read",
        hint="Was something deleted below keys/ in the bucket? Put it back from a copy.",
    )


def _decoded(store: Store, key: str) -> KeySet:
    try:
        body = unseal(store.get(key), Kind.KEYS, key)
    except CorruptObject:  # damage on the way is not damage in the store
        body = unseal(store.get(key), Kind.KEYS, key)
    try:
        keys = msgspec.json.decode(body, type=KeySet)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptObject(f"{key} is not a set of keys: {error}") from error
    if keys.v > _VERSION:
        raise UnsupportedFormat(f"{key} was written by a newer SpotWarp")
    if not 0 < len(keys.slots) <= MOST_SLOTS:  # each may cost a second of work
        raise CorruptObject(f"{key} has {len(keys.slots)} keys")
    if sum(map(effort, keys.slots)) > _MOST_WORK:
        raise CorruptObject(f"{key} asks for more work than a set of keys can be")
    if not all(_ID.fullmatch(slot.id) and _KIND.fullmatch(slot.kind) and _is_date(slot.created) for slot in keys.slots):
        raise CorruptObject(f"{key} has keys that nobody made: an id, kind or date is none")
    return keys


def _is_date(text: str) -> bool:
    try:
        return not text or (text.isascii() and bool(datetime.fromisoformat(text)))
    except ValueError:
        return False


def _numbers(store: Store) -> list[int]:
    names = [meta.key.rpartition("/")[2] for meta in store.list(layout.KEYS)]
    return [int(name) for name in names if name.isascii() and name.isdigit()]
