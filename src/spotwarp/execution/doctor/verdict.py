"""What the facts that `doctor` gathers mean: ok, warn or fail, in words, with what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from spotwarp.execution.origin import BEHIND_HINT
from spotwarp.execution.sameness.hardware import Gpus
from spotwarp.model import human_bytes, human_seconds
from spotwarp.persistence.store.keylife import KeyLife
from spotwarp.persistence.store.probe import ProbeResult
from spotwarp.persistence.store.rate import Rates

Level = Literal["ok", "warn", "fail"]

NOTICES_S = (5.0, 30.0, 120.0)
"""RunPod's, the usual one, AWS's."""
REQUESTS = 6
"""A snapshot's own: manifest, entry, and reading both back; as many times the latency is no time for data."""
SKEW_WARN_S, SKEW_FAIL_S = 5.0, 600.0
KEY_SOON_S = 3600.0
SHM_LEAST, ROOM_LEAST, FILES_LEAST = 1 << 30, 1 << 30, 10_000
NOFILE_LEAST = 4096
SLOW_BYTES_S = 4 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """One finding."""

    name: str
    level: Level
    text: str
    hint: str = ""


def target(found: ProbeResult, *, single_writer: bool = False) -> Line:
    """What the store was seen to do. `single_writer`: the user answers for it that only one machine ever writes."""
    atomic = found.create_if_absent == "atomic"
    alone = f"create-if-absent is {found.create_if_absent}: two machines could write one run and destroy it"
    if not (atomic or single_writer):
        return Line("store", "fail", alone, "Use another store, or `single_writer` where only ever one machine writes.")
    if not (found.read_back and found.listable and found.distinguishes_case):
        return Line("store", "fail", "; ".join(found.details) or "it does not give back what it took", "Do not use it.")
    if not atomic:
        return Line("store", "warn", f"{alone}, and `single_writer` says that there is one", "See that it stays so.")
    does = "write, read back, list, create-if-absent under a race"
    if not found.deletable:
        hint = "Without the right to delete, old data is kept for ever; prune needs another key."
        return Line("store", "warn", f"{does}; no right to delete", hint)
    return Line("store", "ok", f"{does}, delete")


def clock(rates: Rates) -> Line:
    """This machine's clock against the store's."""
    off = abs(rates.clock_offset_s)
    if off <= rates.clock_within_s + 1.0:
        return Line("clock", "ok", f"within {max(1.0, rates.clock_within_s):.0f} s of the store's")
    text = f"the store's is {off:.0f} s {'ahead' if rates.clock_offset_s > 0 else 'behind'}"
    level: Level = "fail" if off >= SKEW_FAIL_S else "warn" if off >= SKEW_WARN_S else "ok"
    hint = "Set it (NTP): a store refuses signatures that are minutes off, and a notice's deadline would be misread."
    return Line("clock", level, text, hint if level != "ok" else "")


def key(life: KeyLife, now: datetime) -> Line:
    """How long the key is good for."""
    if not life.temporary:
        return Line("key", "ok", f"{life.source}; it does not expire by itself")
    if life.expires is None:
        if life.renewed:
            return Line("key", "ok", f"{life.source}; temporary, and read anew when it has expired")
        hint = "Use a profile with credential_process, or the machine's role, which can be renewed while a run goes on."
        return Line("key", "warn", f"{life.source}; temporary, nobody says until when, and cannot be renewed", hint)
    left = (life.expires - now).total_seconds()
    if left <= 0:
        return Line("key", "fail", f"{life.source}; it expired {human_seconds(-left)} ago", "Get a new one.")
    text = f"{life.source}; good for {human_seconds(left)}" + (", then read anew" if life.renewed else "")
    if life.renewed:
        return Line("key", "ok", text)
    hint = "When it ends, nothing more is stored until the run is started again with another."
    return Line("key", "warn" if left < 24 * KEY_SOON_S else "ok", text, hint)


def encryption(encrypted: bool | None, key: bool) -> Line:
    """Whether the repository is encrypted (None: there is none yet), and the key here opens it, if there is one."""
    if encrypted:
        return Line("encryption", "ok", "AES-256-GCM; the key given here opens it")
    if encrypted is None:
        there = ", and a key for it is given here" if key else ""
        return Line("encryption", "ok", f"`spotwarp init --encrypt` would make an encrypted repository{there}")
    return Line("encryption", "ok", "none: whoever can read the store can read what is in it")


def behind(words: str) -> Line:
    """The store lacks the snapshot that the workspace stems from."""
    return Line("run log", "fail", words, BEHIND_HINT)


def rate(rates: Rates | None, why: str = "") -> Line:
    """The measured rate; None, with the reason, where it could not be measured."""
    if rates is None:
        return Line("rate", "warn", f"not measured: {why}")
    text = (
        f"{human_bytes(rates.up_bytes_s)}/s up, {human_bytes(rates.down_bytes_s)}/s down "
        f"({human_bytes(rates.bytes)} each way), {rates.latency_s * 1000:.0f} ms for a small object"
    )
    if rates.up_bytes_s < SLOW_BYTES_S:
        return Line("rate", "warn", text, "Choose a bucket in the machine's own region.")
    return Line("rate", "ok", text)


@dataclass(frozen=True, slots=True)
class Load:
    """What would have to be stored at a notice: bytes not stored now, and the size of a checkpoint saved then."""

    dirty: int
    checkpoint: int


def room_in(notice_s: float, rates: Rates, *, share: float, most_s: float) -> int:
    """Bytes that a final sync can store at a notice of so many seconds."""
    sync_s = min(notice_s * share, most_s) - REQUESTS * rates.latency_s
    return max(0, int(sync_s * rates.up_bytes_s))


def notice(notice_s: float, rates: Rates, load: Load, *, share: float, most_s: float) -> Line:
    """Whether what is not stored fits into the part of a notice that is kept for the final sync."""
    fits = room_in(notice_s, rates, share=share, most_s=most_s)
    now, with_save = load.dirty, load.dirty + load.checkpoint
    text = f"{human_bytes(fits)} can be stored; not stored now: {human_bytes(now)}, {_fits(now, fits)}"
    if load.checkpoint:
        text += f"; with another checkpoint of {human_bytes(load.checkpoint)}: {_fits(with_save, fits)}"
    hint = "Save (or sync) more often, so that less is left for the end; what fits is stored, newest checkpoint first."
    ok = with_save <= fits
    return Line(f"notice {notice_s:.0f} s", "ok" if ok else "warn", text, "" if ok else hint)


def _fits(need: int, room: int) -> str:
    return "fits" if need <= room else f"does not fit, {human_bytes(need - room)} short"


def disk(free: int, inodes: int | None, need: int, files: int) -> Line:
    """Room on the workspace's disk for what a restore would bring. `inodes` None: no limit."""
    text = f"{human_bytes(free)} free" + (f", {inodes} files more" if inodes is not None else "")
    text += f"; a restore needs {human_bytes(need)} in {files} files" if need or files else "; nothing to restore"
    if need > free or (inodes is not None and files > inodes):
        return Line("disk", "fail", text, "Use a larger disk, or restore parts: `spotwarp restore --to DIR PATHS`.")
    low = free - need < ROOM_LEAST or (inodes is not None and inodes - files < FILES_LEAST)
    return Line("disk", "warn" if low else "ok", text, "A full disk is what breaks a save." if low else "")


def gpus(found: Gpus) -> Line:
    """What the command would see."""
    if found.count is None:
        return Line("GPU", "warn", "not NVIDIA's: how many there are cannot be told")
    if not found.count:
        return Line("GPU", "warn", "none is visible", "nvidia-smi, and CUDA_VISIBLE_DEVICES, say why.")
    driver = f", driver {found.driver}" if found.driver else ""
    return Line("GPU", "ok", f"{found.count} × {', '.join(found.kinds)}{driver}")


def sources(why: str, grace_s: float, watched: Sequence[str], refused: Mapping[str, str]) -> Line:
    """Who would tell that the machine ends; `refused`: who was asked for and cannot be watched, and why."""
    text = f"SIGTERM ({grace_s:g} s: {why})" + "".join(f", {name}" for name in watched)
    text += "".join(f"; {name} cannot be watched: {words}" for name, words in refused.items())
    return Line("notices", "warn" if refused else "ok", text, "Mend the options notices, notice_*." if refused else "")


def secrets(names: Sequence[str], missing: Sequence[str]) -> Line:
    """The variables that the command needs."""
    if missing:
        hint = "`run` refuses to start without them; set them in its environment."
        return Line("secrets", "fail", f"not set: {', '.join(missing)}", hint)
    return Line("secrets", "ok", f"{', '.join(names)}: set" if names else "none are named in `secrets:`")


def told(names: Sequence[str], wrong: Sequence[str]) -> Line:
    """Who is told of trouble. Nobody is tried."""
    hint = "Option `notify`: a command or a web address that is told of a stalled backup, preemptions and the end."
    if wrong:
        return Line("notify", "warn", "; ".join([*wrong, *names]), hint)
    return Line("notify", "ok", "; ".join(names) if names else "nobody is told", "" if names else hint)


def shm(size: int | None) -> Line:
    """Shared memory, which data loaders live on."""
    if size is None:
        return Line("shared memory", "warn", "there is no /dev/shm", "Data loaders with worker processes need it.")
    low = size < SHM_LEAST
    hint = "Data loaders with worker processes need more: docker run --shm-size=8g, or num_workers=0."
    return Line("shared memory", "warn" if low else "ok", human_bytes(size), hint if low else "")


def nofile(soft: int) -> Line:
    """Descriptors that a process may have open."""
    low = 0 <= soft < NOFILE_LEAST
    words = "no limit" if soft < 0 else f"{soft} open files"
    return Line("ulimit -n", "warn" if low else "ok", words, "ulimit -n 65536 before the run." if low else "")


def python(version: str, executable: str) -> Line:
    """What SpotWarp itself runs on."""
    return Line("python", "ok", f"{version} ({executable})")
