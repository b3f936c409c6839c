"""A loopback HTTP proxy that makes an S3 server misbehave on request.

Owns one listening socket and a list of rules; everything no rule touches passes unchanged, so that signatures stay
valid. It can refuse (with Retry-After, with another clock's Date), throttle, delay, hang, drip, cut a request or a
reply, lose a reply after the server has obeyed, truncate a body honestly or not, and leave keys out of a listing. Every
request is recorded before any rule is applied, and with the status it was answered.
"""

from __future__ import annotations

import http.client
import http.server
import re
import socket
import socketserver
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from email.utils import format_datetime, parsedate_to_datetime
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
    """Read this many bytes of the body, then hang up; the server never sees the request."""
    lose_reply: bool = False
    """Pass the request on, then hang up instead of answering."""
    cut_reply: int | None = None
    """Announce the whole body, send this many bytes of it, then hang up."""
    reset: bool = False
    """With one of the three above: hang up with a reset (RST) instead of an orderly end."""
    drip_bytes_s: float | None = None
    """Send the reply's body no faster than this."""
    shorten_reply: int | None = None
    """Send this many bytes and announce just as many: a server that lies consistently."""
    reject_header: str | None = None
    """With `status`: only requests that carry a header starting with this."""
    signed_by: str | None = None
    """With `status`: only requests signed with this access key."""
    max_key: int | None = None
    """With `status`: only keys longer than this many bytes."""
    min_body: int | None = None
    """Only requests whose body has at least this many bytes."""
    min_gap_s: float | None = None
    """With `status`: only when the same path was asked for with the same verb, and not refused, less than this ago."""
    ignore_condition: bool = False
    """Answer success where the server refused a create because the name is taken: a store that ignores conditions."""
    last_modified: str | None = None
    """Replace the reply's Last-Modified, in its header and in a listing."""
    unlisted: str | None = None
    """Leave the keys that match this expression out of a listing."""
    list_ends_after: int | None = None
    """End a listing after so many keys, and say that it is the whole."""
    hits: int = 0


@dataclass(slots=True)
class Seen:
    """One request as it arrived: monotonic seconds, verb, path with query, body length in bytes.

    `status` is what it was answered: 0 while it is under way, -1 when it was hung up on.
    """

    at: float
    verb: str
    path: str
    length: int
    status: int = 0

    @property
    def key(self) -> str:
        """The object's key with everything after the bucket, as the client names it."""
        return unquote(self.path.partition("?")[0]).split("/", 2)[-1]


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
        self._last: dict[tuple[str, str], float] = {}

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

    def acknowledged(self, path: str = ".") -> Counter[str]:
        """For each key below a matching path, how many PUTs of it were answered with success."""
        with self.changed:
            done = [s.key for s in self._seen if s.verb == "PUT" and s.status == 200 and re.search(path, s.path)]
        return Counter(done)

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

    def answered(self, seen: Seen, status: int) -> None:
        """Note what a request was answered."""
        with self.changed:
            seen.status = status
            self.changed.notify_all()

    def judge(self, seen: Seen, headers: Message) -> Rule | None:
        """Record the request and choose the first rule that hits it."""
        now, verb, path = seen.at, seen.verb, seen.path
        with self.changed:
            self._seen.append(seen)
            self.changed.notify_all()
            gap = now - self._last.get((verb, path), float("-inf"))
            rule = next((rule for rule in self._rules if _hits(rule, seen, headers, gap)), None)
            if rule is None or rule.min_gap_s is None:
                self._last[verb, path] = now  # what was refused for coming too soon was not a rewrite
            return rule


def _hits(rule: Rule, seen: Seen, headers: Message, gap: float) -> bool:
    path = seen.path
    if not (re.search(rule.verb, seen.verb) and re.search(rule.path, path)):
        return False
    if rule.min_body is not None and seen.length < rule.min_body:
        return False
    wanted = rule.reject_header
    if wanted is not None and not any(name.lower().startswith(wanted) for name in headers):
        return False
    if rule.signed_by is not None and f"={rule.signed_by}/" not in unquote(f"{headers.get('authorization')} {path}"):
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
        self._seen = Seen(self.server.clock.monotonic(), self.command, self.path, length)
        rule = self.server.judge(self._seen, self.headers) or Rule()
        if rule.delay_s:
            self.server.closing.wait(rule.delay_s)
        if rule.hang:
            self.server.closing.wait()
            return self._hang_up(rule)
        if rule.cut_request is not None:
            self.rfile.read(min(length, rule.cut_request))
            return self._hang_up(rule)
        body = self.rfile.read(length)
        if rule.status is not None:
            return self._refuse(rule)
        try:
            status, headers, reply = self._forward(body)
        except (OSError, http.client.HTTPException):
            return self._hang_up(rule)  # the server is down: what a client sees then
        if rule.lose_reply:
            return self._hang_up(rule)
        if rule.ignore_condition and status in (409, 412):
            status, headers, reply = 201, [("ETag", '"0"'), ("x-goog-generation", "1"), ("Content-Length", "0")], b""
        if self.command == "GET" and "list-type=2" in self.path:
            reply = _relisted(reply, rule)
            headers = [(n, str(len(reply)) if n == "Content-Length" else v) for n, v in headers]
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
        self.server.answered(self._seen, status)
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() == "content-length" and rule.shorten_reply is not None:
                value = str(min(cut, len(body)))
            if name.lower() == "last-modified" and rule.last_modified is not None:
                value = rule.last_modified
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self._send(body[: rule.cut_reply if rule.cut_reply is not None else cut], rule.drip_bytes_s)
        if rule.cut_reply is not None:
            self._hang_up(rule)

    def _send(self, body: bytes, bytes_s: float | None) -> None:
        piece = len(body) if bytes_s is None else max(1, int(bytes_s / 10))
        for start in range(0, len(body), piece or 1):
            self.wfile.write(body[start : start + piece])
            if bytes_s is not None and self.server.closing.wait(piece / bytes_s):
                return

    def _refuse(self, rule: Rule) -> None:
        body = f"<Error><Code>{rule.code}</Code><Message>injected</Message></Error>".encode()
        self.server.answered(self._seen, rule.status or 500)
        self.send_response_only(rule.status or 500)
        usual = {"Content-Type": "application/xml", "Date": format_datetime(self.server.clock.wall(), usegmt=True)}
        for name, value in {**usual, **rule.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _hang_up(self, rule: Rule) -> None:
        if not self._seen.status:
            self.server.answered(self._seen, -1)
        self.wfile.flush()
        self.close_connection = True
        if rule.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.rfile.close()  # the socket is closed, and the reset sent, when nobody holds it any more
            self.connection.close()

    def handle(self) -> None:
        """As the base class, but a client that hangs up is no error."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True


def _relisted(page: bytes, rule: Rule) -> bytes:
    """A page of a listing as `rule` wants it."""
    kept = 0

    def keep(found: re.Match[bytes]) -> bytes:
        nonlocal kept
        key = unquote(found[1].decode())
        if rule.unlisted is not None and re.search(rule.unlisted, key):
            return b""
        kept += 1
        return found[0] if rule.list_ends_after is None or kept <= rule.list_ends_after else b""

    if rule.unlisted is not None or rule.list_ends_after is not None:
        page = re.sub(rb"<Contents>.*?<Key>(.*?)</Key>.*?</Contents>", keep, page, flags=re.DOTALL)
    if rule.list_ends_after is not None:
        page = re.sub(rb"<NextContinuationToken>.*?</NextContinuationToken>", b"", page)
        page = page.replace(b"<IsTruncated>true", b"<IsTruncated>false")
    if rule.last_modified is not None:
        stamp = parsedate_to_datetime(rule.last_modified).strftime("%Y-%m-%dT%H:%M:%S.000Z").encode()
        page = re.sub(rb"<LastModified>.*?<", b"<LastModified>" + stamp + b"<", page)
    return page


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
