"""Whole runs, simulated: real log, lease, receipts and prune on machines that die, freeze and revive at any step.

`simulate(seed, scenario)` plays one schedule to its end and raises `Violation` when an invariant breaks (`witness`).
The machines here are scripts in the shape of `spotwarp run`, their work is a line of marks that each snapshot must
carry on; everything that decides is the product's own code. A `careless` script lacks a habit, so that tests can show
that the harness sees it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

from spotwarp.errors import CorruptObject, Fenced, LeaseHeld, SpotWarpError, StoreUnavailable
from spotwarp.persistence import layout, manifest, receipts
from spotwarp.persistence.encryption.cipher import Cipher
from spotwarp.persistence.encryption.sealed import SealedStore, box_for
from spotwarp.persistence.envelope import HEADER_SIZE
from spotwarp.persistence.manifest import DIRECTORY, Blob, Manifest, PackRef
from spotwarp.persistence.pack import PackBuilder
from spotwarp.persistence.repository import Identity, Repository
from spotwarp.persistence.retention import Retention
from spotwarp.persistence.runlog import fold, lease
from spotwarp.persistence.runlog.entry import Claim, Phase, Snapshot
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.persistence.store.api import Store
from spotwarp.testing.clocks import SeededRng
from spotwarp.testing.interleaving import Interleaver
from spotwarp.testing.model_store import Hazards, ModelStore, Watcher
from spotwarp.testing.witness import Violation, Witness

RUN = "main"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who takes part, and what may happen to them."""

    machines: int = 2
    snapshots: int = 2
    """Each life commits so many before it closes its generation."""
    lease_s: float = 4.0
    notice_s: float = 3.0
    notices: int = 1
    revivals: int = 1
    hazards: Hazards = field(default_factory=Hazards)
    notes: int = 0
    """Entries of a bystander, for collisions."""
    forgets: int = 0
    gates: int = 0
    """Looks of a controller that ends what may be ended."""
    pruners: int = 0
    restores: int = 0
    readers: int = 0
    retention: Retention = field(default_factory=lambda: Retention(resumable=1, hourly=0))
    append_budget_s: float = 60.0
    older_base: float = 0.0
    """How often an upload reuses an older retained snapshot than the last."""
    patience: int = 6
    """How often a life waits for a held run before it gives up."""
    most_steps: int = 900
    cipher: Cipher | None = None
    """What is stored is encrypted by it."""
    careless: frozenset[str] = frozenset()
    """Habits switched off: `catch-up`, `objects-first`, `beat-first`, `recheck-base`, `gate-fence`."""


@dataclass(frozen=True, slots=True)
class HandUpload:
    """An upload made by hand: everything in it is in the store."""

    manifest_id: str
    address: str
    manifest: Manifest
    new_packs: tuple[PackRef, ...]
    files: int = 1
    bytes: int = 1
    read_bytes: int = 1
    stored_bytes: int = 1
    late_files: int = 0
    late_bytes: int = 0


class Opening:
    """Shows a watcher the objects of an encrypted bucket as they were before."""

    def __init__(self, watcher: Watcher, cipher: Cipher) -> None:
        self._watcher, self._cipher = watcher, cipher

    def landed(self, key: str, data: bytes) -> None:
        """See `Watcher`."""
        plain = self._shown(key)
        if not layout.is_pack(plain):
            data = self._cipher.box(plain).open(data[HEADER_SIZE:], data[:HEADER_SIZE], plain)
        self._watcher.landed(plain, data)

    def deleted(self, key: str) -> None:
        """See `Watcher`."""
        self._watcher.deleted(self._shown(key))

    def read(self, key: str, reader: str) -> None:
        """See `Watcher`."""
        self._watcher.read(self._shown(key), reader)

    def _shown(self, key: str) -> str:
        plain = layout.renamed(key, self._cipher.show)
        if plain is None:
            raise Violation(f"NAMED: {key} is no key of an encrypted bucket")
        return plain


class World:
    """One simulated run: the store, the witness, and all that act on them."""

    def __init__(self, seed: int | str, scenario: Scenario) -> None:
        self.scenario = scenario
        hazards = replace(scenario.hazards)
        self.stage = Interleaver(seed)
        self.random = self.stage.random
        self.stage.limit(self.random.randint(scenario.most_steps // 4, scenario.most_steps))
        self.witness = Witness(RUN, now=self.stage.monotonic, has=lambda key: self.hidden(key) in self.bucket.objects)
        self.bucket = ModelStore(
            self.stage,
            Opening(self.witness, scenario.cipher) if scenario.cipher else self.witness,
            hazards,
            freeze_s=(scenario.lease_s / 2, scenario.lease_s * 3),
            on_crash=self._crashed,
        )
        self.store: Store = SealedStore(self.bucket, scenario.cipher) if scenario.cipher else self.bucket
        self.rng = SeededRng(f"{seed} tokens")
        self.repository = Repository(self.store, Identity(format=0, id="model"))
        self.revivals, self.notices = scenario.revivals, scenario.notices
        self.machines = {name: Machine(self, name) for name in "ABCDEF"[: scenario.machines]}

    def hidden(self, key: str) -> str:
        """`key` as it is in the bucket."""
        cipher = self.scenario.cipher
        return (layout.renamed(key, cipher.hide) if cipher else None) or key

    def log(self, life: str) -> RunLog:
        """A log as a new reader has it."""
        return RunLog(
            self.store, RUN, life=life, clock=self.stage, rng=self.rng, append_budget_s=self.scenario.append_budget_s
        )

    def play(self) -> None:
        """From the first step to the last, then everybody is dead; what is left must be collectable."""
        from spotwarp.testing import bystanders

        for machine in self.machines.values():
            machine.boot()
        bystanders.enter(self)
        self.stage.run()
        self.bucket.still()
        bystanders.collect(self)

    def insist(self, act: Callable[[], T]) -> T:
        """The result of `act`, tried again while the store does not answer (at most as often as a patient person)."""
        for _ in range(50):
            try:
                return act()
            except StoreUnavailable:
                self.stage.sleep(self.random.uniform(0.05, self.scenario.lease_s))
        raise Violation("LIVE: the store answered none of fifty tries, though misfortune is limited")

    def chance(self, of: float) -> bool:
        """True with probability `of`."""
        return self.random.random() < of

    def _crashed(self, life: str) -> None:
        machine = next((m for m in self.machines.values() if m.life == life), None)
        if machine is not None and self.revivals:
            self.revivals -= 1
            machine.boot(after_s=self.random.uniform(0.0, 2 * self.scenario.lease_s))


class Machine:
    """A machine, life after life. `unsaved`: it holds work that no snapshot has."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.life = ""
        self.lives = 0
        self.unsaved = False
        self.ended = False

    def boot(self, after_s: float = 0.0) -> None:
        """A new process life."""
        self.lives += 1
        self.life = life = f"{self.name}{self.lives}"
        self.world.bucket.mortal.add(life)

        def work() -> None:
            self.world.stage.sleep(after_s)
            Life(self, life).live()

        self.world.stage.spawn(life, work, group=life)


class Life:
    """One process life, in the shape of `spotwarp run`."""

    def __init__(self, machine: Machine, life: str) -> None:
        self.machine = machine
        self.world = machine.world
        self.scenario = machine.world.scenario
        self.store = machine.world.store
        self.life = life
        self.generation = 0
        self.log = self.world.log(life)
        self.stop = threading.Event()
        self.lost: fold.Refusal | None = None
        self.heart = lease.Heart(
            self.log,
            self.store,
            lease_s=self.scenario.lease_s,
            clock=self.world.stage,
            facts=lambda: ("training", {}),
            on_lost=self._on_lost,
        )

    def live(self) -> None:
        """Beat, wait, claim, work, close; stand down when told to."""
        if "beat-first" not in self.scenario.careless:
            self.world.insist(self.heart.beat)
        self.world.stage.spawn(f"{self.life}-heart", self._beat, group=self.life)
        try:
            base, lineage = self._take()
            self._work(base, lineage)
        except LeaseHeld as held:
            holder = self.world.witness.owners.get(self.world.witness.generation, ("", ""))[0]
            if holder in ("", self.life):
                raise Violation(f"JUSTIFIED: {self.life} waits for {holder or 'nobody'}") from held
        except SpotWarpError as error:
            self.world.witness.stood_down(self.machine.name, self.life, self.generation, error)
        finally:
            self.stop.set()

    def _beat(self) -> None:
        while not self.world.stage.wait(self.stop, self.scenario.lease_s / 4):
            self.heart.tick()

    def _on_lost(self, refusal: fold.Refusal) -> None:
        self.lost = refusal

    # ---- taking the run --------------------------------------------------------------------------------------------

    def _take(self) -> tuple[receipts.Base, tuple[bytes, ...]]:
        for attempt in range(self.scenario.patience):
            try:
                turn = self.world.insist(self._wait)
                prefetched = self.world.insist(lambda: self.log.head().state.retained)
                self.world.stage.step(self.world.random.uniform(0.0, 1.0))
                claimed = self.world.insist(lambda turn=turn: lease.claim(self.log, turn, self._draft()))  # type: ignore[misc]
                break
            except LeaseHeld:
                if attempt + 1 == self.scenario.patience:
                    raise
                self.world.stage.sleep(self.world.random.uniform(0.5, self.scenario.lease_s))
        self.world.witness.acknowledged(claimed)
        self.generation = claimed.generation
        self.heart.holding = lease.Holding(claimed.generation, self.life)
        return self.world.insist(lambda: self._restore(prefetched if "catch-up" in self.scenario.careless else None))

    def _wait(self) -> lease.Turn:
        return lease.wait_for_turn(self.log, self.store, lease_s=self.scenario.lease_s, clock=self.world.stage)

    def _draft(self) -> Claim:
        return Claim(
            generation=0,
            machine=self.machine.name,
            cause="",
            base=0,
            lease_s=self.scenario.lease_s,
            host=self.machine.name,
        )

    def _restore(self, prefetched: tuple[int, ...] | None) -> tuple[receipts.Base, tuple[bytes, ...]]:
        """The last retained snapshot, and the line of work in it; chosen again when it is forgotten meanwhile (P8)."""
        while retained := self.log.head().state.retained if prefetched is None else prefetched:
            snapshot = self.log.read(retained[-1])
            if not isinstance(snapshot, Snapshot):
                raise Violation(f"LINEAR: entry {retained[-1]} is no snapshot")
            try:
                found = self.world.repository.manifest(RUN, snapshot)
            except CorruptObject as error:
                if snapshot.n in self.world.witness.states[-1].roots:
                    raise Violation(f"LOST: root {snapshot.n} cannot be restored: {error}") from error
                prefetched = None
            else:
                return receipts.Base(snapshot.n, found), tuple(e.path for e in found.entries)
        return receipts.Base(), ()

    def _older(self, below: int) -> receipts.Base:
        """A retained snapshot from before `below`, to reuse what it holds."""
        retained = [n for n in self.log.head().state.retained if n < below]
        if retained:
            n = self.world.random.choice(retained)
            try:
                return receipts.Base(n, self.world.repository.manifest(RUN, cast(Snapshot, self.log.read(n))))
            except CorruptObject:
                pass  # forgotten since
        return receipts.Base()

    # ---- holding it ------------------------------------------------------------------------------------------------

    def _work(self, base: receipts.Base, lineage: tuple[bytes, ...]) -> None:
        noticed = False
        committed: receipts.Committed | None = None
        for k in range(self.world.random.randint(1, self.scenario.snapshots)):
            self.machine.unsaved = True
            self.world.stage.sleep(self.world.random.uniform(0.0, 1.5))
            if self.world.notices and self.world.chance(0.3):
                self.world.notices -= 1
                noticed = True
                self._notice()
            # A manifest has its entries in the order of their paths: the place in the line leads.
            lineage = (*lineage, f"{len(lineage):06}.{self.life}.{k}".encode())
            committed = self._save(base, lineage)
            self.machine.unsaved = False
            self.world.witness.acknowledged(committed.entry)
            base = receipts.Base(committed.entry.n, committed.uploaded.manifest)
            if self.world.chance(self.scenario.older_base):
                base = self.world.insist(lambda: self._older(committed.entry.n))  # noqa: B023
            if noticed:
                break
        if committed is not None:
            self._close(committed, noticed)

    def _notice(self) -> None:
        draft = Phase(generation=self.generation, phase="notice", seconds=self.scenario.notice_s)
        self._look()
        self.world.insist(lambda: self.log.append(lambda _: draft))

    def _save(self, base: receipts.Base, lineage: tuple[bytes, ...]) -> receipts.Committed:
        for _ in range(20):
            upload = self._upload(base, lineage)
            told = receipts.Base() if "recheck-base" in self.scenario.careless else base
            try:
                return self.world.insist(lambda upload=upload, told=told: self._commit(upload, told))  # type: ignore[misc]
            except receipts.BaseForgotten:
                base = receipts.Base()  # everything anew: then only a fence can refuse it
        raise Violation("LIVE: a fresh upload is refused again and again")

    def _commit(self, upload: HandUpload, base: receipts.Base) -> receipts.Committed:
        self._look()
        committed = receipts.commit(
            self.log,
            upload,
            base,
            generation=self.generation,
            retention=self.scenario.retention,
            clock=self.world.stage,
        )
        if "objects-first" in self.scenario.careless:
            self._put_packs(upload)
        return committed

    def _upload(self, base: receipts.Base, lineage: tuple[bytes, ...]) -> HandUpload:
        old = base.manifest.packs if base.manifest else ()
        kept = tuple(p for p in old if self.world.chance(0.7))[-3:]
        cls = "resumable" if self.world.chance(0.8) else "weights-only"
        name = layout.new_object_id(self.generation, self.world.rng)
        new = PackRef(RUN, name, len(_pack_bytes(self.store, layout.pack_key(RUN, name))))
        made = Manifest(
            0,
            RUN,
            self.generation,
            packs=(*kept, new),
            blobs=tuple(Blob(i, 8, 1, 0, 1, bytes(16)) for i in range(len(kept) + 1)),
            entries=tuple(manifest.Entry(mark, DIRECTORY, 0o755, 0, 0) for mark in lineage),
            checkpoints=(manifest.CheckpointFact(b"checkpoint", cls, step=len(lineage)),),
        )
        coded = manifest.encode(made)
        upload = HandUpload(
            layout.new_object_id(self.generation, self.world.rng), manifest.address(coded), made, (new,)
        )
        if "objects-first" not in self.scenario.careless:
            self._put_packs(upload)
        self.world.insist(lambda: self.store.put(layout.manifest_key(RUN, upload.manifest_id), coded))
        return upload

    def _put_packs(self, upload: HandUpload) -> None:
        for pack in upload.new_packs:
            key = layout.pack_key(RUN, pack.id)
            data = _pack_bytes(self.store, key)
            self.world.insist(lambda key=key, data=data: self.store.put(key, data))  # type: ignore[misc]

    def _close(self, committed: receipts.Committed, noticed: bool) -> None:
        verified = self.world.insist(lambda: receipts.verify(self.store, RUN, committed, thorough=True))
        if noticed or self.world.chance(0.6):
            phase = "preempted" if noticed else "stopped"
            done = self.world.insist(
                lambda: receipts.seal(self.log, verified, phase=phase, exit_code=None, reason="")  # type: ignore[arg-type]
            )
            self.world.witness.acknowledged(done)
        else:
            self.world.witness.acknowledged(self.world.insist(lambda: receipts.complete(self.log, verified)))

    def _look(self) -> None:
        """What the heart has seen since the last act."""
        if self.lost is not None:
            raise Fenced(self.lost.reason)


def _pack_bytes(store: Store, key: str) -> bytes:
    builder = PackBuilder(4096, box=box_for(store, key))
    builder.add(bytes(16), 0, 1, b"x")
    return bytes(builder.seal())


def simulate(seed: int | str, scenario: Scenario) -> World:
    """Play one schedule. Raises `Violation`."""
    world = World(seed, scenario)
    world.play()
    return world
