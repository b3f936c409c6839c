"""A real Ceph object gateway for tests: one monitor, one manager, one disk in memory, one gateway, on loopback.

Owns those four processes, their ports and their directory. It needs root and the Debian packages radosgw, ceph-mon,
ceph-osd, ceph-mgr and ceph-common (`make test-deep` installs them), and no systemd. It never skips: when the cluster
cannot be started, it raises with the end of what was said. Its data is gone when it is.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import textwrap
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spotwarp.clock import Clock, SystemClock
from spotwarp.testing.seaweed import S3Identity, signed_headers

WRITER: Final = S3Identity("SPOTWARPWRITER", "writersecret", ())
PROGRAMS: Final = (
    "ceph",
    "ceph-authtool",
    "ceph-mgr",
    "ceph-mon",
    "ceph-osd",
    "monmaptool",
    "radosgw",
    "radosgw-admin",
)
_KEYS: Final = (
    ("mon.", "mon", "allow *"),
    ("client.admin", "mon", "allow *", "osd", "allow *", "mgr", "allow *"),
    ("mgr.x", "mon", "allow profile mgr", "osd", "allow *"),
    ("osd.0", "mon", "allow profile osd", "mgr", "allow profile osd", "osd", "allow *"),
    ("client.rgw", "mon", "allow rw", "mgr", "allow rw", "osd", "allow rwx"),
)


class CephFailed(Exception):
    """The cluster did not come up; the message says what failed."""


@dataclass
class Ceph:
    """One cluster. `root` must be an empty directory of the caller's."""

    root: Path
    clock: Clock = field(default_factory=SystemClock)
    port: int = 0
    _daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        """The S3 endpoint's URL."""
        return f"http://127.0.0.1:{self.port}"

    def env(self, identity: S3Identity = WRITER, endpoint: str | None = None) -> dict[str, str]:
        """The AWS variables that make an S3 client talk to this gateway (or to a proxy at `endpoint`)."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": identity.access_key,
            "AWS_SECRET_ACCESS_KEY": identity.secret_key,
        }

    def start(self, timeout_s: float = 120.0) -> None:
        """Start all four and return when the gateway answers. Raises `CephFailed`."""
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
        if missing or os.geteuid() != 0:
            raise CephFailed(f"Ceph needs root and its packages: {', '.join(missing) or 'not root'}")
        v2, v1, self.port = _free_ports(3)
        cluster = str(uuid.uuid4())
        for name in ("mon", "mgr", "osd", "log", "run", "rgw"):
            (self.root / name).mkdir(parents=True)
        (self.root / "ceph.conf").write_text(_config(self.root, cluster, v2, v1, self.port))
        self._make_keys()
        monitors = f"[v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]"
        self._run("monmaptool", "--create", "--addv", "a", monitors, "--fsid", cluster, str(self.root / "monmap"))
        self._run("ceph-mon", "-i", "a", "--mkfs", "--monmap", str(self.root / "monmap"))
        self._daemon("ceph-mon", "-i", "a")
        self._daemon("ceph-mgr", "-i", "x")
        disk = str(uuid.uuid4())
        number = self._run("ceph", "osd", "create", disk).strip()
        self._run("ceph-osd", "-i", number, "--mkfs", "--osd-uuid", disk)
        self._daemon("ceph-osd", "-i", number)
        self._daemon("radosgw", "-n", "client.rgw")
        self._await(timeout_s)
        writer = ("--access-key", WRITER.access_key, "--secret-key", WRITER.secret_key)
        self._run("radosgw-admin", "user", "create", "--uid=writer", "--display-name=writer", *writer)

    def stop(self) -> None:
        """SIGKILL to all: nothing of it is wanted any more."""
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGKILL)
            daemon.wait()
        self._daemons.clear()

    def create_bucket(self, name: str) -> None:
        """Create a bucket; an existing one is success. Raises `CephFailed`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            path = f"/{name}"
            headers = signed_headers("PUT", f"127.0.0.1:{self.port}", path, WRITER, self.clock)
            connection.request("PUT", path, headers=headers)
            reply = connection.getresponse()
            body = reply.read()
        finally:
            connection.close()
        if reply.status not in (200, 409):
            raise CephFailed(f"cannot create bucket {name}: {reply.status} {body[:300]!r}")

    def _make_keys(self) -> None:
        ring = str(self.root / "keyring")
        self._run("ceph-authtool", "--create-keyring", ring)
        for name, *caps in _KEYS:
            pairs = [
                word for service, right in zip(caps[::2], caps[1::2], strict=True) for word in ("--cap", service, right)
            ]
            self._run("ceph-authtool", ring, "--gen-key", "-n", name, *pairs)

    def _run(self, program: str, *words: str) -> str:
        done = subprocess.run(
            self._words(program, *words), cwd=self.root, capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode != 0:
            raise CephFailed(f"{program} {words[0]} ended with {done.returncode}: {done.stderr[-1000:]}")
        return done.stdout

    def _daemon(self, program: str, *words: str) -> None:
        with (self.root / "log" / f"{program}.out").open("wb") as log:
            self._daemons.append(
                subprocess.Popen(
                    [*self._words(program, *words), "-f"],
                    cwd=self.root,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _words(self, program: str, *words: str) -> list[str]:
        config = [] if program in ("monmaptool", "ceph-authtool") else ["-c", str(self.root / "ceph.conf")]
        return [program, *config, *words]

    def _await(self, timeout_s: float) -> None:
        end = self.clock.monotonic() + timeout_s
        while self.clock.monotonic() < end and all(daemon.poll() is None for daemon in self._daemons):
            try:
                with socket.create_connection(("127.0.0.1", self.port), 2):
                    return
            except OSError:
                self.clock.sleep(0.1)
        said = "\n".join(path.read_text(errors="replace")[-800:] for path in sorted((self.root / "log").iterdir()))
        raise CephFailed(f"the gateway did not answer within {timeout_s:.0f} s:\n{said}")


@contextmanager
def ceph(root: Path, *, buckets: tuple[str, ...] = ("spotwarp",)) -> Iterator[Ceph]:
    """A running cluster with `buckets`, gone at the end."""
    cluster = Ceph(root)
    try:
        cluster.start()
        for bucket in buckets:
            cluster.create_bucket(bucket)
        yield cluster
    finally:
        cluster.stop()


def _config(root: Path, cluster: str, v2: int, v1: int, port: int) -> str:
    # cephx, since a gateway without it does not start; nodelay, since small answers else take 40 ms each.
    return textwrap.dedent(f"""\
        [global]
        fsid = {cluster}
        mon host = [v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]
        public addr = 127.0.0.1
        cluster addr = 127.0.0.1
        ms bind ipv4 = true
        auth cluster required = cephx
        auth service required = cephx
        auth client required = cephx
        auth allow insecure global id reclaim = true
        keyring = {root}/keyring
        run dir = {root}/run
        admin socket = {root}/run/$cluster-$name.$pid.asok
        log file = {root}/log/$name.log
        crash dir = {root}/log
        mon data = {root}/mon
        mon data avail crit = 1
        mon data avail warn = 1
        mon allow pool size one = true
        mon max pg per osd = 1000
        mgr data = {root}/mgr
        osd data = {root}/osd
        osd objectstore = memstore
        memstore device bytes = 2147483648
        osd pool default size = 1
        osd pool default min size = 1
        osd pool default pg num = 8
        osd pool default pgp num = 8
        osd pool default pg autoscale mode = off
        osd crush chooseleaf type = 0
        [client.rgw]
        rgw data = {root}/rgw
        rgw frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
        rgw enable usage log = false
        rgw enable ops log = false
        rgw dynamic resharding = false
        rgw override bucket index max shards = 1
        rgw run sync thread = false
        """)


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]  # all held at once, so that they are distinct
    try:
        for listener in held:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in held]
    finally:
        for listener in held:
            listener.close()
