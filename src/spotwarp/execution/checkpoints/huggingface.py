"""The Hugging Face trainer's checkpoint: which files make the set, decided on facts alone.

Owns invariant I5 for this framework. Pure. The trainer writes weights, optimiser, scheduler, random state and, last,
`trainer_state.json`, straight into `checkpoint-<step>/` and never syncs. It resumes from a directory that lacks the
middle three without a word and with wrong weights, so some of them but not all is torn; none of them is a save of the
weights only. Beyond plain `optimizer.pt` it may leave the state to DeepSpeed (`global_step*/`, which holds the
scheduler too), FSDP (`optimizer_0/`, `optimizer.bin`), XLA (`rank*-of-*-optimizer.pt`) or SageMaker (`optimizer.pt_*`).
"""

from __future__ import annotations

import re
import sys

from spotwarp.execution.checkpoints.checkpoint import CheckpointClass
from spotwarp.execution.checkpoints.deepspeed import tag_faults
from spotwarp.execution.checkpoints.distributed import spread_faults
from spotwarp.execution.checkpoints.examine import INDEXES, STATE, Facts
from spotwarp.execution.checkpoints.members import show
from spotwarp.execution.checkpoints.verdict import Verdict, gaps, join

FRAMEWORK = "huggingface"
INCOMPLETE = "checkpoint-is-incomplete.txt"
_FSDP, _DEEPSPEED, _OPTIMIZER = "pytorch_model_fsdp", "global_step", "optimizer"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
_RNG = re.compile(r"rng_state_(\d+)\.pth")
_XLA = re.compile(r"rank(\d+)-of-(\d+)-optimizer\.pt")
_PIECE = re.compile(r"[^/]+/__(\d+)_\d+\.distcp|[^/]+/.*zero_pp_rank_(\d+)_mp_rank_\d+_optim_states\.pt")
_SHARD = re.compile(r"(model|pytorch_model)-(\d+)-of-(\d+)\.(safetensors|bin)")
_OURS = re.compile(
    r"(model|adapter_model)[-.0-9a-z_]*\.safetensors(\.index\.json)?|(pytorch_model|adapter_model)[-.0-9a-z_]*\.bin(\.index\.json)?"
    r"|(adapter_config|config|generation_config|tokenizer|tokenizer_config|special_tokens_map|vocab|added_tokens"
    r"|preprocessor_config|processor_config|video_preprocessor_config|quantize_config|trainer_state)\.json"
    r"|(tokenizer|spiece|sentencepiece\.bpe|spm|source|target)\.(model|spm)"
    r"|training_args\.bin|optimizer\.(pt|bin)|optimizer\.pt_.*|rank\d+-of-\d+-optimizer\.pt|scheduler\.pt|scaler\.pt"
    r"|rng_state(_\d+)?\.pth|user_content\.pt|latest|zero_to_fp32\.py|[^/]+\.(md|txt|jinja|tiktoken)"
    r"|(global_step|pytorch_model_fsdp|optimizer)[^/]*/.*|[^/]+/adapter_(model|config)\.(safetensors|bin|json)|[^/]+/README\.md"
    r"|additional_chat_templates/.*"
)
"""Every name that this trainer writes into a checkpoint; another name is another trainer's, or a user's."""


def classify(facts: Facts, *, step: int, world_size: int | None = None) -> Verdict:
    """Judge the directory `checkpoint-<step>`; `world_size` is the number of ranks it must have, if that is known."""
    if not facts.names:
        return Verdict(CheckpointClass.TORN, "the directory is empty")
    state = facts.documents.get(STATE)
    ranks = _ranks(facts)
    faults = [f"{INCOMPLETE} says that it was being written"] if INCOMPLETE in facts.names else []
    faults += [*facts.faults, *_weight_faults(facts), *_optimizer_faults(facts)]
    damaged, foreign = bool(faults), sorted(name for name in facts.names if not _OURS.fullmatch(name))
    if not _has_weights(facts):
        faults.append("it has no weights")
    saved = {
        "an optimizer": _has_optimizer(facts),
        "a scheduler": "scheduler.pt" in facts.names or bool(_folders(facts, _DEEPSPEED)),
        "a random state": bool(ranks) or "rng_state.pth" in facts.names,
    }
    loss, count = _last_loss(state), len(ranks) or (1 if "rng_state.pth" in facts.names else None)
    if not faults and not any(saved.values()) and "scaler.pt" not in facts.names:
        faults = _state_faults(state, step) if STATE in facts.names else []
        cls = CheckpointClass.TORN if faults else CheckpointClass.WEIGHTS_ONLY
        return Verdict(cls, join(faults) or "weights only: nothing to resume the optimizer from", loss, count)
    missing = " and ".join(what for what, there in saved.items() if not there)
    if missing:
        faults.append(f"it lacks {missing}")
    if STATE not in facts.names:
        faults.append(f"{STATE}, which is written last, is missing")
    elif STATE in facts.documents:
        faults += _state_faults(state, step)
    faults += _rank_faults(facts, ranks, _expected_ranks(state) if world_size is None else world_size, count)
    if faults and foreign and not damaged:
        # What it lacks for this trainer proves nothing if it is another's.
        return Verdict(CheckpointClass.UNKNOWN, f"of a layout that is not known here ({show(foreign[0])})", loss, count)
    return Verdict(CheckpointClass.TORN if faults else CheckpointClass.RESUMABLE, join(faults), loss, count)


def classify_model(facts: Facts) -> Verdict:
    """Judge a directory that holds a model and no step."""
    faults = [*facts.faults, *_weight_faults(facts)]
    if not (_has_weights(facts) or any(facts.tensors.values())):
        faults.append("it has no weights")
    if faults:
        return Verdict(CheckpointClass.TORN, join(faults))
    return Verdict(CheckpointClass.WEIGHTS_ONLY, "a model without a step: nothing to resume from")


def _weight_faults(facts: Facts) -> list[str]:
    """Why the weights that are there are not whole; nothing if they are."""
    indexes = sorted(n for n in facts.names if n.endswith(INDEXES) and "/" not in n)
    faults = [fault for name in indexes for fault in _index_faults(facts, name)]
    if not indexes and any(_SHARD.fullmatch(name) for name in facts.names):
        faults.append("the weights are in shards and their index is missing")
    adapters = sorted(n for n in facts.names if n.rpartition("/")[2] in _ADAPTERS and n.count("/") <= 1)
    for name in adapters:
        config = name.rpartition("/")[0] + "/adapter_config.json"
        if config.lstrip("/") not in facts.names:
            faults.append(f"{show(config.lstrip('/'))} is missing")
    for name in [*adapters, *_WEIGHTS]:
        if facts.tensors.get(name) == frozenset():
            faults.append(f"{show(name)} holds no tensors")
    return faults + [fault for name in _folders(facts, _FSDP) for fault in spread_faults(facts, f"{name}/")]


def _has_weights(facts: Facts) -> bool:
    """Whether there are weights that the trainer would load, whole or not."""
    top = any(n in _WEIGHTS or n.endswith(INDEXES) or n.startswith(_FSDP) for n in facts.names if "/" not in n)
    adapter = any(n.rpartition("/")[2] in _ADAPTERS for n in facts.names if n.count("/") <= 1)
    return top or adapter or bool(_folders(facts, _FSDP) or _folders(facts, _DEEPSPEED))


def _index_faults(facts: Facts, name: str) -> list[str]:
    if name not in facts.documents:
        return []  # it is a fault of its own already
    match facts.documents[name]:
        case {"weight_map": dict(shards)} if shards and all(isinstance(shard, str) for shard in shards.values()):
            pass
        case _:
            return [f"{show(name)} has no map of the weights"]
    faults = [f"{show(shard)} is missing" for shard in sorted(set(shards.values()) - facts.names)]
    for tensor, shard in shards.items():
        if shard in facts.tensors and tensor not in facts.tensors[shard]:
            return [*faults, f"{show(shard)} lacks tensor {show(tensor)}"]
    return faults


def _optimizer_faults(facts: Facts) -> list[str]:
    faults = [fault for name in _folders(facts, _OPTIMIZER) for fault in spread_faults(facts, f"{name}/")]
    xla = [match for name in facts.names if (match := _XLA.fullmatch(name))]
    for total in sorted({int(match[2]) for match in xla}):
        there = {int(match[1]) for match in xla if int(match[2]) == total}
        faults += [f"the optimizer of rank {rank} is missing" for rank in gaps(there, total)[:1]]
    for folder in _folders(facts, _DEEPSPEED):
        faults += _deepspeed_faults(facts, folder)
    return faults


def _deepspeed_faults(facts: Facts, folder: str) -> list[str]:
    faults = tag_faults([n for n in facts.names if n.startswith(f"{folder}/")], facts.worlds, f"{show(folder)}/")
    if "latest" not in facts.names:
        faults.append(f"latest, which is written after {show(folder)}/, is missing")
    elif facts.texts.get("latest") not in _folders(facts, _DEEPSPEED):
        faults.append(f"latest names {show(facts.texts.get('latest', ''))}, which is not there")
    return faults


def _has_optimizer(facts: Facts) -> bool:
    single = {"optimizer.pt", "optimizer.bin"} & facts.names
    parts = any(name.startswith("optimizer.pt_") or _XLA.fullmatch(name) for name in facts.names)
    return bool(single or parts or _folders(facts, _OPTIMIZER) or _folders(facts, _DEEPSPEED))


def _folders(facts: Facts, prefix: str) -> list[str]:
    return sorted({n.split("/")[0] for n in facts.names if n.startswith(prefix) and "/" in n})


def _ranks(facts: Facts) -> set[int]:
    return {int(match[1]) for name in facts.names if (match := _RNG.fullmatch(name))}


def _rank_faults(facts: Facts, ranks: set[int], expected: int | None, count: int | None) -> list[str]:
    if absent := gaps(ranks, max(ranks, default=-1) + 1):
        return [f"rng_state_{absent[0]}.pth is missing"]
    if count is not None and expected is not None and count != expected:
        return [f"it has the random state of {count} of {expected} ranks"]
    # Who wrote a piece of the shared state is a rank; not every rank needs to have written one.
    writers = {int(match[1] or match[2]) for name in facts.names if (match := _PIECE.fullmatch(name))}
    if expected is None and ranks and max(writers, default=0) > max(ranks):
        return [f"rng_state_{max(writers)}.pth is missing"]
    return []


def _state_faults(state: object, step: int) -> list[str]:
    inner = state.get("global_step") if isinstance(state, dict) else None
    if type(inner) is not int or inner < 0:
        return [f"{STATE} has no step"]
    # The trainer names the directory after this very number.
    return [] if inner == step else [f"{STATE} is of step {inner}, not {step}"]


def _expected_ranks(state: object) -> int | None:
    """The number of ranks, where a trainer writes it into its state; the stock one does not."""
    world = state.get("world_size", state.get("world")) if isinstance(state, dict) else None
    return world if type(world) is int else None


def _last_loss(state: object) -> float | None:
    history = state.get("log_history") if isinstance(state, dict) else None
    for entry in reversed(history if isinstance(history, list) else []):
        loss = entry.get("loss") if isinstance(entry, dict) else None
        if type(loss) is int or isinstance(loss, float):
            return float(loss) if abs(loss) <= sys.float_info.max else None
    return None
