"""What must be true of a run whatever happens: the protocol's invariants, judged from the bytes in the store alone.

A `Witness` sees each effect at the moment it happens and raises `Violation` at the first that breaks an invariant. It
has its own, plain notion of who holds the run: it asks the product only what readers accept and what states they fold,
and then judges that. A violation opens with the invariant's name: FENCED, ONE-WRITER, LINEAR, OBJECTS, FINAL, TERMINAL,
SEALED, BOUND, UNBORN, EARLY (the log), STATE, ACK, REUSED (reading and writing it), JUSTIFIED, GATE (what machines and
controllers conclude), TWICE, LOST (what is uploaded and deleted); `bystanders` add LEAK, `model_runs` LIVE.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from spotwarp.errors import SpotWarpError
from spotwarp.persistence import layout, manifest
from spotwarp.persistence.runlog import entry as entries
from spotwarp.persistence.runlog import fold
from spotwarp.persistence.runlog.entry import Claim, Complete, Failed, Fence, Phase, Published, Snapshot, State

HOLDER = (Snapshot, Phase, Published, Complete, Failed)


class Violation(AssertionError):
    """An invariant is broken."""


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


@dataclass
class Content:
    """What a manifest holds: the packs it names, and the line of work that led to it."""

    packs: frozenset[str]
    lineage: tuple[bytes, ...]


@dataclass
class Witness:
    """See the module."""

    run: str
    now: Callable[[], float]
    has: Callable[[str], bool]
    """Whether the store has a key."""
    log: list[entries.AnyEntry | entries.Unknown] = field(default_factory=list)
    states: list[State] = field(default_factory=lambda: [State()])
    """The fold of the first n entries."""
    accepted: set[int] = field(default_factory=set)
    contents: dict[str, Content] = field(default_factory=dict)
    generation: int = 0
    owners: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Generation → life and machine."""
    sealed: bool = False
    terminal: bool = False
    snapshot: int = 0
    snapshot_generation: int = 0
    fenced: set[str] = field(default_factory=set)
    claims: int = 0
    takeovers: int = 0
    _committed: set[str] = field(default_factory=set)
    _landed_at: dict[int, float] = field(default_factory=dict)
    _beats: dict[str, float] = field(default_factory=dict)
    _quiet: dict[tuple[str, str], float] = field(default_factory=dict)

    # ---- effects ---------------------------------------------------------------------------------------------------

    def landed(self, key: str, data: bytes) -> None:
        """See `Watcher`."""
        prefix = layout.run_prefix(self.run)
        kind, _, name = key.removeprefix(f"{prefix}/").partition("/")
        if kind == "beats":
            self._beats[name] = self.now()
        elif kind == "manifests":
            made = manifest.decode(data, key)
            self.contents[name] = Content(frozenset(p.id for p in made.packs), tuple(e.path for e in made.entries))
        elif kind == "log":
            self._entry(int(name), data, key)

    def deleted(self, key: str) -> None:
        """See `Watcher`."""
        for n in sorted(self.states[-1].roots):
            _demand(key not in self.objects_of(n), f"LOST: {key} of root {n} was deleted")

    def read(self, key: str, reader: str) -> None:
        """See `Watcher`."""
        _, beats, life = key.partition("/beats/")
        if beats:
            self._quiet[reader, life] = self.now() - self._beats.get(life, float("-inf"))

    def objects_of(self, n: int) -> set[str]:
        """Keys of all objects that snapshot `n` needs."""
        snapshot = self.log[n - 1]
        if not isinstance(snapshot, Snapshot) or snapshot.manifest not in self.contents:
            raise Violation(f"OBJECTS: snapshot {n} names a manifest that was never there")
        packs = self.contents[snapshot.manifest].packs
        return {layout.pack_key(self.run, p) for p in packs} | {layout.manifest_key(self.run, snapshot.manifest)}

    # ---- the log ---------------------------------------------------------------------------------------------------

    def _entry(self, n: int, data: bytes, key: str) -> None:
        entry = entries.decode(data, n, key)
        _demand(n == len(self.log) + 1, f"REUSED: entry {n} landed in a log of {len(self.log)}")
        state = self.states[-1]
        _demand(entry.state == state, f"STATE: entry {n} carries another state than the fold of what lies below it")
        self.log.append(entry)
        self._landed_at[n] = self.now()
        if fold.refusal(state, entry) is None:
            self.accepted.add(n)
            self._judge(n, entry, state)
        self.states.append(fold.apply(state, entry))
        for root in sorted(self.states[-1].roots):
            lost = sorted(k for k in self.objects_of(root) if not self.has(k))
            _demand(not lost, f"OBJECTS: after entry {n}, root {root} lacks {lost}")

    def _judge(self, n: int, entry: entries.AnyEntry | entries.Unknown, state: State) -> None:
        if isinstance(entry, Claim):
            self._judge_claim(n, entry, state)
        elif isinstance(entry, HOLDER):
            _demand(not self.terminal, f"TERMINAL: entry {n} is accepted after the terminal entry")
            g = entry.generation
            _demand(
                g == self.generation, f"FENCED: entry {n} of generation {g} is accepted after claim {self.generation}"
            )
            _demand(entry.by == self.owners[g][0], f"ONE-WRITER: entry {n} is not of the life that claimed {g}")
            _demand(not self.sealed, f"SEALED: entry {n} is accepted after the seal")
            if isinstance(entry, Snapshot):
                self._judge_snapshot(n, entry, state)
            elif isinstance(entry, (Complete, Failed)) or (isinstance(entry, Phase) and entry.phase in entries.SEALS):
                final = self.snapshot_generation == g and entry.snapshot == self.snapshot
                _demand(final, f"FINAL: entry {n} closes generation {g} without its own last snapshot")
                self.sealed = isinstance(entry, Phase)
                self.terminal = not self.sealed
        elif isinstance(entry, Fence):
            self.fenced.add(entry.machine)

    def _judge_claim(self, n: int, entry: Claim, state: State) -> None:
        _demand(not self.terminal, f"TERMINAL: claim {n} is accepted after the terminal entry")
        _demand(
            entry.generation == self.generation + 1, f"FENCED: claim {n} does not follow generation {self.generation}"
        )
        _demand(
            entry.machine not in self.fenced, f"BOUND: claim {n} is of machine {entry.machine}, which was fenced off"
        )
        _demand(entry.by in self._beats, f"UNBORN: claim {n} is of a life that has never beaten")
        if self.generation and not self.sealed:
            self.takeovers += 1
            self._judge_turn(n, entry, state)
        self.claims += 1
        self.generation, self.sealed = entry.generation, False
        self.owners[entry.generation] = (entry.by, entry.machine)

    def _judge_turn(self, n: int, entry: Claim, state: State) -> None:
        """A claim over an unsealed generation needs a deadline that passed, or a beat that stood still (R7, R8)."""
        holder = self.owners[self.generation][0]
        if entry.cause == "stale beat":
            quiet = self._quiet.get((entry.by, holder), 0.0)
            _demand(quiet >= entry.lease_s, f"EARLY: claim {n} over {holder}, which had beaten {quiet:.2f} s before")
            return
        if entry.cause == "takeover":
            return
        _demand(entry.cause.startswith("deadline@") and state.notice is not None, f"EARLY: claim {n} has no cause")
        noticed, seconds = state.notice or (0, 0.0)
        passed = self.now() - self._landed_at[noticed]
        _demand(passed >= seconds, f"EARLY: claim {n} came {passed:.2f} s after a notice of {seconds} s")

    def _judge_snapshot(self, n: int, entry: Snapshot, state: State) -> None:
        _demand(entry.base == self.snapshot, f"LINEAR: snapshot {n} names {entry.base} as last, not {self.snapshot}")
        _demand(entry.manifest not in self._committed, f"TWICE: snapshot {n} names the manifest of another")
        self._committed.add(entry.manifest)
        for root in state.retained[-1:]:
            self.objects_of(n)
            last = self.log[root - 1]
            before = self.contents[last.manifest].lineage if isinstance(last, Snapshot) else ()
            lineage = self.contents[entry.manifest].lineage
            _demand(lineage[: len(before)] == before, f"LINEAR: snapshot {n} does not build on {root}")
        self.snapshot, self.snapshot_generation = n, entry.generation

    # ---- what the machines conclude --------------------------------------------------------------------------------

    def acknowledged(self, entry: entries.Entry) -> None:
        """A machine was told that `entry` stands."""
        n = entry.n
        stands = n <= len(self.log) and self.log[n - 1].nonce == entry.nonce and n in self.accepted
        _demand(stands, f"ACK: entry {n} was acknowledged, but readers do not have it")

    def head_seen(self, n: int, state: State, at_least: int) -> None:
        """A reader that started when the log had `at_least` entries concludes that the head is `n`, with this fold."""
        _demand(at_least <= n <= len(self.log), f"ACK: a reader sees {n} entries where there are {at_least} or more")
        _demand(state == self.states[n], f"STATE: a reader folds {n} entries to something else")

    def stood_down(self, machine: str, life: str, generation: int, error: SpotWarpError) -> None:
        """A machine gives up for good because of `error`."""
        owner = self.owners.get(self.generation, ("", ""))[0]
        gone = self.generation >= max(1, generation) and owner != life
        reason = self.terminal or machine in self.fenced or gone
        _demand(reason, f"JUSTIFIED: {life} stood down, but nothing in the log tells it to: {error!r}")

    def terminated(self, machine: str, *, unsaved: bool) -> None:
        """A controller ends `machine`, which has, or has not, work that is nowhere else."""
        g = max((g for g, (_, m) in self.owners.items() if m == machine), default=0)
        if self.terminal or not g:
            return
        _demand(g != self.generation or self.sealed, f"GATE: {machine} is ended while it holds generation {g}")
        stranded = g < self.generation and self.snapshot_generation <= g and unsaved
        _demand(not stranded, f"GATE: {machine} is ended with unsaved work, and no later generation has committed")
