"""What the syncs of a workspace took, kept for the ones to come; and how the next one is done because of it.

The numbers live in a small local file that may be lost: the usual ones then hold until there are new ones. Owns the
reckoning; the choice itself is `persistence.backup.policy`'s.
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Final, cast

import msgspec

from spotwarp.clock import Clock
from spotwarp.config import Config
from spotwarp.errors import WorkspaceFault
from spotwarp.execution import localstate
from spotwarp.model import human_bytes
from spotwarp.persistence.backup import BackupOptions, Mode, Uploaded, pack_size
from spotwarp.persistence.backup.concurrency import START
from spotwarp.persistence.backup.policy import MODES, Measured, Speed, choose
from spotwarp.persistence.parallel import default_workers
from spotwarp.persistence.repository import Repository
from spotwarp.persistence.store.metered import Used, usage_of

FILE: Final = "cache/measured.json"
_KEPT: Final = 8
"""Syncs by which the size of a save is told."""
_A_SAVE: Final = 1 << 20
"""So many new bytes are a save rather than a line of a log."""
_TELLING: Final = 64 << 20
"""So many new bytes tell how fast coding is."""
_NEW: Final = 0.8
"""Of what was read, when so much was new: what is known already is only hashed."""


class Known(msgspec.Struct, frozen=True, omit_defaults=True):
    """As it is kept. Rates in bytes a second."""

    repository: str
    up_bytes_s: float | None = None
    speeds: dict[str, tuple[float, float]] = {}
    """By mode: raw bytes a second of one core, and coded bytes for each raw one."""
    saves: tuple[int, ...] = ()
    """New bytes of the last syncs that had many."""
    interval_s: float | None = None
    """Between the last two large ones of these."""
    uploads: int = START


class Measuring:
    """One workspace's numbers. Used under the syncer's lock."""

    def __init__(
        self, workspace: Path, repository: Repository, config: Config, clock: Clock, *, notice_s: float | None
    ) -> None:
        """`notice_s` is what a notice leaves for storing."""
        self._path = localstate.runtime(workspace) / FILE
        self._config, self._clock, self._notice_s = config, clock, notice_s
        self._usage = usage_of(repository.store)
        self._began = Used()
        self._local = repository.store.url.startswith("file:")
        identity, known = repository.identity.id, localstate.load(self._path, Known)
        self.known = known if known is not None and known.repository == identity else Known(identity)
        self._saved_at: float | None = None
        self.choice = choose(self._measured(), told=self._told())

    def options(self, *, hurried: bool = False) -> BackupOptions:
        """How the next backup uses the machine; `hurried`: there is a deadline, and with it no limit."""
        self.choice = choose(self._measured(), told=self._told(), before=self.choice.mode)
        self._began = self._used()
        cpu = None if hurried else self._config.limits.cpu
        return BackupOptions(
            workers=min(default_workers(), math.ceil(cpu)) if cpu else default_workers(),
            cores=cpu,
            coding=self.choice.mode,
            uploads=self.known.uploads,
            pack_size=pack_size(self._slowest()),
        )

    def took(self, uploaded: Uploaded, *, first: bool) -> None:
        """Take in a backup that was committed. The `first` one of a run is no save."""
        raw, stored = _new(uploaded)
        known = self.known
        if (up := (self._used() - self._began).up_bytes_s) is not None:
            known = msgspec.structs.replace(known, up_bytes_s=_mean(known.up_bytes_s, up))
        if not first and raw >= _TELLING and raw >= _NEW * uploaded.read_bytes and uploaded.cpu_s > 0:
            rate, ratio = known.speeds.get(self.choice.mode, (None, None))
            now = _mean(rate, raw / uploaded.cpu_s), _mean(ratio, stored / raw)
            known = msgspec.structs.replace(known, speeds={**known.speeds, self.choice.mode: now})
        if not first and raw >= _A_SAVE:
            known = self._saved(known, raw)
        known = msgspec.structs.replace(known, uploads=uploaded.uploads)
        if known != self.known:
            self.known = known
            with contextlib.suppress(WorkspaceFault):  # a cache: told by whatever else needs the disk
                localstate.save(self._path, known)

    def facts(self) -> dict[str, str | float | None]:
        """For the heartbeat and `status`."""
        speed = self.known.speeds.get(self.choice.mode, (None, None))
        return {
            "coding": self.choice.mode,
            "coding_why": self.choice.why,
            "coding_bytes_s": speed[0],
            "coding_ratio": speed[1],
            "up_bytes_s": self.known.up_bytes_s,
            "limits": in_words(self._config),
        }

    def _used(self) -> Used:
        return self._usage.now() if self._usage is not None else Used()

    def _saved(self, known: Known, raw: int) -> Known:
        saves = (*known.saves, raw)[-_KEPT:]
        if 2 * raw < max(saves):
            return msgspec.structs.replace(known, saves=saves)
        now, before = self._clock.monotonic(), self._saved_at
        self._saved_at = now
        return msgspec.structs.replace(known, saves=saves, interval_s=now - before if before else known.interval_s)

    def _measured(self) -> Measured:
        known = self.known
        return Measured(
            up_bytes_s=self._slowest(),
            cores=self._config.limits.cpu or default_workers(),
            changed_bytes=max(known.saves, default=0),
            interval_s=known.interval_s or self._config.interval_s,
            notice_s=self._notice_s,
            local=self._local and not self._config.limits.bandwidth,
            speeds={mode: Speed(*known.speeds[mode]) for mode in MODES if mode in known.speeds},
        )

    def _slowest(self) -> float | None:
        """What is sent in a second: what the link takes, and no more than it may."""
        rates = [rate for rate in (self.known.up_bytes_s, self._config.limits.bandwidth) if rate]
        return min(rates, default=None)

    def _told(self) -> Mode | None:
        return cast("Mode | None", self._config.coding)


def in_words(config: Config) -> str:
    """The limits in force, empty when there are none."""
    cpu, bandwidth = config.limits.cpu, config.limits.bandwidth
    words = [f"{cpu:g} core(s)"] if cpu else []
    return ", ".join([*words, f"{human_bytes(bandwidth)}/s each way"] if bandwidth else words)


def _new(uploaded: Uploaded) -> tuple[int, int]:
    """Bytes of the blobs that the backup put, raw and coded."""
    new = frozenset(uploaded.new_packs)
    ours = [pack in new for pack in uploaded.manifest.packs]
    raw = stored = 0
    for blob in uploaded.manifest.blobs if new else ():
        if ours[blob.pack]:
            raw, stored = raw + blob.raw, stored + blob.stored
    return raw, stored


def _mean(before: float | None, now: float) -> float:
    """The newer counts as much as all before it."""
    return now if before is None else (before + now) / 2
