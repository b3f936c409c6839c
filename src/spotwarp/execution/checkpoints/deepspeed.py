"""DeepSpeed's checkpoints: a tag `global_step<n>` with every rank's files, and `latest` beside it, written last.

Owns which files make a tag whole (I5). Pure. The model states say how many ranks there were; where they do not (old
versions), a missing last rank shows by nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from spotwarp.execution.checkpoints.checkpoint import CheckpointClass
from spotwarp.execution.checkpoints.examine import Facts
from spotwarp.execution.checkpoints.verdict import Verdict, gaps, join

FRAMEWORK = "deepspeed"
_ZERO = re.compile(r"(?:.*/)?[^/]*zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_ZERO3 = re.compile(r"(?:.*/)?zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt")
_MODEL = re.compile(r"(?:.*/)?mp_rank_(\d+)_model_states\.pt")


def classify_tag(facts: Facts) -> Verdict:
    """Judge a directory `global_step<n>` that lies in no other checkpoint."""
    known = any(name.endswith("_states.pt") for name in facts.names)
    if not known and not facts.faults:
        return Verdict(CheckpointClass.UNKNOWN if facts.names else CheckpointClass.TORN, "it has no model states")
    faults = [*facts.faults, *tag_faults(facts.names, facts.worlds, "the tag")]
    return Verdict(CheckpointClass.TORN if faults else CheckpointClass.RESUMABLE, join(faults))


def tag_faults(names: Iterable[str], worlds: Mapping[str, Mapping[str, int]], place: str) -> list[str]:
    """Why the files `names` are not all of a tag; `worlds` is what the model states among them say."""
    inside = list(names)
    faults = []
    if not any(name.endswith("_model_states.pt") for name in inside):
        faults.append(f"{place} has no model states")
    said = [worlds[name] for name in inside if name in worlds]
    dp = max((world.get("dp_world_size", 0) for world in said), default=0)
    mp = max((world.get("mp_world_size", 0) for world in said), default=0)
    slices = {int(match[1]) for name in inside if (match := _MODEL.fullmatch(name))}
    if slices:
        faults += [f"{place} lacks model slice {number}" for number in gaps(slices, max(mp, max(slices) + 1))]
    for grammar, what in ((_ZERO, "optimizer"), (_ZERO3, "model states")):
        pairs = {(int(m[1]), int(m[2])) for name in inside if (m := grammar.fullmatch(name))}
        shards = {shard for _, shard in pairs}
        if shards and what == "optimizer":
            faults += [f"{place} lacks the optimizer of model slice {n}" for n in gaps(shards, max(mp, 1))]
        for shard in sorted(shards):
            there = {rank for rank, of in pairs if of == shard}
            faults += [f"{place} lacks the {what} of rank {rank}" for rank in gaps(there, max(dp, max(there) + 1))]
    if any(_ZERO3.fullmatch(name) for name in inside) and not any(_ZERO.fullmatch(name) for name in inside):
        faults.append(f"{place} lacks the optimizer of every rank")
    return faults
