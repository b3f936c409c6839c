"""Google Cloud: the metadata server, which answers a long poll the moment `instance/preempted` changes.

Both sides name themselves with `Metadata-Flavor: Google`; an answer without it is somebody else's. No time is given:
the machine ends 30 s after the notice, best effort (120 s where the instance asked for that; then say so with `grace`).
In the machine the same preemption is a shutdown, so SIGTERM comes as well and the value tells whose it was.
"""

from __future__ import annotations

from spotwarp.clock import Clock
from spotwarp.errors import NoticeFault
from spotwarp.execution.notice.deadline import short
from spotwarp.execution.notice.exchange import Endpoint
from spotwarp.execution.notice.source import Announced, Seen, Source

HOST = "169.254.169.254"  # its name is metadata.google.internal; asking a resolver could take long
LEAD_S = 30.0
POLL_S = 60
SLACK_S = 5.0
TIMEOUT_S = 1.0
_PREEMPTED = "/computeMetadata/v1/instance/preempted"


class Gcp(Source):
    """Preemptions."""

    name = "gcp"
    period_s = 1.0  # between the begins of two polls; one that nothing interrupts takes a minute

    def __init__(self, host: str, clock: Clock, *, lead_s: float = LEAD_S) -> None:
        self._base, self._clock, self._lead_s = f"http://{host or HOST}", clock, lead_s
        self._endpoint = Endpoint(self._base, clock)
        self._etag = ""

    def look(self) -> Seen:
        """See `Source`."""
        query, timeout_s = "", TIMEOUT_S
        if self._etag:
            query = f"?wait_for_change=true&last_etag={self._etag}&timeout_sec={POLL_S}"
            timeout_s = POLL_S + SLACK_S
        try:
            preempted = self._ask(self._endpoint, query, timeout_s)
        except NoticeFault:
            self._etag = ""  # begin anew, with a short question
            raise
        return Seen(Announced(self._lead_s, "preempted", "no time is given") if preempted else None)

    def _ask(self, endpoint: Endpoint, query: str, timeout_s: float) -> bool:
        reply = endpoint.ask(_PREEMPTED + query, headers={"Metadata-Flavor": "Google"}, timeout_s=timeout_s)
        if reply.headers.get("metadata-flavor") != "Google":
            raise NoticeFault(f"{endpoint.name} is not Google's metadata server")
        if reply.status != 200:
            raise NoticeFault(f"{endpoint.name} answers {reply.status}")
        said = reply.text()
        if said not in ("TRUE", "FALSE"):
            raise NoticeFault(f"preempted is {short(said)}")
        etag = reply.headers.get("etag", "")
        self._etag = etag if etag.isascii() and etag.isalnum() and len(etag) <= 64 else "0"
        return said == "TRUE"

    def at_sigterm(self) -> str:
        """See `Source`: asked beside the long poll, on a connection of its own."""
        preempted = self._ask(Endpoint(self._base, self._clock), "", TIMEOUT_S)
        return "Google says that the machine is preempted" if preempted else "Google knows of no preemption"

    def abort(self) -> None:
        """See `Source`."""
        self._endpoint.abort()
