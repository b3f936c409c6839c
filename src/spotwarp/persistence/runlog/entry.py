"""The kinds of entry in a run's log, and the state each carries. Data only; what they mean is in `fold`.

An entry is one JSON object in a frame. `state` is the fold of all entries below it, so that the newest entry alone
tells a reader everything. Unknown fields are ignored, an unknown kind or a higher `v` makes a reader read-only (R5).
Normative: docs/format.md.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from spotwarp.errors import CorruptObject
from spotwarp.persistence.envelope import FORMAT_VERSION, Kind, seal, unseal

PREEMPTED: Final = "preempted"
STOPPED: Final = "stopped"
SEALS: Final = (PREEMPTED, STOPPED)

PhaseName: TypeAlias = Literal["bootstrapping", "training", "notice", "preempted", "stopped"]
FenceReason: TypeAlias = Literal["loser", "superseded", "sealed", "terminal", "discard"]


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a prefix of the log means. Entry numbers are 0 where there is none."""

    generation: int = 0
    claim: int = 0
    """The claim entry of the current generation."""
    life: str = ""
    """The process life that made it."""
    machine: str = ""
    seal: str = ""
    """`preempted` or `stopped` once the current generation is sealed."""
    notice: tuple[int, float] | None = None
    """Entry number and seconds left of the current generation's latest notice."""
    terminal: str = ""
    """`complete`, `failed` or `aborted`."""
    snapshot: int = 0
    snapshot_generation: int = 0
    resumable: int = 0
    """The last snapshot with a resumable checkpoint."""
    retained: tuple[int, ...] = ()
    """Snapshots not forgotten, ascending."""
    pins: dict[str, int] = {}
    """Child run → snapshot of ours that it was forked from."""
    fork: tuple[str, int] | None = None
    """Parent run and its snapshot."""
    detached: bool = False
    intents: tuple[str, ...] = ()
    """Rent intents that are not released."""
    rented: dict[str, str] = {}
    """Intent → machine, not released."""
    claimed: dict[str, int] = {}
    """Machine → its latest generation."""
    fences: tuple[str, ...] = ()
    """Machines that never claim again."""
    discarded: tuple[str, ...] = ()
    """Machines whose unsaved work a user gave up."""

    @property
    def roots(self) -> frozenset[int]:
        """Snapshots whose data is alive: retained or pinned."""
        return frozenset(self.retained) | frozenset(self.pins.values())

    @property
    def free(self) -> bool:
        """Nobody holds the run: never claimed, or sealed."""
        return not self.generation or bool(self.seal)


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """What every entry has. `n` to `state` are filled in by the log when it is appended."""

    v: int = msgspec.field(default_factory=lambda: FORMAT_VERSION)
    """A factory, so that it is never omitted as a default: an older reader must see that it is older."""
    n: int = 0
    nonce: str = ""
    """Writer life and counter: tells one's own put after a lost reply."""
    by: str = ""
    """The writer's life."""
    wall: str = ""
    """ISO 8601, UTC; for people only."""
    state: State = State()


class Shape(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many processes and GPUs an attempt has; None where that cannot be told."""

    world: int | None = None
    """Processes that the command (or its environment) asks for."""
    gpus: int | None = None
    """That the command can see."""
    gpu_models: tuple[str, ...] = ()
    """Their models, each once."""


class Claim(Entry, frozen=True, kw_only=True, tag="claim"):
    """An attempt takes the run: generation + 1."""

    generation: int
    machine: str
    cause: str
    """`first`, `sealed@n`, `deadline@n`, `stale beat` or `takeover`."""
    base: int
    """The last snapshot below this entry."""
    lease_s: float
    """The holder promises to beat four times in this time."""
    host: str = ""
    pid: int = 0
    command: tuple[str, ...] = ()
    """One element: a `bash -c` string; more: an argument vector. Empty: none (a bare `sync`)."""
    shell: bool = False
    resume_args: str = ""
    """What the command gets more when there is a checkpoint."""
    cwd: str = ""
    """Relative to the workspace."""
    workspace: str = ""
    env: tuple[str, ...] = ()
    """Names of the variables SpotWarp sets, never values."""
    shape: Shape | None = None
    changes: tuple[str, ...] = ()
    """What differs from the attempt before, in words: command, path, shape."""


class Snapshot(Entry, frozen=True, kw_only=True, tag="snapshot"):
    """A commit: every object it names was acknowledged before."""

    generation: int
    manifest: str
    address: str
    """blake3-128 of the manifest object, hex."""
    base: int
    """The previous snapshot entry."""
    cls: str = "none"
    """`resumable`, `weights-only` or `none`: the best checkpoint in it."""
    checkpoint: str = ""
    """Path of the newest resumable checkpoint (undecodable bytes as surrogate escapes, backslash-escaped)."""
    step: int | None = None
    loss: float | None = None
    world_size: int | None = None
    """Of that checkpoint: the number of processes that wrote it."""
    files: int = 0
    bytes: int = 0
    read_bytes: int = 0
    stored_bytes: int = 0
    final: bool = False
    forgets: tuple[int, ...] = ()
    late: int = 0
    late_bytes: int = 0
    """Files (and bytes in them) that did not get to the store before the machine's end: with any, a final snapshot is
    no proof that everything is stored."""
    older: str = ""
    """Single-file checkpoints that are older in it than they were on disk, in words."""


class Phase(Entry, frozen=True, kw_only=True, tag="phase"):
    """Where the current generation is. `preempted` and `stopped` seal it."""

    generation: int
    phase: PhaseName
    seconds: float | None = None
    """Of a notice: seconds left."""
    snapshot: int = 0
    """Of a seal: its final snapshot."""
    exit: int | None = None
    reason: str = ""


class Published(Entry, frozen=True, kw_only=True, tag="published"):
    """A final snapshot was published."""

    generation: int
    snapshot: int
    target: str
    revision: str = ""


class Complete(Entry, frozen=True, kw_only=True, tag="complete"):
    """The run has finished."""

    generation: int
    snapshot: int
    exit: int = 0


class Failed(Entry, frozen=True, kw_only=True, tag="failed"):
    """The run was given up."""

    generation: int
    snapshot: int
    exit: int = 1
    reason: str = ""


class RentIntent(Entry, frozen=True, kw_only=True, tag="rent-intent"):
    """A machine is about to be rented."""

    intent: str
    label: str
    provider: str = ""
    offer: str = ""
    price_cap: float | None = None
    purpose: str = ""


class Rented(Entry, frozen=True, kw_only=True, tag="rented"):
    """A machine with an intent's label was seen at the provider."""

    intent: str
    machine: str


class Fence(Entry, frozen=True, kw_only=True, tag="fence"):
    """A machine may be ended, and never claims again."""

    machine: str
    reason: FenceReason
    evidence: int = 0


class Discarded(Entry, frozen=True, kw_only=True, tag="discarded"):
    """A user gave up what is only on a machine."""

    machine: str
    lost: str = ""
    user: str = ""


class Released(Entry, frozen=True, kw_only=True, tag="released"):
    """The provider says that nothing is left of an intent or machine."""

    intent: str = ""
    machine: str = ""
    words: str = ""


class Forget(Entry, frozen=True, kw_only=True, tag="forget"):
    """Snapshots whose retention ends. Final."""

    snapshots: tuple[int, ...]


class Pin(Entry, frozen=True, kw_only=True, tag="pin"):
    """A child run needs one of our snapshots."""

    child: str
    snapshot: int


class Unpin(Entry, frozen=True, kw_only=True, tag="unpin"):
    """It no longer does."""

    child: str


class Fork(Entry, frozen=True, kw_only=True, tag="fork"):
    """Entry 1 of a forked run."""

    parent: str
    snapshot: int


class Detach(Entry, frozen=True, kw_only=True, tag="detach"):
    """This run needs nothing of its parent any more."""


class Aborted(Entry, frozen=True, kw_only=True, tag="aborted"):
    """Entry 1 of a run that was pinned but never made."""


class Unknown(Entry, frozen=True, kw_only=True, tag="?"):
    """An entry of a newer SpotWarp: its effect is not understood, so nothing may be appended after it."""


AnyEntry: TypeAlias = (
    Claim
    | Snapshot
    | Phase
    | Published
    | Complete
    | Failed
    | RentIntent
    | Rented
    | Fence
    | Discarded
    | Released
    | Forget
    | Pin
    | Unpin
    | Fork
    | Detach
    | Aborted
)
HolderEntry: TypeAlias = Snapshot | Phase | Published | Complete | Failed

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEntry] = msgspec.json.Decoder(AnyEntry)


class _Peek(msgspec.Struct):
    v: int
    n: int
    kind: str
    nonce: str = ""
    by: str = ""
    wall: str = ""


_peek = msgspec.json.Decoder(_Peek)
KINDS: Final = frozenset(cls.__struct_config__.tag for cls in AnyEntry.__args__)


def encode(entry: Entry) -> bytes:
    """The object to create."""
    return seal(Kind.ENTRY, _encoder.encode(entry))


def decode(data: bytes, n: int, name: str) -> AnyEntry | Unknown:
    """Entry `n` from its object. A kind or version that is not ours comes back as `Unknown`.

    Raises `CorruptObject`, or `UnsupportedFormat` when even the frame is newer.
    """
    body = unseal(data, Kind.ENTRY, name)
    try:
        peek = _peek.decode(body)
        if peek.v > FORMAT_VERSION or peek.kind not in KINDS:
            return Unknown(v=peek.v, n=peek.n, nonce=peek.nonce, by=peek.by, wall=peek.wall)
        entry = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptObject(f"{name} is not a log entry: {error}") from error
    if entry.n != n:
        raise CorruptObject(f"{name} says that it is entry {entry.n}")
    return entry
