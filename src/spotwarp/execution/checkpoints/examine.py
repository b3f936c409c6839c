"""Every file of a checkpoint read by the rules of its name, into plain facts.

Owns which name means which format. The formats are in `archive`, `safetensors` and `pickles`; what the facts
mean is decided in `huggingface`. A file nobody knows is counted and not judged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from spotwarp.execution.checkpoints.archive import check_archive, record
from spotwarp.execution.checkpoints.members import Member, Source, Unsound, opened, show
from spotwarp.execution.checkpoints.pickles import (
    LEGACY_MAGIC,
    check_legacy,
    check_pickle,
    counts_in,
    distributed_sizes,
)
from spotwarp.execution.checkpoints.safetensors import tensors

STATE = "trainer_state.json"
INDEXES = (".safetensors.index.json", ".bin.index.json")
MAX_JSON = 256_000_000
_FULLY_PARSED = 16_000_000
_WORLD = frozenset({"dp_world_size", "mp_world_size"})
_TORCH_SURE = re.compile(
    r"(?:pytorch_model.*|adapter_model|optimizer|training_args)\.bin|(?:optimizer|scheduler|scaler)\.pt"
    r"|optimizer\.pt_.*|rank\d+-of-\d+-optimizer\.pt|rng_state(?:_\d+)?\.pth|.*_(?:model|optim)_states\.pt"
)
_TORCH_MAYBE = re.compile(r".*\.(?:pt|pth)")
_JSON = re.compile(
    r"(?:adapter_|generation_|tokenizer_|preprocessor_|processor_)?config\.json|tokenizer\.json|vocab\.json"
    r"|special_tokens_map\.json|added_tokens\.json"
)


@dataclass(slots=True)
class Facts:
    """What the files of one directory are. Names are relative to it, with `/`."""

    names: frozenset[str]
    tensors: dict[str, frozenset[str]] = field(default_factory=dict)
    """Per whole safetensors file, the names in it."""
    documents: dict[str, object] = field(default_factory=dict)
    """The trainer's state and the indexes, parsed."""
    distributed: dict[str, dict[str, int]] = field(default_factory=dict)
    """Per `.metadata` file, the least size in bytes of each data file beside it."""
    optimizers: set[str] = field(default_factory=set)
    """The `.metadata` files that speak of an optimizer's state."""
    sizes: dict[str, int] = field(default_factory=dict)
    worlds: dict[str, dict[str, int]] = field(default_factory=dict)
    """Per DeepSpeed file of model states, how many ranks it says there were (`dp_world_size`, `mp_world_size`)."""
    texts: dict[str, str] = field(default_factory=dict)
    """DeepSpeed's `latest` pointers."""
    faults: list[str] = field(default_factory=list)
    """Why files are not what their names promise."""


def examine(members: list[Member]) -> Facts:
    """Read every known file of a directory. Never raises `Unsound`: faults are facts."""
    facts = Facts(names=frozenset(member.name for member in members))
    for member in members:
        facts.sizes[member.name] = member.size
        read = _reader(member.name)
        if read is None:
            continue
        try:
            with opened(member) as source:
                read(facts, source)
        except Unsound as unsound:
            facts.faults.append(str(unsound))
    return facts


def _reader(name: str) -> Callable[[Facts, Source], None] | None:
    leaf = name.rpartition("/")[2]
    if leaf.endswith(".safetensors"):
        return _read_tensors
    if leaf == STATE or leaf.endswith(INDEXES):
        return _read_document
    if leaf == ".metadata":
        return _read_metadata
    if leaf == "latest":
        return _read_pointer
    if leaf.endswith(".distcp"):
        return _read_distributed
    if _JSON.fullmatch(leaf):
        return _read_json
    if leaf.endswith("_model_states.pt"):
        return _read_model_states
    if _TORCH_SURE.fullmatch(leaf):
        return _read_torch
    return _read_maybe_torch if _TORCH_MAYBE.fullmatch(leaf) else None


def _read_tensors(facts: Facts, source: Source) -> None:
    facts.tensors[source.name] = tensors(source)


def _read_document(facts: Facts, source: Source) -> None:
    facts.documents[source.name] = _json(source)


def _read_metadata(facts: Facts, source: Source) -> None:
    facts.distributed[source.name], optimizer = distributed_sizes(source)
    if optimizer:
        facts.optimizers.add(source.name)


def _read_pointer(facts: Facts, source: Source) -> None:
    facts.texts[source.name] = source.read(0, min(source.size, 4096)).decode("utf-8", "replace").strip()


def _read_distributed(_: Facts, source: Source) -> None:
    hole = source.hole()
    if hole is not None:
        raise Unsound(f"{show(source.name)} has a hole at byte {hole}: that part was never written")


def _read_json(_: Facts, source: Source) -> None:
    if source.size <= _FULLY_PARSED:
        _json(source)
        return
    # Tens of MB of vocabulary at every look would disturb training; both ends tell a cut from a whole.
    first, last = source.read(0, 64).lstrip()[:1], source.read(source.size - 64, 64).rstrip()[-1:]
    if first + last not in (b"{}", b"[]"):
        raise Unsound(f"{show(source.name)} is cut short")


def _read_torch(_: Facts, source: Source) -> None:
    start = source.read(0, min(source.size, len(LEGACY_MAGIC)))
    if start.startswith(b"PK"):
        check_archive(source)
    elif start == LEGACY_MAGIC:
        check_legacy(source)
    elif start.startswith(b"\x80"):
        check_pickle(source)
    elif not start.strip(b"\0"):
        raise Unsound(f"{show(source.name)} is empty" if not source.size else f"{show(source.name)} starts with zeros")
    else:
        raise Unsound(f"{show(source.name)} is no torch file")


def _read_model_states(facts: Facts, source: Source) -> None:
    _read_torch(facts, source)
    if source.read(0, min(source.size, 2)) == b"PK":
        facts.worlds[source.name] = counts_in(record(source, b"data.pkl"), _WORLD, source.name)


def _read_maybe_torch(facts: Facts, source: Source) -> None:
    # Of a name that is not the trainer's only a torn archive is a fault; anything may be called `.pt`.
    if source.read(0, min(source.size, 4)) == b"PK\3\4":
        _read_torch(facts, source)


def _json(source: Source) -> object:
    if source.size > MAX_JSON:
        raise Unsound(f"{show(source.name)} is too large to be read: {source.size} bytes")
    try:
        return json.loads(source.read(0, source.size))
    except (ValueError, RecursionError) as error:
        raise Unsound(f"{show(source.name)} is cut short or damaged: it is no JSON") from error
