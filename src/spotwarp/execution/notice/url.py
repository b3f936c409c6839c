"""A hook over HTTP: a GET of the user's URL says whether this machine ends.

200 with `{"seconds_left": 30}` or `{"deadline": "2030-01-31T12:00:00Z"}` is a notice (`{"seconds_left": null}`: one
without a time); 200 with `{}`, 204 and 404 are none; everything else is a fault. Asked directly, never through a proxy.
"""

from __future__ import annotations

from spotwarp.clock import Clock
from spotwarp.errors import NoticeFault
from spotwarp.execution.notice.deadline import AGREE_S, given, read_json
from spotwarp.execution.notice.exchange import Endpoint
from spotwarp.execution.notice.source import Announced, Seen, Source

TIMEOUT_S = 5.0


class Url(Source):
    """One URL, asked every `period_s`. `grace_s` is what a notice without a time leaves."""

    name = "url"

    def __init__(self, url: str, clock: Clock, *, period_s: float, grace_s: float) -> None:
        self._endpoint, self._clock = Endpoint(url, clock, connect_s=TIMEOUT_S), clock
        self.period_s, self._grace_s = period_s, grace_s

    def look(self) -> Seen:
        """See `Source`."""
        reply = self._endpoint.ask(headers={"Accept": "application/json"}, timeout_s=TIMEOUT_S)
        if reply.status in (204, 404):
            return Seen()
        if reply.status != 200:
            raise NoticeFault(f"{self._endpoint.name} answers {reply.status}")
        here = self._clock.wall()
        there = reply.date if reply.date and abs((reply.date - here).total_seconds()) > AGREE_S else here
        left = given(read_json(reply.body), there, otherwise_s=self._grace_s)
        return Seen(Announced(left.seconds, "notice", left.by) if left else None)

    def abort(self) -> None:
        """See `Source`."""
        self._endpoint.abort()
