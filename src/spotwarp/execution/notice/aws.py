"""AWS: the instance metadata service, version 2, as Amazon's node termination handler asks it.

One GET of `spot/instance-action` per look, every 2 s; each fifth look also asks for a rebalance recommendation, a
hint: it may come long before an interruption, with it, or never. `stop` ends the machine like `terminate`;
`hibernate` keeps the memory and comes without a lead, so it is a hint as well. Where no token can be had (a container
one hop too far) the old protocol is spoken, if there is one.
"""

from __future__ import annotations

from spotwarp.clock import Clock
from spotwarp.errors import NoticeFault
from spotwarp.execution.notice.deadline import Left, left_until, moment, read_json, short
from spotwarp.execution.notice.exchange import Endpoint, Reply
from spotwarp.execution.notice.source import Announced, Seen, Source

BASE = "http://169.254.169.254"
TTL_S = 3600
REFRESH_S = 15.0
LEAD_S = 120.0
TIMEOUT_S = 1.0
TOKEN_AGAIN_S = 60.0
HINT_EVERY = 5
_META = "/latest/meta-data"
_TTL = "X-aws-ec2-metadata-token-ttl-seconds"
_TOKEN = "X-aws-ec2-metadata-token"  # noqa: S105 - the name of a header


class Aws(Source):
    """Spot interruptions and rebalance recommendations."""

    name = "aws"
    period_s = 2.0

    def __init__(self, base: str, clock: Clock) -> None:
        self._endpoint, self._clock = Endpoint(base or BASE, clock), clock
        self._token = ""
        self._renew_at = float("-inf")
        """When the token, or the want of one, must be renewed."""
        self._known = False
        self._looks = 0

    def look(self) -> Seen:
        """See `Source`."""
        if not self._known:
            self._recognise()
        reply = self._get("/spot/instance-action")
        self._looks += 1
        hint = self._recommendation() if self._looks % HINT_EVERY == 1 else ""
        if reply.status == 404:
            return Seen(hint=hint)
        said = read_json(reply.body)
        if not isinstance(said, dict) or said.get("action") not in ("terminate", "stop", "hibernate"):
            raise NoticeFault(f"the instance action is {short(reply.body)}")
        if said["action"] == "hibernate":
            return Seen(hint="hibernate: memory is kept, the command goes on when the machine does")
        try:
            left = left_until(moment(said.get("time")), self._clock.wall(), reply.date, lead_s=LEAD_S)
        except NoticeFault:  # the action is certain, whatever its time says
            left = Left(LEAD_S, f"the time is unreadable, the usual {LEAD_S:g} s are taken")
        return Seen(Announced(left.seconds, said["action"], left.by), hint)

    def _recommendation(self) -> str:
        reply = self._get("/events/recommendations/rebalance")
        return "" if reply.status == 404 else f"rebalance recommendation {short(reply.body)}"

    def _recognise(self) -> None:
        """Any web server may answer 404; only this service knows an instance."""
        reply = self._get("/instance-id")
        if reply.status != 200 or not reply.text().startswith("i-"):
            raise NoticeFault(f"{self._endpoint.name} is not the metadata service of an EC2 instance")
        self._known = True

    def _get(self, path: str) -> Reply:
        for _ in range(2):
            self._renew()
            headers = {_TOKEN: self._token} if self._token else {}
            reply = self._endpoint.ask(_META + path, headers=headers, timeout_s=TIMEOUT_S)
            if reply.status != 401:
                break
            self._renew_at = float("-inf")  # the service has forgotten the token
        if reply.status not in (200, 404):
            raise NoticeFault(f"{self._endpoint.name} answers {reply.status}")
        return reply

    def _renew(self) -> None:
        now = self._clock.monotonic()
        if now < self._renew_at:
            return
        try:
            reply = self._endpoint.ask(
                "/latest/api/token", method="PUT", headers={_TTL: str(TTL_S)}, timeout_s=TIMEOUT_S
            )
            if reply.status != 200 or not reply.text().isprintable():
                raise NoticeFault(f"no token: {reply.status}")
        except NoticeFault:
            self._token, self._renew_at = "", now + TOKEN_AGAIN_S
            return
        granted = reply.headers.get(_TTL.lower(), "")
        ttl = min(int(granted), TTL_S) if granted.isascii() and granted.isdecimal() else TTL_S
        self._token, self._renew_at = reply.text(), now + max(1.0, ttl - REFRESH_S)

    def abort(self) -> None:
        """See `Source`."""
        self._endpoint.abort()
