"""A double of Google Cloud Storage's XML API on loopback, faithful where a store's promises depend on it.

Owns one listening socket and objects in memory, each with a generation, an ETag and a time. Preconditions, ranges,
paged listings, multipart uploads, bearer tokens (those of a metadata server, whose part it plays too, and the signed
ones of service accounts) and the limit on rewrites of one name are enforced. What it does not know it refuses with 501,
so that no test passes for a lenient answer.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import itertools
import json
import re
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from email.message import Message
from email.utils import format_datetime
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from spotwarp.clock import Clock, SystemClock
from spotwarp.testing.signed_tokens import Signer, TokenRefused

PAGE: Final = 1000
WRITER: Final = "writer@spotwarp.example"
READER: Final = "reader@spotwarp.example"
MACHINE_TOKEN: Final = "ya29.machine"  # noqa: S105 - what the metadata server gives out
_METADATA: Final = "/computeMetadata/v1/instance/service-accounts/default/token"


class Refused(Exception):
    """An answer that is no success: HTTP status and the code in its XML body."""

    def __init__(self, status: int, code: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{status} {code}")
        self.status, self.code, self.headers = status, code, dict(headers or {})


@dataclass(frozen=True, slots=True)
class Blob:
    """One object as it stands."""

    data: bytes
    generation: int
    modified: datetime

    @property
    def etag(self) -> str:
        """Quoted, as in the header."""
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


@dataclass(frozen=True, slots=True)
class Reply:
    """A success."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seen:
    """One request and how it was answered: monotonic seconds, verb, path with query, status."""

    at: float
    verb: str
    path: str
    status: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request, its target taken apart: bucket, key ("" for the bucket itself), query, headers, body."""

    verb: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: Message
    body: bytes


class GcsDouble(socketserver.ThreadingTCPServer):
    """The server. Anonymous requests pass until `authenticated` is set; `rewrite_gap_s` (seconds, None: no limit) is
    how long a name must rest between two writes, one second at Google. Two ways to be no store at all, which Google's
    is not: `ignores_conditions`, and `folds_case`, for which names are the same in upper and lower case."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, *buckets: str, clock: Clock | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Exchange)
        self.clock: Clock = clock or SystemClock()
        self.authenticated = False
        self.rewrite_gap_s: float | None = None
        self.ignores_conditions = False
        self.folds_case = False
        self.signer = Signer()
        self._lock = threading.Lock()
        self._generations = itertools.count(1_700_000_000_000_000)
        self._buckets: dict[str, dict[str, Blob]] = {name: {} for name in buckets}
        self._uploads: dict[str, tuple[str, str, dict[int, bytes]]] = {}
        self._written: dict[tuple[str, str], float] = {}
        self._seen: list[Seen] = []

    @property
    def port(self) -> int:
        """On 127.0.0.1."""
        return int(self.server_address[1])

    @property
    def endpoint(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def seen(self) -> list[Seen]:
        """Every request so far, oldest first."""
        with self._lock:
            return list(self._seen)

    @property
    def uploads(self) -> list[str]:
        """The keys of the multipart uploads that were begun and neither completed nor aborted."""
        with self._lock:
            return [key for _, key, _ in self._uploads.values()]

    def env(self, endpoint: str | None = None) -> dict[str, str]:
        """The variables that make a client talk to this server (or to a proxy at `endpoint`)."""
        return {"STORAGE_EMULATOR_HOST": endpoint or self.endpoint}

    def answer(self, verb: str, target: str, headers: Message, body: bytes) -> Reply:
        """Obey one request. Raises `Refused`."""
        parts = urlsplit(target)
        if parts.path == _METADATA:
            return _metadata_token(headers)
        bucket, _, key = parts.path.lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        key = unquote(key).lower() if self.folds_case else unquote(key)
        request = Request(verb, bucket, key, query, headers, body)
        with self._lock:
            self._allow(request)
            objects = self._buckets.get(bucket)
            if objects is None:
                raise Refused(404, "NoSuchBucket")
            if not request.key:
                return _listing(objects, request)
            return self._object(objects, request)

    def note(self, verb: str, target: str, status: int) -> None:
        """Record an exchange."""
        with self._lock:
            self._seen.append(Seen(self.clock.monotonic(), verb, target, status))

    def _allow(self, request: Request) -> None:
        if not self.authenticated:
            return
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer":
            raise Refused(401, "AuthenticationRequired")
        try:
            who = WRITER if token == MACHINE_TOKEN else self.signer.signed_by(token, self.clock.wall())
        except TokenRefused:
            raise Refused(401, "AuthenticationRequired") from None
        if who not in (WRITER, READER):
            raise Refused(401, "AuthenticationRequired")
        if who == READER and request.verb not in ("GET", "HEAD"):
            raise Refused(403, "AccessDenied")

    def _object(self, objects: dict[str, Blob], request: Request) -> Reply:
        if "uploads" in request.query or "uploadId" in request.query:
            return self._multipart(objects, request)
        current = objects.get(request.key)
        if request.verb in ("GET", "HEAD"):
            return _read(current, request)
        if request.verb == "PUT":
            if "x-goog-copy-source" in request.headers:
                raise Refused(501, "NotImplemented")
            return self._write(objects, request, request.body)
        if request.verb == "DELETE":
            if current is None:
                raise Refused(404, "NoSuchKey")
            del objects[request.key]
            return Reply(204)
        raise Refused(501, "NotImplemented")

    def _write(self, objects: dict[str, Blob], request: Request, data: bytes) -> Reply:
        if not self.ignores_conditions:
            _check_preconditions(objects.get(request.key), request)
        now, name = self.clock.monotonic(), (request.bucket, request.key)
        if self.rewrite_gap_s is not None and now - self._written.get(name, float("-inf")) < self.rewrite_gap_s:
            raise Refused(429, "SlowDown")
        expected = request.headers.get("Content-MD5")
        if expected and base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode() != expected:
            raise Refused(400, "BadDigest")
        self._written[name] = now
        blob = objects[request.key] = Blob(data, next(self._generations), self.clock.wall())
        return Reply(headers=_headers(blob))

    def _multipart(self, objects: dict[str, Blob], request: Request) -> Reply:
        if "uploads" in request.query and request.verb == "POST":
            upload = f"upload-{next(self._generations)}"
            self._uploads[upload] = (request.bucket, request.key, {})
            return _xml(
                f"<InitiateMultipartUploadResult><Bucket>{request.bucket}</Bucket><Key>{escape(request.key)}</Key>"
                f"<UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            )
        upload = request.query.get("uploadId", "")
        if self._uploads.get(upload, ("", "", {}))[:2] != (request.bucket, request.key):
            raise Refused(404, "NoSuchUpload")
        parts = self._uploads[upload][2]
        if request.verb == "PUT":
            parts[int(request.query["partNumber"])] = request.body
            return Reply(headers={"ETag": Blob(request.body, 0, self.clock.wall()).etag})
        if request.verb == "DELETE":
            del self._uploads[upload]
            return Reply(204)
        numbers = [int(found) for found in re.findall(r"<PartNumber>(\d+)</PartNumber>", request.body.decode())]
        if request.verb != "POST" or not numbers or numbers != sorted(numbers) or not set(numbers) <= set(parts):
            raise Refused(400, "InvalidPart")
        reply = self._write(objects, request, b"".join(parts[number] for number in numbers))
        del self._uploads[upload]
        return _xml(
            f"<CompleteMultipartUploadResult><ETag>{escape(reply.headers['ETag'])}</ETag>"
            "</CompleteMultipartUploadResult>",
            reply.headers,
        )


def _check_preconditions(current: Blob | None, request: Request) -> None:
    wanted = request.headers.get("x-goog-if-generation-match")
    if wanted is not None and int(wanted) != (current.generation if current else 0):
        raise Refused(412, "PreconditionFailed")
    if "x-goog-if-generation-not-match" in request.headers or "x-goog-if-metageneration-match" in request.headers:
        raise Refused(501, "NotImplemented")


def _headers(blob: Blob) -> dict[str, str]:
    return {
        "ETag": blob.etag,
        "x-goog-generation": str(blob.generation),
        "x-goog-metageneration": "1",
        "x-goog-stored-content-length": str(len(blob.data)),
        "Last-Modified": format_datetime(blob.modified, usegmt=True),
    }


def _read(blob: Blob | None, request: Request) -> Reply:
    if blob is None:
        raise Refused(404, "NoSuchKey")
    if request.headers.get("If-Match", blob.etag) not in ("*", blob.etag):
        raise Refused(412, "PreconditionFailed")
    if request.headers.get("If-None-Match") in ("*", blob.etag):
        return Reply(304, headers=_headers(blob))
    asked = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("Range", ""))
    if asked is None or request.verb == "HEAD":
        return Reply(200, blob.data, _headers(blob))
    size = len(blob.data)
    start = int(asked[1]) if asked[1] else max(0, size - int(asked[2]))
    end = min(int(asked[2]) + 1, size) if asked[1] and asked[2] else size
    if start >= size:
        raise Refused(416, "InvalidRange", {"Content-Range": f"bytes */{size}"})
    return Reply(206, blob.data[start:end], {**_headers(blob), "Content-Range": f"bytes {start}-{end - 1}/{size}"})


def _listing(objects: dict[str, Blob], request: Request) -> Reply:
    if request.verb != "GET" or request.query.get("list-type") != "2" or "delimiter" in request.query:
        raise Refused(501, "NotImplemented")
    prefix, most = request.query.get("prefix", ""), int(request.query.get("max-keys", PAGE))
    token = request.query.get("continuation-token", "")
    after = base64.urlsafe_b64decode(token).decode() if token else request.query.get("start-after", "")
    matching = sorted(key for key in objects if key.startswith(prefix) and key > after)
    page = matching[:most]
    lines = [
        f"<Contents><Key>{escape(key)}</Key><Generation>{objects[key].generation}</Generation>"
        f"<LastModified>{objects[key].modified.strftime('%Y-%m-%dT%H:%M:%S.%fZ')}</LastModified>"
        f"<ETag>{escape(objects[key].etag)}</ETag><Size>{len(objects[key].data)}</Size></Contents>"
        for key in page
    ]
    more = len(matching) > len(page)
    token = base64.urlsafe_b64encode(page[-1].encode()).decode() if more else ""
    following = f"<NextContinuationToken>{token}</NextContinuationToken>" if more else ""
    return _xml(
        f"<ListBucketResult><Name>{request.bucket}</Name><Prefix>{escape(prefix)}</Prefix>"
        f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>{following}"
        f"{''.join(lines)}</ListBucketResult>"
    )


def _xml(body: str, headers: dict[str, str] | None = None) -> Reply:
    return Reply(
        200,
        f"<?xml version='1.0' encoding='UTF-8'?>{body}".encode(),
        {"Content-Type": "application/xml", **(headers or {})},
    )


def _metadata_token(headers: Message) -> Reply:
    if headers.get("Metadata-Flavor") != "Google":
        raise Refused(403, "Forbidden")
    token = {"access_token": MACHINE_TOKEN, "expires_in": 3599, "token_type": "Bearer"}
    return Reply(200, json.dumps(token).encode(), {"Content-Type": "application/json", "Metadata-Flavor": "Google"})


class _Exchange(http.server.BaseHTTPRequestHandler):
    """One client connection."""

    server: GcsDouble
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, format: str, *args: object) -> None:
        """Tests read `seen`; nothing goes to stderr."""

    def _exchange(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            reply = self.server.answer(self.command, self.path, self.headers, body)
        except Refused as refused:
            text = _xml(f"<Error><Code>{refused.code}</Code><Message>No.</Message></Error>", refused.headers)
            reply = replace(text, status=refused.status)
        self.server.note(self.command, self.path, reply.status)
        self.send_response_only(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.status not in (204, 304):
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if self.command != "HEAD" and reply.status not in (204, 304):
            self.wfile.write(reply.body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _exchange

    def handle(self) -> None:
        """As the base class, but a client that hangs up is no error."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True


@contextmanager
def gcs_double(*buckets: str, clock: Clock | None = None) -> Iterator[GcsDouble]:
    """A running double with empty `buckets`, closed at the end."""
    with GcsDouble(*buckets, clock=clock) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(5)
