"""A loopback HTTP proxy that makes an S3 server misbehave on request.

Owns one listening socket and a list of rules; everything no rule touches passes unchanged, so that signatures stay
valid. It can refuse, throttle, delay, hang, cut a request or a reply, lose a reply after the server has obeyed, and
truncate a body while announcing the full length. Every request is recorded before any rule is applied.
"""

from __future__ import annotations

import http.client
import http.server
import re
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from urllib.parse import unquote

from spotwarp.clock import Clock, SystemClock

_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


@dataclass
class Rule:
    """What happens to requests whose verb and `path?query` match the expressions.

    The first `skip` matches pass, the next `times` are hit (None: all). At most one of the outcomes below applies;
    `delay_s` combines with any and happens first.
    """

    verb: str = "."
    path: str = "."
    skip: int = 0
    times: int | None = None
    delay_s: float = 0.0
    status: int | None = None
    """Answer with this status and, as S3 does, `code` in an XML body; the server never sees the request."""
    code: str = "InternalError"
    headers: dict[str, str] = field(default_factory=dict)
    """Extra headers of that answer (Retry-After …)."""
    hang: bool = False
    """Never answer (until the proxy closes)."""
    cut_request: int | None = None
    """Read this many bytes of the body, then reset; the server never sees the request."""
    lose_reply: bool = False
    """Pass the request on, then reset instead of answering."""
    cut_reply: int | None = None
    """Announce the whole body, send this many bytes of it, then reset."""
    shorten_reply: int | None = None
    """Send this many bytes and announce just as many: a server that lies consistently."""
    reject_header: str | None = None
    """With `status`: only requests that carry a header starting with this."""
    max_key: int | None = None
    """With `status`: only keys longer than this many bytes."""
    min_gap_s: float | None = None
    """With `status`: only when the same path was requested less than this long ago."""
    last_modified: str | None = None
    """Replace the reply's Last-Modified."""
    hits: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived: monotonic seconds, verb, path with query, body length in bytes."""

    at: float
    verb: str
    path: str
    length: int


class FaultProxy(socketserver.ThreadingTCPServer):
    """The proxy. `rules` may be changed at any time; `seen` is a copy of the log."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, upstream_port: int, *, clock: Clock | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Exchange)
        self.upstream_port = upstream_port
        self.clock: Clock = clock or SystemClock()
        self.closing = threading.Event()
        self.changed = threading.Condition()
        self._rules: list[Rule] = []
        self._seen: list[Seen] = []
        self._last: dict[str, float] = {}

    @property
    def endpoint(self) -> str:
        """The URL to give to an S3 client."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def seen(self) -> list[Seen]:
        """Every request so far, oldest first."""
        with self.changed:
            return list(self._seen)

    def rule(self, *rules: Rule) -> None:
        """Replace all rules; none means an honest proxy."""
        with self.changed:
            self._rules = list(rules)

    def forget(self) -> None:
        """Empty the log of requests."""
        with self.changed:
            self._seen.clear()

    def wait_seen(self, count: int, *, verb: str = ".", path: str = ".", timeout_s: float = 20.0) -> bool:
        """True as soon as `count` matching requests have arrived, False after `timeout_s`."""
        with self.changed:
            return self.changed.wait_for(
                lambda: sum(1 for s in self._seen if re.search(verb, s.verb) and re.search(path, s.path)) >= count,
                timeout_s,
            )

    def judge(self, verb: str, path: str, headers: Message, length: int) -> Rule | None:
        """Record the request and choose the first rule that hits it."""
        now = self.clock.monotonic()
        with self.changed:
            self._seen.append(Seen(now, verb, path, length))
            self.changed.notify_all()
            gap = now - self._last.get(path, float("-inf"))
            rule = next((rule for rule in self._rules if _hits(rule, verb, path, headers, gap)), None)
            if rule is None or rule.min_gap_s is None:
                self._last[path] = now  # what was refused for coming too soon was not a rewrite
            return rule


def _hits(rule: Rule, verb: str, path: str, headers: Message, gap: float) -> bool:
    if not (re.search(rule.verb, verb) and re.search(rule.path, path)):
        return False
    wanted = rule.reject_header
    if wanted is not None and not any(name.lower().startswith(wanted) for name in headers):
        return False
    key = unquote(path.partition("?")[0]).split("/", 2)[-1]
    if rule.max_key is not None and len(key.encode()) <= rule.max_key:
        return False
    if rule.min_gap_s is not None and gap >= rule.min_gap_s:
        return False
    rule.hits += 1
    return rule.skip < rule.hits and (rule.times is None or rule.hits <= rule.skip + rule.times)


class _Exchange(http.server.BaseHTTPRequestHandler):
    """One client connection."""

    server: FaultProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Tests read `seen`; nothing goes to stderr."""

    def _exchange(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        rule = self.server.judge(self.command, self.path, self.headers, length) or Rule()
        if rule.delay_s:
            self.server.closing.wait(rule.delay_s)
        if rule.hang:
            self.server.closing.wait()
            return self._reset()
        if rule.cut_request is not None:
            self.rfile.read(min(length, rule.cut_request))
            return self._reset()
        body = self.rfile.read(length)
        if rule.status is not None:
            return self._refuse(rule)
        try:
            status, headers, reply = self._forward(body)
        except (OSError, http.client.HTTPException):
            return self._reset()  # the server is down: what a client sees then
        if rule.lose_reply:
            return self._reset()
        return self._answer(status, headers, reply, rule)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _exchange

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.upstream_port, timeout=120)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            upstream.request(self.command, self.path, body or None, headers)
            reply = upstream.getresponse()
            announced = reply.getheader("content-length")
            kept = [(name, value) for name, value in reply.getheaders() if name.lower() not in _HOP_BY_HOP]
            data = reply.read()
        finally:
            upstream.close()
        size = announced if self.command == "HEAD" and announced is not None else str(len(data))
        return reply.status, [*kept, ("Content-Length", size)], data

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, rule: Rule) -> None:
        cut = rule.shorten_reply if rule.shorten_reply is not None else len(body)
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() == "content-length" and rule.shorten_reply is not None:
                value = str(min(cut, len(body)))
            if name.lower() == "last-modified" and rule.last_modified is not None:
                value = rule.last_modified
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: rule.cut_reply if rule.cut_reply is not None else cut])
        if rule.cut_reply is not None:
            self._reset()

    def _refuse(self, rule: Rule) -> None:
        body = f"<Error><Code>{rule.code}</Code><Message>injected</Message></Error>".encode()
        self.send_response_only(rule.status or 500)
        for name, value in {"Content-Type": "application/xml", **rule.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _reset(self) -> None:
        self.wfile.flush()
        self.close_connection = True

    def handle(self) -> None:
        """As the base class, but a client that hangs up is no error."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True


@contextmanager
def fault_proxy(upstream_port: int) -> Iterator[FaultProxy]:
    """A running proxy before 127.0.0.1:`upstream_port`, closed at the end."""
    with FaultProxy(upstream_port) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.closing.set()
            proxy.shutdown()
            thread.join(5)
