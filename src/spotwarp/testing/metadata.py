"""Metadata services of three clouds on loopback, as faithful as their documentation: for whoever watches them.

Each is an HTTP server of its own with the paths, headers, refusals and timing of the cloud, and with switches for the
days on which it misbehaves. Every request is in `journal`, with its time, as it arrived. Nothing here knows SpotWarp.

    python -m spotwarp.testing.metadata aws 169.254.169.254 80

serves one until its standard input ends; each line of that is `{"method": [arguments]}`, one of its switches.
"""

from __future__ import annotations

import http.server
import json
import secrets
import socketserver
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it arrived: monotonic seconds, verb, path with query, headers in lower case, body."""

    at: float
    verb: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, a body, headers."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Metadata(ABC):
    """What the three have in common. Use it as a context manager; it listens from then on."""

    name: ClassVar[str]

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.journal: list[Asked] = []
        self.changed = threading.Condition()
        self.closing = False
        self._hang = False
        self._status: int | None = None
        self._garbage: bytes | None = None
        self._clock: timedelta | None = timedelta()
        self._server = _Server((host, port), self)

    # ---- switches --------------------------------------------------------------------------------------------------

    def hang(self, on: bool = True) -> None:
        """Take requests and never answer, until switched off."""
        with self.changed:
            self._hang = on
            self.changed.notify_all()

    def refuse(self, status: int | None) -> None:
        """Answer everything with this status; None: no longer."""
        self._status = status

    def garble(self, body: str | bytes | None) -> None:
        """Answer everything with 200 and these bytes; None: no longer."""
        self._garbage = body.encode() if isinstance(body, str) else body

    def clock(self, off_s: float | None) -> None:
        """The Date header is so many seconds ahead of this machine's clock; None: there is none."""
        self._clock = None if off_s is None else timedelta(seconds=off_s)

    def now(self) -> datetime:
        """The service's own time."""
        return datetime.now(UTC) + (self._clock or timedelta())

    # ---- what a test asks ------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """`host:port`."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    @property
    @abstractmethod
    def environment(self) -> dict[str, str]:
        """What points a client here."""

    def asked(self, path: str = "", verb: str = "GET") -> list[Asked]:
        """The requests so far whose path begins with `path`."""
        with self.changed:
            return [one for one in self.journal if one.path.startswith(path) and one.verb == verb]

    @abstractmethod
    def answer(self, asked: Asked) -> Answer:
        """What this cloud says."""

    # ---- serving ---------------------------------------------------------------------------------------------------

    def respond(self, asked: Asked) -> Answer | None:
        """What is sent; None: nothing, ever."""
        with self.changed:
            self.journal.append(asked)
            self.changed.notify_all()
            while self._hang and not self.closing:
                self.changed.wait()
        if self.closing:
            return None
        if self._status is not None:
            return Answer(self._status, b"not today")
        if self._garbage is not None:
            return Answer(200, self._garbage)
        return self.answer(asked)

    def date(self) -> str | None:
        """The Date header."""
        return None if self._clock is None else format_datetime(self.now(), usegmt=True)

    def __enter__(self) -> Any:
        """Serve."""
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """End; whoever still waits is let go without an answer."""
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()


class AwsMetadata(Metadata):
    """IMDSv2: tokens that expire, 401 without one (unless version 1 is allowed), 404 until there is a notice."""

    name = "aws"

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__(host, port)
        self._tokens: dict[str, float] = {}
        self._texts = {"instance-id": "i-0123456789abcdef0", "instance-life-cycle": "spot"}
        self._most_s, self._version_1, self._tokenless = 21600.0, False, False

    def interrupt(self, in_s: float = 120.0, action: str = "terminate", time_text: str | None = None) -> None:
        """Announce an interruption `in_s` seconds from now by the service's clock."""
        at = time_text or (self.now() + timedelta(seconds=in_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._texts["spot/instance-action"] = json.dumps({"action": action, "time": at})
        self._texts["spot/termination-time"] = at

    def withdraw(self) -> None:
        """Announce nothing any more."""
        self._texts.pop("spot/instance-action", None)
        self._texts.pop("spot/termination-time", None)

    def recommend_rebalance(self) -> None:
        """Warn of an elevated risk."""
        at = self.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        self._texts["events/recommendations/rebalance"] = json.dumps({"noticeTime": at})

    def tokens(self, most_s: float = 21600.0, version_1: bool = False, refused: bool = False) -> None:
        """How long tokens live at most, whether questions without one are answered, whether there are any tokens."""
        self._most_s, self._version_1, self._tokenless = most_s, version_1, refused

    def forget_tokens(self) -> None:
        """No token counts any more."""
        self._tokens.clear()

    @property
    def environment(self) -> dict[str, str]:
        """See `Metadata`."""
        return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{self.address}"}

    def answer(self, asked: Asked) -> Answer:
        """See `Metadata`."""
        if "x-forwarded-for" in asked.headers:
            return Answer(403)
        if asked.path == "/latest/api/token":
            return self._token(asked)
        token = asked.headers.get("x-aws-ec2-metadata-token")
        left = self._tokens.get(token or "", 0.0) - time.monotonic()
        if (token is None and not self._version_1) or (token is not None and left <= 0):
            return Answer(401)
        text = self._texts.get(asked.path.removeprefix("/latest/meta-data/"))
        return Answer(404) if text is None or asked.verb != "GET" else Answer(200, text.encode())

    def _token(self, asked: Asked) -> Answer:
        header = "x-aws-ec2-metadata-token-ttl-seconds"
        wanted = asked.headers.get(header, "")
        if asked.verb != "PUT":
            return Answer(405)
        if self._tokenless:
            return Answer(403)
        if not wanted.isdecimal() or not 1 <= int(wanted) <= 21600:
            return Answer(400)
        ttl = int(min(int(wanted), self._most_s))
        token = secrets.token_urlsafe(42)
        self._tokens[token] = time.monotonic() + ttl
        return Answer(200, token.encode(), {header: str(ttl)})


class GcpMetadata(Metadata):
    """Google's server: `Metadata-Flavor` both ways, and a long poll that ends when the value changes."""

    name = "gcp"

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__(host, port)
        self._preempted = False
        self._etag = secrets.token_hex(8)

    def preempt(self, on: bool = True) -> None:
        """Say that the machine is preempted."""
        with self.changed:
            self._preempted, self._etag = on, secrets.token_hex(8)
            self.changed.notify_all()

    @property
    def environment(self) -> dict[str, str]:
        """See `Metadata`."""
        return {"GCE_METADATA_HOST": self.address}

    def answer(self, asked: Asked) -> Answer:
        """See `Metadata`."""
        flavor = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}
        if asked.headers.get("metadata-flavor") != "Google" or "x-forwarded-for" in asked.headers:
            return Answer(403, b"Missing Metadata-Flavor:Google header.")
        parts = urlsplit(asked.path)
        if parts.path != "/computeMetadata/v1/instance/preempted":
            return Answer(404, b"", flavor)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if query.get("wait_for_change") == "true":
            self._wait(query.get("last_etag", self._etag), query.get("timeout_sec"))
        return Answer(200, b"TRUE" if self._preempted else b"FALSE", {**flavor, "ETag": self._etag})

    def _wait(self, known: str, timeout: str | None) -> None:
        limit = time.monotonic() + (float(timeout) if timeout and timeout.isdecimal() else 3600.0)
        with self.changed:
            while self._etag == known and not self.closing and time.monotonic() < limit:
                self.changed.wait(limit - time.monotonic())


class AzureMetadata(Metadata):
    """Azure's instance metadata and scheduled events, of a machine `name` in a group of several."""

    name = "azure"

    def __init__(self, host: str = "127.0.0.1", port: int = 0, machine: str = "trainer_0") -> None:
        super().__init__(host, port)
        self._machine, self._incarnation, self._first_s, self._enabled = machine, 1, 0.0, False
        self._events: dict[str, dict[str, Any]] = {}
        self.approved: list[tuple[float, str]] = []
        """When which event was approved; that is when Azure begins."""

    def block_first(self, seconds: float) -> None:
        """The first question for events is answered after so long: the service is being enabled."""
        self._first_s = seconds

    def schedule(self, kind: str = "Preempt", in_s: float = 30.0, resources: list[str] | None = None) -> str:
        """Announce an event; its id."""
        with self.changed:
            event = f"{secrets.token_hex(4)}-{secrets.token_hex(2)}".upper()
            self._events[event] = {
                "EventId": event,
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": resources or [self._machine],
                "EventStatus": "Scheduled",
                "NotBefore": format_datetime(self.now() + timedelta(seconds=in_s), usegmt=True),
                "Description": "",
                "EventSource": "Platform",
                "DurationInSeconds": -1,
            }
            self._incarnation += 1
        return event

    def begin(self, event: str) -> None:
        """The event has started."""
        with self.changed:
            self._events[event] |= {"EventStatus": "Started", "NotBefore": ""}
            self._incarnation += 1

    def withdraw(self) -> None:
        """Nothing is scheduled any more."""
        with self.changed:
            self._events.clear()
            self._incarnation += 1

    @property
    def environment(self) -> dict[str, str]:
        """See `Metadata`."""
        return {"SPOTWARP_AZURE_METADATA_ENDPOINT": f"http://{self.address}"}

    def answer(self, asked: Asked) -> Answer:
        """See `Metadata`."""
        parts = urlsplit(asked.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if (
            asked.headers.get("metadata") != "true"
            or not query.get("api-version")
            or "x-forwarded-for" in asked.headers
        ):
            return Answer(400, b'{"error": "Bad request. Required metadata header or api-version is missing"}')
        if parts.path == "/metadata/instance/compute/name" and query.get("format") == "text":
            return Answer(200, self._machine.encode())
        if parts.path != "/metadata/scheduledevents":
            return Answer(404)
        return self._approve(asked) if asked.verb == "POST" else self._list()

    def _list(self) -> Answer:
        with self.changed:
            limit = time.monotonic() + (0.0 if self._enabled else self._first_s)
            while not self.closing and time.monotonic() < limit:
                self.changed.wait(limit - time.monotonic())
            self._enabled = True
            document = {"DocumentIncarnation": self._incarnation, "Events": list(self._events.values())}
        return Answer(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _approve(self, asked: Asked) -> Answer:
        try:
            ids = [one["EventId"] for one in json.loads(asked.body)["StartRequests"]]
        except (ValueError, KeyError, TypeError):
            return Answer(400)
        for one in ids:
            if one not in self._events:
                return Answer(404)
        for one in ids:
            self.approved.append((time.monotonic(), one))
            self.begin(one)
        return Answer(200)


class _Server(socketserver.ThreadingTCPServer):
    # Not http.server's own: that asks a resolver for its host's name, which takes seconds where there is none.
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int], metadata: Metadata) -> None:
        self.metadata = metadata
        super().__init__(address, _Conversation)


class _Conversation(http.server.BaseHTTPRequestHandler):
    def _serve(self) -> None:
        server: Any = self.server
        metadata: Metadata = server.metadata
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", "0")))
        answer = metadata.respond(Asked(time.monotonic(), self.command, self.path, headers, body))
        if answer is None:
            return
        self.send_response_only(answer.status)
        date = metadata.date()
        sent = {"Content-Length": str(len(answer.body)), "Connection": "close", **answer.headers}
        for name, value in (sent | ({"Date": date} if date else {})).items():
            self.send_header(name, value)
        try:
            self.end_headers()
            self.wfile.write(answer.body)
        except OSError:
            self.close_connection = True

    do_GET = do_PUT = do_POST = _serve

    def log_message(self, format: str, *args: Any) -> None:
        """The journal has it."""


KINDS: dict[str, type[Metadata]] = {"aws": AwsMetadata, "gcp": GcpMetadata, "azure": AzureMetadata}


@contextmanager
def metadata(kind: str) -> Iterator[Any]:
    """A service of `kind` (aws, gcp, azure) on a free port of loopback."""
    with KINDS[kind]() as served:
        yield served


def main(kind: str, host: str, port: str) -> None:
    """Serve until standard input ends, obeying its lines."""
    with KINDS[kind](host, int(port)) as served:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        for line in sys.stdin:
            for name, arguments in json.loads(line).items():
                getattr(served, name)(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
