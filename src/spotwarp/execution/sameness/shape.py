"""The shape of an attempt: how many processes its command starts, on how many GPUs, and whether a checkpoint fits it.

Pure. Knows the launchers' flags (torchrun, accelerate, deepspeed) and the usual variables; what it cannot tell it
leaves unknown, and what is unknown is never a reason to refuse.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spotwarp.persistence.runlog.entry import Shape

VARIABLES = ("WORLD_SIZE", "NGPU", "SLURM_NTASKS")
"""Where the command says nothing, the first of these that is a number."""

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_MENTIONED = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*))?\})")
_ENDS = frozenset({";", "&&", "||", "|", "&"})


class _Flags(dict[str, str]):
    """Flags by name, with dashes for underscores."""

    def number(self, *names: str, default: int | None) -> int | None:
        """The value of the first of these flags that was given; None for one that is no number."""
        for name in names:
            if name in self:
                return int(self[name]) if self[name].isdecimal() else None
        return default


_Launcher: TypeAlias = Callable[[_Flags, int | None], int | None]


def world_of(words: Sequence[str], *, shell: bool, env: Mapping[str, str], gpus: int | None) -> int | None:
    """How many processes the command starts, None where neither it nor its environment says so."""
    tokens = _tokens(words[0]) if shell and words else list(words)
    assigned: dict[str, str] = {}
    for at, token in enumerate(tokens):
        if (match := _ASSIGNED.fullmatch(token)) is not None:
            assigned[match[1]] = match[2]
        launcher = _launcher(tokens, at)
        if launcher is not None:
            known = {**env, **assigned}
            rest = tokens[at + 1 + (launcher is _accelerate) :]
            own = rest[: next((i for i, word in enumerate(rest) if word in _ENDS), len(rest))]
            return launcher(_flags(own, known), gpus)
    for name in VARIABLES:
        if (said := assigned.get(name, env.get(name, ""))).isdecimal() and int(said) > 0:
            return int(said)
    return None


def _tokens(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:  # a quote that is not closed: the shell will say so
        return text.split()


def _launcher(tokens: Sequence[str], at: int) -> _Launcher | None:
    name = tokens[at].rpartition("/")[2]
    if name == "torchrun" or name in ("torch.distributed.run", "torch.distributed.launch"):
        return _torchrun
    if name == "accelerate" and tokens[at + 1 : at + 2] == ["launch"]:
        return _accelerate
    return _deepspeed if name == "deepspeed" else None


def _torchrun(flags: _Flags, gpus: int | None) -> int | None:
    here = flags.get("nproc-per-node", "1")
    each = gpus if here in ("gpu", "auto") else int(here) if here.isdecimal() else None
    nodes = flags.number("nnodes", default=1)
    return each * nodes if each and nodes else None


def _accelerate(flags: _Flags, gpus: int | None) -> int | None:
    del gpus  # its own default is in a file elsewhere
    return flags.number("num-processes", "n", default=None)


def _deepspeed(flags: _Flags, gpus: int | None) -> int | None:
    each = flags.number("num-gpus", default=gpus)
    nodes = flags.number("num-nodes", default=1)
    return each * nodes if each and nodes else None


def _flags(tokens: Sequence[str], env: Mapping[str, str]) -> _Flags:
    """The launcher's own flags: those before the script."""
    found = _Flags()
    at = 0
    while (at < len(tokens) and tokens[at].startswith("-")) or tokens[at : at + 1] == ["launch"]:
        name, equals, value = tokens[at].lstrip("-").partition("=")
        if not equals and at + 1 < len(tokens) and not tokens[at + 1].startswith("-"):
            value = tokens[at + 1]
            at += name not in _SWITCHES
        found[name.replace("_", "-")] = _expanded(value, env)
        at += 1
    return found


_SWITCHES = frozenset(
    {"standalone", "no-python", "m", "module", "multi-gpu", "cpu", "tpu", "use-deepspeed", "use-fsdp", "debug", "quiet",
     "use-env"}
)  # fmt: skip
"""Flags without a value: what follows is the next flag or the script."""


def _expanded(text: str, env: Mapping[str, str]) -> str:
    return _MENTIONED.sub(lambda m: env.get(m[1] or m[2], m[3] or ""), text)


@dataclass(frozen=True, slots=True)
class Fit:
    """How an attempt's shape stands to what was: why it may not resume (empty: it may), and what else is to be said."""

    refused: str = ""
    changes: tuple[str, ...] = ()


def fit(was: Shape | None, now: Shape, *, checkpoint: bool, ranks: int | None) -> Fit:
    """Compare. `checkpoint`: there is one to resume from; `ranks` is how many processes wrote it, if that is known."""
    before = was or Shape()
    changes = []
    if before.world and now.world and before.world != now.world:
        changes.append(f"processes: was {before.world}, is {now.world}")
    if before.gpus is not None and now.gpus is not None and before.gpus != now.gpus:
        changes.append(f"GPUs: was {before.gpus}, is {now.gpus}")
    if before.gpu_models and now.gpu_models and before.gpu_models != now.gpu_models:
        changes.append(f"GPU: was {', '.join(before.gpu_models)}, is {', '.join(now.gpu_models)}")
    return Fit(_refused(before, ranks or before.world, now) if checkpoint else "", tuple(changes))


def _refused(before: Shape, wrote: int | None, now: Shape) -> str:
    if wrote and now.world and wrote != now.world:
        return f"it was written by {wrote} process(es), this command starts {now.world}"
    if before.gpus is None or now.gpus is None or before.gpus == now.gpus:
        return ""
    if wrote and wrote == now.world and now.gpus >= min(wrote, before.gpus):
        return ""  # as many processes, and a GPU for each that had one
    return f"the run was on {before.gpus} GPU(s), this machine has {now.gpus}"
