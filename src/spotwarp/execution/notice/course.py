"""What follows from one look at a source: `follow(course, look)` gives a new course, events, words and the next wait.

Owns the pace and the manners: how fast a silent source is asked again, when its silence is worth a word, when an
announced end is acted on and that it is announced once. Pure: no I/O, no clock, no threads.

An end further away than `ACT_S` is held: an extra sync now, the notice when so much is left; until then it may be
taken back. A notice that was passed on is never taken back and never put off: the command has been told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spotwarp.errors import NoticeFault
from spotwarp.execution.notice.source import Announced, Seen
from spotwarp.execution.supervisor import Hint, Notice

ACT_S = 120.0
"""Told of an end further away than this, the command would stop long before it must."""
PATIENT = 3
"""So many failed looks in a row, at the usual pace, are nothing to speak of."""
FAILING_MOST_S = 30.0
ABSENT_S = 60.0
SOONER_S = 2.0
"""A deadline that moved by less is the same one, read again."""


@dataclass(frozen=True, slots=True)
class Course:
    """What a watcher remembers of its source."""

    name: str
    period_s: float
    heard: bool = False
    faults: int = 0
    fault: str = ""
    hint: str = ""
    held: float | None = None
    """The far end that was announced, in monotonic seconds."""
    acted: float | None = None
    """The end that was passed on."""
    withdrawn: bool = False

    @property
    def standing(self) -> str:
        """How the source stands, for people."""
        if self.faults >= PATIENT:
            retry = f"asked again every {FAILING_MOST_S if self.heard else ABSENT_S:.0f} s"
            return f"{'failing' if self.heard else 'disabled'}: {self.fault}; {retry}"
        if self.acted is not None:
            return "notice given"
        return "watched" if self.heard else "looking"


@dataclass(frozen=True, slots=True)
class Next:
    """What to do after a look: post `events`, say `words`, look again after `wait_s` from the look's begin."""

    events: tuple[Notice | Hint, ...] = ()
    words: tuple[str, ...] = ()
    wait_s: float = 0.0


def follow(course: Course, look: Seen | NoticeFault, now: float) -> tuple[Course, Next]:
    """What follows from `look`, which ended at `now` (monotonic seconds)."""
    if isinstance(look, NoticeFault):
        return _silent(course, look)
    words: tuple[str, ...] = ()
    if course.faults >= PATIENT:
        words = (f"notices: {course.name} is heard again",)
    elif not course.heard:
        words = (f"notices: {course.name} is watched",)
    course = replace(course, heard=True, faults=0, fault="")
    if look.announced is not None:
        course, then = _announced(course, look.announced, now)
    else:
        course, then = _nothing(course)
    if look.hint and look.hint != course.hint:
        course = replace(course, hint=look.hint)
        words = (*words, f"notices: {course.name}: {look.hint}; storing now, the command goes on")
        then = replace(then, events=(*then.events, Hint(now)))
    return course, replace(then, words=(*words, *then.words))


def _silent(course: Course, fault: NoticeFault) -> tuple[Course, Next]:
    faults = course.faults + 1
    course = replace(course, faults=faults, fault=fault.message)
    words: tuple[str, ...] = ()
    if faults == PATIENT:
        what = "does not answer any more" if course.heard else "is disabled"
        retry = FAILING_MOST_S if course.heard else ABSENT_S
        words = (f"notices: {course.name} {what}: {fault.message}; asked again every {retry:.0f} s, training goes on",)
    if faults < PATIENT:
        return course, Next((), words, course.period_s)
    if not course.heard:
        return course, Next((), words, ABSENT_S)
    doubled = course.period_s * 2 ** min(faults - PATIENT, 10)
    return course, Next((), words, min(doubled, FAILING_MOST_S))


def _announced(course: Course, end: Announced, now: float) -> tuple[Course, Next]:
    # The soonest that was said counts: nothing is put off, and a source that always says "in an hour" is heard in one.
    deadline = min(now + end.seconds_left, now + end.seconds_left if course.held is None else course.held)
    left = deadline - now
    if course.acted is not None:
        if deadline >= course.acted - SOONER_S:
            return course, Next(wait_s=course.period_s)
    elif left > ACT_S:
        wait_s = min(course.period_s, left - ACT_S)
        if course.held is not None and deadline >= course.held - SOONER_S:
            return course, Next(wait_s=wait_s)
        words = f"notices: {course.name}: {end.what} in {left:.0f} s ({end.by}); storing now, acted on when"
        return replace(course, held=deadline), Next((Hint(now),), (f"{words} {ACT_S:.0f} s are left",), wait_s)
    notice = Notice(left, course.name, now, f"{end.what}, {end.by}")
    return replace(course, acted=deadline, held=None), Next((notice,), (), course.period_s)


def _nothing(course: Course) -> tuple[Course, Next]:
    if course.held is not None:
        words = f"notices: {course.name} has taken back what it announced"
        return replace(course, held=None), Next((), (words,), course.period_s)
    if course.acted is not None and not course.withdrawn:
        words = f"notices: {course.name} has taken its notice back; the command has been told: the run ends"
        return replace(course, withdrawn=True), Next((), (words,), course.period_s)
    return course, Next(wait_s=course.period_s)
