"""Azure: Scheduled Events of this machine, asked for every second.

`Preempt`, `Terminate`, `Redeploy` and `Reboot` end what runs here and are announced ends; `Freeze` only pauses it: a
hint. Events of other machines of the group are in the same answer and are not ours. The first call switches the service
on and may take two minutes. Approving an event lets Azure go ahead at once: `acknowledge` must only be called when
everything is stored and sealed, and approves nothing that touches another machine too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from spotwarp.clock import Clock
from spotwarp.errors import NoticeFault
from spotwarp.execution.notice.deadline import Left, http_date, left_until, read_json, short
from spotwarp.execution.notice.exchange import Endpoint, Reply
from spotwarp.execution.notice.source import Announced, Seen, Source

BASE = "http://169.254.169.254"
LEAD_S = {"Preempt": 30.0, "Terminate": 300.0, "Redeploy": 600.0, "Reboot": 900.0}
"""What ends us, and the documented least time from announcement to end."""
TIMEOUT_S = 2.0
FIRST_S = 130.0
_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_OURS = {"Metadata": "true"}


@dataclass(frozen=True, slots=True)
class Event:
    """An event that touches this machine. `not_before` is None when it is not (or no longer) said."""

    id: str
    kind: str
    alone: bool
    """It touches no other machine."""
    started: bool
    not_before: datetime | None


class Azure(Source):
    """Scheduled events."""

    name = "azure"
    period_s = 1.0

    def __init__(self, base: str, clock: Clock) -> None:
        self._base, self._clock = base or BASE, clock
        self._endpoint = Endpoint(self._base, clock)
        self._machine = ""
        self._awake = False
        self._ends: tuple[Event, ...] = ()

    def look(self) -> Seen:
        """See `Source`."""
        if not self._machine:
            self._machine = self._ask(_NAME, TIMEOUT_S).text()
            if not 0 < len(self._machine) <= 255:
                raise NoticeFault(f"the machine's name is {short(self._machine)}")
        reply = self._ask(_EVENTS, TIMEOUT_S if self._awake else FIRST_S)
        self._awake = True
        events = events_of(self._machine, read_json(reply.body))
        self._ends = tuple(one for one in events if one.kind in LEAD_S)
        hint = next((f"Freeze {one.id[:40]}: a pause, not an end" for one in events if one.kind == "Freeze"), "")
        announced = [self._left(one, reply.date) for one in self._ends]
        return Seen(min(announced, key=lambda one: one.seconds_left, default=None), hint)

    def _left(self, event: Event, there: datetime | None) -> Announced:
        lead_s = LEAD_S[event.kind]
        if event.not_before is not None:
            left = left_until(event.not_before, self._clock.wall(), there, lead_s=lead_s)
        elif event.started:
            left = Left(0.0, "it has begun")
        else:
            left = Left(lead_s, f"no time is given, the usual {lead_s:g} s are taken")
        return Announced(left.seconds, event.kind, left.by)

    def _ask(self, path: str, timeout_s: float) -> Reply:
        reply = self._endpoint.ask(path, headers=_OURS, timeout_s=timeout_s)
        if reply.status != 200:
            raise NoticeFault(f"{self._endpoint.name} answers {reply.status}")
        return reply

    def acknowledge(self) -> str:
        """See `Source`."""
        ours = [one for one in self._ends if one.alone]
        if not ours:
            return ""
        endpoint = Endpoint(self._base, self._clock)  # the watcher's own may still be at work, and has been aborted
        body = json.dumps({"StartRequests": [{"EventId": one.id} for one in ours]}).encode()
        headers = {**_OURS, "Content-Type": "application/json"}
        reply = endpoint.ask(_EVENTS, method="POST", headers=headers, body=body, timeout_s=TIMEOUT_S)
        if reply.status != 200:
            raise NoticeFault(f"{endpoint.name} answers {reply.status}")
        return f"told Azure that it need not wait any longer ({', '.join(one.kind for one in ours)})"

    def abort(self) -> None:
        """See `Source`."""
        self._endpoint.abort()


def events_of(machine: str, document: object) -> list[Event]:
    """The events in Azure's answer that touch `machine`. Raises `NoticeFault` when it is no such answer.

    A single event that is not as documented is passed over: the others must be heard.
    """
    listed = document.get("Events") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise NoticeFault(f"{short(document)} is not a list of scheduled events")
    found = []
    for one in listed[:1000]:
        if not isinstance(one, dict) or not isinstance(one.get("EventId"), str):
            continue
        resources = one.get("Resources")
        names = {str(name).lower() for name in resources} if isinstance(resources, list) else set()
        if machine.lower() not in names:
            continue
        started = one.get("EventStatus") == "Started"
        found.append(
            Event(one["EventId"], str(one.get("EventType")), len(names) == 1, started, http_date(one.get("NotBefore")))
        )
    return found
