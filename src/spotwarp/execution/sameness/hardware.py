"""The GPUs that a command can see here: from /proc where the driver shows them, else from nvidia-smi.

Looks only. An NVIDIA driver's absence means no GPU; where another maker's devices are, their number is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spotwarp.execution.process.brief import run_briefly

SMI_S = 10.0
_LISTED = re.compile(r"^GPU \d+: (?P<model>.+?)(?: \(UUID: .*\))?$")


@dataclass(frozen=True, slots=True)
class Gpus:
    """How many a command sees (None: cannot be told), their models in order, the driver's version if known."""

    count: int | None
    models: tuple[str, ...] = ()
    driver: str = ""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Each model once."""
        return tuple(dict.fromkeys(self.models))


def gpus(env: Mapping[str, str], *, root: Path = Path("/")) -> Gpus:
    """What is visible to a command started with `env`; `root` is where /proc and /dev are."""
    models = _from_proc(root)
    if not models:
        models = _from_smi(env)
    if not models and (root / "dev/kfd").exists():
        return Gpus(None)
    return Gpus(visible(len(models), env), tuple(models), _driver(root))


def visible(present: int, env: Mapping[str, str]) -> int:
    """How many of the GPUs present CUDA shows: all, or those listed before the first that is not there. Pure."""
    listed = env.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return present
    names = [name.strip() for name in listed.split(",")]
    count = 0
    for name in names:
        if not name or name.startswith("-") or (name.isdecimal() and int(name) >= present):
            break
        count += 1
    return count if any(name.startswith("MIG") for name in names) else min(count, present)


def _from_proc(root: Path) -> list[str]:
    found = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        model = next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("Model")), "")
        found.append(model or "unknown")
    return found


def _from_smi(env: Mapping[str, str]) -> list[str]:
    ran = run_briefly(["nvidia-smi", "-L"], env=env, timeout_s=SMI_S)
    return listed(ran.out.decode(errors="replace")) if ran.code == 0 else []


def listed(text: str) -> list[str]:
    """The models that `nvidia-smi -L` lists. Pure."""
    return [match["model"] for line in text.splitlines() if (match := _LISTED.match(line.rstrip()))]


def _driver(root: Path) -> str:
    try:
        text = (root / "proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return ""
    match = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return match[1] if match else ""
