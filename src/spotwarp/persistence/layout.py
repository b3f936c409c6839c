"""Every key in the bucket is made here. Normative: docs/format.md.

Keys hold nothing of the user's but the run's name, so neither the length nor the letters of a workspace path can
matter to a store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spotwarp.clock import Rng

CONFIG: Final = "config"
BALLAST: Final = "ballast"
NAMES: Final = "names"
RUNS: Final = "runs"
KEYS: Final = "keys"
_PACKS: Final = "packs"


def name_key(run: str) -> str:
    """The object that makes a run known without listing its data."""
    return f"{NAMES}/{run}"


def keys_key(n: int) -> str:
    """Set `n` of an encrypted repository's wrapped keys; the first is 1."""
    return f"{KEYS}/{n:010d}"


def run_prefix(run: str) -> str:
    """Everything of one run."""
    return f"{RUNS}/{run}"


def log_prefix(run: str) -> str:
    """All entries of a run's log."""
    return f"{RUNS}/{run}/log"


def log_key(run: str, n: int) -> str:
    """Entry `n` of a run's log; the first is 1."""
    return f"{RUNS}/{run}/log/{n:010d}"


def hint_key(run: str) -> str:
    """The number that says where the log's tail was seen."""
    return f"{RUNS}/{run}/hint"


def packs_prefix(run: str) -> str:
    """All packs of a run."""
    return f"{RUNS}/{run}/{_PACKS}"


def pack_key(run: str, pack: str) -> str:
    """One pack; `pack` is `<generation>-<random>`."""
    return f"{RUNS}/{run}/{_PACKS}/{pack}"


def manifests_prefix(run: str) -> str:
    """All manifests of a run."""
    return f"{RUNS}/{run}/manifests"


def manifest_key(run: str, manifest: str) -> str:
    """One manifest; `manifest` is `<generation>-<random>`."""
    return f"{RUNS}/{run}/manifests/{manifest}"


def beats_prefix(run: str) -> str:
    """All heartbeats of a run."""
    return f"{RUNS}/{run}/beats"


def beat_key(run: str, life: str) -> str:
    """The heartbeat of one process life."""
    return f"{RUNS}/{run}/beats/{life}"


def telemetry_prefix(run: str) -> str:
    """All telemetry of a run."""
    return f"{RUNS}/{run}/telemetry"


def telemetry_key(run: str, generation: int, k: int) -> str:
    """Segment `k` of a generation's telemetry; the first is 0."""
    return f"{RUNS}/{run}/telemetry/{generation:06d}-{k:08d}"


def new_object_id(generation: int, rng: Rng) -> str:
    """A pack's or manifest's name: its generation and 128 random bits, used once (P1)."""
    return f"{generation}-{rng.token(16)}"


def generation_of(object_id: str) -> int | None:
    """The generation an id was made in, or None when it is not an id of ours."""
    head, dash, tail = object_id.partition("-")
    return int(head) if dash and tail and head.isascii() and head.isdigit() else None


def is_pack(key: str) -> bool:
    """Whether a pack lies there."""
    parts = key.split("/")
    return len(parts) == 4 and parts[0] == RUNS and parts[2] == _PACKS


def renamed(key: str, rename: Callable[[str], str | None]) -> str | None:
    """`key` with `rename` done to the run's name in it, if there is one; None when `rename` gives none."""
    top, slash, rest = key.partition("/")
    if top not in (NAMES, RUNS) or not rest:
        return key
    run, deeper, below = rest.partition("/")
    name = rename(run)
    return None if name is None else top + slash + name + deeper + below
