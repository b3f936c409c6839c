"""Everything shown to a person or a scraper, as one pure function of the log, the heartbeat, the telemetry and now.

`status`, later `watch` and exporters, only render what `view` returns. Wall times are compared for display alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spotwarp.persistence.runlog.entry import AnyEntry, Claim, Complete, Failed, Phase, Snapshot, State, Unknown
from spotwarp.persistence.runlog.lease import Beat
from spotwarp.persistence.telemetry import Segment


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as it is. Times are ISO 8601 UTC, ages in seconds, None where not known."""

    run: str
    state: str
    """`new`, `training`, `syncing` …, `silent`, `preempted`, `stopped`, `complete`, `failed`."""
    generation: int
    holder: str
    since: str
    beat_age_s: float | None
    exit: int | None
    at_risk_s: float | None
    at_risk_bytes: int | None
    last_snapshot: int | None
    last_snapshot_time: str | None
    last_snapshot_age_s: float | None
    resumable_snapshot: int | None
    resumable_checkpoint: str | None
    resumable_step: int | None
    loss: float | None
    step: int | None
    errors: str
    errors_since: str
    kept: str
    """Single-file checkpoints that are older in the last snapshot than on disk, in words."""
    notices: str
    """Which preemption notices its machine would hear, and from whom."""
    retained: int
    command: tuple[str, ...]
    readonly: str
    stalled: bool = False
    """The backup has been failing for longer than the options allow."""
    lacking: str = ""
    """What should be in the last snapshot and is not, in words."""
    notify_error: str = ""
    """Who could not be told of anything, and why."""
    disk: str = ""
    """Why the next checkpoint may not fit on its machine's disk."""
    coding: str = ""
    """How numbers are coded: `raw`, `planes` or `delta`."""
    coding_why: str = ""
    coding_bytes_s: float | None = None
    coding_ratio: float | None = None
    """As measured: raw bytes a second of one core, and coded bytes for each raw one."""
    up_bytes_s: float | None = None
    """What uploads reach, in bytes a second."""
    limits: str = ""
    """What storing may use, in words; empty: no limit."""
    arriving: str = ""
    """What a restore still brings in beside the command, in words."""
    gone: str = ""
    """Said where it is known that the holder's process has ended though its lease has not."""


def view(
    run: str,
    state: State,
    entries: Sequence[AnyEntry | Unknown],
    telemetry: Sequence[Segment],
    beat: Beat | None,
    now: datetime,
    *,
    readonly: str = "",
) -> RunView:
    """The view. `entries` holds at least those that `state` names (claim, last snapshot, last resumable, the head)."""
    by_number = {e.n: e for e in entries}
    claim = by_number.get(state.claim)
    claim = claim if isinstance(claim, Claim) else None
    last = by_number.get(state.snapshot)
    last = last if isinstance(last, Snapshot) else None
    resumable = by_number.get(state.resumable)
    resumable = resumable if isinstance(resumable, Snapshot) else None
    facts = beat.facts if beat else {}
    live = bool(state.generation and not state.seal and not state.terminal)
    beat_age = _age(beat.wall, now) if beat and live else None
    return RunView(
        run=run,
        state=_word(state, beat, beat_age, claim),
        generation=state.generation,
        holder=f"{claim.host or claim.machine} (process {claim.pid})" if claim and live else "",
        since=claim.wall if claim else "",
        beat_age_s=beat_age,
        exit=None if live else _exit(entries),
        at_risk_s=_at_risk(facts, beat_age) if live else 0.0,
        at_risk_bytes=_int(facts.get("at_risk_bytes")) if live else 0,
        last_snapshot=last.n if last else None,
        last_snapshot_time=last.wall if last else None,
        last_snapshot_age_s=_age(last.wall, now) if last else None,
        resumable_snapshot=resumable.n if resumable else None,
        resumable_checkpoint=resumable.checkpoint if resumable else None,
        resumable_step=resumable.step if resumable else None,
        loss=_loss(telemetry, last),
        step=_step(telemetry, last),
        errors=str(facts.get("error") or "") if live else "",
        errors_since=str(facts.get("error_since") or "") if live else "",
        kept=last.older if last else "",
        notices=str(facts.get("notices") or "") if live else "",
        retained=len(state.retained),
        command=claim.command if claim else (),
        readonly=readonly,
        stalled=bool(facts.get("stalled")) if live else False,
        lacking=str(facts.get("lacking") or "") if live else _lacking(entries),
        notify_error=str(facts.get("notify_error") or "") if live else "",
        disk=str(facts.get("disk") or "") if live else "",
        arriving=str(facts.get("arriving") or "") if live else "",
        **how_stored(facts if live else {}),
    )


def how_stored(facts: dict[str, Any]) -> dict[str, Any]:
    """What a heartbeat says of how the workspace is stored; `RunView`'s fields of these names."""
    words = {name: str(facts.get(name) or "") for name in ("coding", "coding_why", "limits")}
    told = {name: facts.get(name) for name in ("coding_bytes_s", "coding_ratio", "up_bytes_s")}
    return {**words, **{name: float(n) if isinstance(n, (int, float)) else None for name, n in told.items()}}


def _lacking(entries: Sequence[AnyEntry | Unknown]) -> str:
    """What the seal says that the final snapshot lacks."""
    for entry in reversed(entries):
        if isinstance(entry, Phase) and entry.snapshot and entry.reason:
            return entry.reason if entry.reason != "sync" else ""
    return ""


def _word(state: State, beat: Beat | None, age: float | None, claim: Claim | None) -> str:
    if state.terminal:
        return state.terminal
    if not state.generation:
        return "new"
    if state.seal:
        return state.seal
    lease = claim.lease_s if claim else 20.0
    if age is None or age > 2 * lease:
        return "silent"
    return beat.phase if beat and beat.phase else "claimed"


def _exit(entries: Sequence[AnyEntry | Unknown]) -> int | None:
    for entry in reversed(entries):
        if isinstance(entry, (Complete, Failed)):
            return entry.exit
        if isinstance(entry, Phase) and entry.exit is not None:
            return entry.exit
    return None


def _at_risk(facts: dict[str, str | int | float | bool | None], beat_age: float | None) -> float | None:
    told = facts.get("at_risk_s")
    if not isinstance(told, (int, float)):
        return None
    return float(told) + (beat_age or 0.0 if told else 0.0)


def _int(value: str | int | float | bool | None) -> int | None:
    return value if isinstance(value, int) else None


def _loss(telemetry: Sequence[Segment], last: Snapshot | None) -> float | None:
    for segment in reversed(telemetry):
        for sample in reversed(segment.samples):
            if sample.loss is not None:
                return sample.loss
    return last.loss if last else None


def _step(telemetry: Sequence[Segment], last: Snapshot | None) -> int | None:
    for segment in reversed(telemetry):
        for sample in reversed(segment.samples):
            if sample.step is not None:
                return sample.step
    return last.step if last else None


def _age(wall: str, now: datetime) -> float | None:
    try:
        return max(0.0, (now - datetime.fromisoformat(wall)).total_seconds())
    except ValueError:
        return None


def snapshot_facts(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as every verb prints it, for people and for `--json`."""
    return {
        "id": snapshot.n,
        "generation": snapshot.generation,
        "time": snapshot.wall,
        "files": snapshot.files,
        "bytes": snapshot.bytes,
        "read_bytes": snapshot.read_bytes,
        "stored_bytes": snapshot.stored_bytes,
        "late": snapshot.late,
        "late_bytes": snapshot.late_bytes,
        "resumable": {"path": snapshot.checkpoint, "step": snapshot.step} if snapshot.cls == "resumable" else None,
    }
