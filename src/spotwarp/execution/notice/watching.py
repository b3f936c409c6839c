"""One thread for each source of notices: look, do what follows, wait, look again.

Owns the threads and how the sources stand, for `status`. Nothing in here may raise into the run, delay its start or
wait at its end: what a source does wrong is told and tried again at the pace of `course`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from spotwarp.clock import Clock
from spotwarp.errors import NoticeFault
from spotwarp.execution.notice.choosing import Chosen
from spotwarp.execution.notice.course import PATIENT, Course, follow
from spotwarp.execution.notice.source import Seen, Source
from spotwarp.execution.supervisor import Event

LEAST_WAIT_S = 0.05


class Notices:
    """The watchers of one attempt. `grace` says what a SIGTERM leaves. `say` is called from the watchers' threads."""

    def __init__(
        self,
        chosen: Chosen,
        grace: str,
        *,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self._sources, self._refused, self._grace = chosen.sources, chosen.refused, grace
        self._clock, self._say = clock, say
        self._stop = threading.Event()
        self._courses = {one.name: Course(one.name, one.period_s) for one in chosen.sources}

    def start(self, post: Callable[[Event], None]) -> None:
        """Begin to watch; what is to be known is given to `post`. Returns at once."""
        for name, why in self._refused.items():
            self._say(f"notices: {name} is disabled: {why}")
        for source in self._sources:
            thread = threading.Thread(
                target=self._watch, args=(source, post), name=f"notice-{source.name}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # the pids limit
                self._say(f"notices: {source.name} is not watched: {error}")

    def stop(self) -> None:
        """Watch no longer. Returns at once; a look that is under way ends soon and tells nothing more."""
        self._stop.set()
        for source in self._sources:
            source.abort()

    def standing(self) -> str:
        """What is watched and how that stands, in one line."""
        watched = [f"{name} {course.standing}" for name, course in self._courses.items()]
        refused = [f"{name} disabled: {why}" for name, why in self._refused.items()]
        return "; ".join([f"SIGTERM ({self._grace})", *watched, *refused])

    def at_sigterm(self) -> None:
        """Say what the sources know about a SIGTERM that has just come. May take a second."""
        for source in self._sources:
            try:
                known = source.at_sigterm()
            except NoticeFault:
                continue
            if known:
                self._say(known)

    def acknowledge(self) -> None:
        """Tell platforms that wait for us that they need not. Only when everything is stored and sealed."""
        for source in self._sources:
            if self._courses[source.name].acted is None:
                continue
            try:
                told = source.acknowledge()
            except NoticeFault as fault:
                told = f"{source.name} could not be told that the run has ended: {fault.message}"
            if told:
                self._say(told)

    def _watch(self, source: Source, post: Callable[[Event], None]) -> None:
        try:
            self._look_on(source, post)
        except BaseException:  # a bug: raised all the same, but `status` must not call a dead watcher one that watches
            course = self._courses[source.name]
            self._courses[source.name] = replace(course, faults=PATIENT, fault="its watcher failed")
            raise

    def _look_on(self, source: Source, post: Callable[[Event], None]) -> None:
        course = self._courses[source.name]
        while not self._stop.is_set():
            begun = self._clock.monotonic()
            look: Seen | NoticeFault
            try:
                look = source.look()
            except NoticeFault as fault:
                look = fault
            if self._stop.is_set():
                return
            now = self._clock.monotonic()
            course, then = follow(replace(course, period_s=source.period_s), look, now)
            self._courses[source.name] = course
            for words in then.words:
                self._say(words)
            for event in then.events:
                post(event)
            self._clock.wait(self._stop, max(LEAST_WAIT_S, then.wait_s - (now - begun)))
