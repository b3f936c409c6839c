"""When a backup that fails is said again, and when it is news: pure, in monotonic seconds.

A failing backup is said at once, and then again after 1, 2, 4 … minutes, at least once an hour, for as long as it
lasts, whatever request failed last: one trouble has many wordings. After `stall_s` it is *stalled*: that is news, once,
and so is its recovery. No I/O, no clock; must never keep anything from being said for longer than an hour (I10).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from spotwarp.model import human_seconds

FIRST_REPEAT_S, LONGEST_REPEAT_S = 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class Alarm:
    """All that `step` remembers: the trouble of now, since when, and what was said of it."""

    trouble: str = ""
    since: float = 0.0
    said_at: float = 0.0
    repeat_s: float = FIRST_REPEAT_S
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class Heard:
    """What follows: a line for the user (or none), and news (or none)."""

    line: str = ""
    news: Literal["", "stalled", "recovered"] = ""


def step(alarm: Alarm, trouble: str, now: float, *, stall_s: float, going_on: str) -> tuple[Alarm, Heard]:
    """What to say at `now` of `trouble` (empty: storing works). `going_on` says what happens meanwhile."""
    if not trouble:
        if not alarm.trouble:
            return alarm, Heard()
        lasted = human_seconds(now - alarm.since)
        return Alarm(), Heard(f"storing works again, after {lasted}", "recovered" if alarm.stalled else "")
    if not alarm.trouble:
        return Alarm(trouble, now, now), Heard(f"NOT STORED: {trouble}; {going_on}")
    alarm = replace(alarm, trouble=trouble)
    stalls = not alarm.stalled and now - alarm.since >= stall_s
    again = now - alarm.said_at >= alarm.repeat_s
    if not (stalls or again):
        return alarm, Heard()
    line = f"NOT STORED for {human_seconds(now - alarm.since)}: {trouble}; {going_on}"
    repeat_s = min(LONGEST_REPEAT_S, 2 * alarm.repeat_s) if again else alarm.repeat_s
    alarm = replace(alarm, said_at=now, repeat_s=repeat_s, stalled=alarm.stalled or stalls)
    return alarm, Heard(line, "stalled" if stalls else "")


def stall_after(interval_s: float, intervals: int, limit_s: float) -> float:
    """Seconds of failing after which a backup is stalled: so many intervals, but no longer than `limit_s`."""
    return min(intervals * interval_s, limit_s)
