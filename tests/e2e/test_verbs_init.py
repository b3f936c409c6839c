"""`spotwarp init` as a program: safe to repeat, honest about the store, silent about secrets."""

from __future__ import annotations

import http.server
import re
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs

import pytest

from spotwarp.testing.faultproxy import FaultProxy, Rule
from spotwarp.testing.product import Machine
from spotwarp.testing.seaweed import Seaweed

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow  # a whole program, several times

KEY, SECRET = "AKIDDISTINCTIVE0001", "distinctive/secret/value+0001"


def test_twice_is_as_once(rent: Rent) -> None:
    machine = rent()
    first = machine.facts("init", "--remote-path", machine.remote)
    config = Path(first["config"]).read_bytes()
    again = machine.facts("init", "--remote-path", machine.remote)
    bare = machine.facts("init")
    assert (first["created"], again["created"]) == (True, False)
    assert first["repository"] == again["repository"] == bare["repository"]
    assert Path(first["config"]).read_bytes() == config
    assert first["run"] == "main"
    probe = first["probe"]
    assert probe["create_if_absent"] == "atomic"
    assert probe["writable"] is probe["read_back"] is probe["listable"] is probe["deletable"] is True


def test_the_config_file_is_the_owners_alone_and_has_no_secret(rent: Rent) -> None:
    env = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    machine = rent(env=env)
    machine.init()
    machine("run", "--command", "true")
    config = machine.path / ".spotwarp" / "config.yaml"
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    for place in (machine.path / ".spotwarp", Path(machine.remote)):
        for file in place.rglob("*"):
            assert not file.is_file() or (SECRET.encode() not in file.read_bytes()), file
            assert not file.is_file() or (KEY.encode() not in file.read_bytes()), file


def test_another_remote_or_run_is_refused_and_changes_nothing(ws: Machine, tmp_path: Path) -> None:
    config = (ws.path / ".spotwarp" / "config.yaml").read_bytes()
    other = ws("init", "--remote-path", str(tmp_path / "elsewhere"), code=2)
    assert str(tmp_path / "bucket") in other.err
    assert "hint:" in other.err
    ws("init", "--run", "other", code=2)
    ws("init", "--single-writer", code=2)
    assert (ws.path / ".spotwarp" / "config.yaml").read_bytes() == config
    assert not (tmp_path / "elsewhere").exists()


def test_an_unknown_key_is_named_with_its_line_and_the_nearest_key(ws: Machine) -> None:
    config = ws.path / ".spotwarp" / "config.yaml"
    lines = config.read_text().splitlines()
    config.write_text("\n".join([*lines, "intervall: 5s"]) + "\n")
    for verb in ("init", "status", "sync"):
        done = ws(verb, code=2)
        assert f"line {len(lines) + 1}" in done.err
        assert "'interval'" in done.err


def test_a_broken_config_file_is_named_with_its_line(ws: Machine) -> None:
    config = ws.path / ".spotwarp" / "config.yaml"
    config.write_text("remote_path: [\n")
    assert "config.yaml, line" in ws("status", code=2).err
    config.write_bytes(b"\0" * 100)
    assert "hint:" in ws("status", code=2).err


def test_the_store_cannot_be_in_the_workspace(rent: Rent) -> None:
    machine = rent()
    for inside in (".", "backup", str(machine.path / "a" / "b")):
        assert "inside this workspace" in machine("init", "--remote-path", inside, code=2).err
    assert list(machine.path.iterdir()) == []


def test_another_machine_takes_over_the_runs_excludes(ws: Machine, rent: Rent) -> None:
    ws.file("cache/big", "x")
    ws("exclude", "cache/", "*.tmp")
    ws("run", "--command", "true")
    other = rent("other").init()
    config = (other.path / ".spotwarp" / "config.yaml").read_text()
    assert "- cache/" in config
    assert '"*.tmp"' in config or "'*.tmp'" in config
    assert other.facts("init")["snapshots"] in (1, 2)  # perhaps the first one, taken at once, as well


# --- real stores, and worse ones


@pytest.fixture
def remote(rent: Rent, seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str) -> Machine:
    """A machine whose remote is a real S3 server behind a proxy that can misbehave."""
    return rent(remote=s3_url, env=seaweed_server.env(endpoint=s3_proxy.endpoint))


def test_a_store_without_create_if_absent_is_refused_unless_asked_for(remote: Machine, s3_proxy: FaultProxy) -> None:
    s3_proxy.rule(Rule(verb="PUT", reject_header="if-none-match", status=501, code="NotImplemented"))
    refused = remote("init", "--remote-path", remote.remote, code=19)
    assert "create-if-absent" in refused.err
    assert "--single-writer" in refused.err
    assert not (remote.path / ".spotwarp" / "config.yaml").exists()
    loud = remote("init", "--remote-path", remote.remote, "--single-writer")
    assert b"WARNING" in loud.out
    remote("run", "--command", "echo x > kept")
    assert remote.facts("status")["state"] == "complete"


class _Careless(http.server.BaseHTTPRequestHandler):
    """Enough of S3 for a probe, except that it takes no notice of conditions: the last writer wins."""

    protocol_version = "HTTP/1.1"
    objects: ClassVar[dict[str, bytes]] = {}

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", part: str = "") -> None:
        self.send_response(status)
        if part:
            self.send_header("Content-Range", part)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"0"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        self.objects[self.path] = self.rfile.read(int(self.headers["content-length"]))
        self._answer(200)

    def do_DELETE(self) -> None:
        self.objects.pop(self.path, None)
        self._answer(204)

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if "list-type=2" in query:
            prefix = parse_qs(query).get("prefix", [""])[0]
            keys = sorted(k for k in (name.split("/", 2)[2] for name in self.objects) if k.startswith(prefix))
            rows = "".join(
                f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>0</ETag>"
                f"<Size>{len(self.objects[path.rstrip('/') + '/' + key])}</Size></Contents>"
                for key in keys
            )
            text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
            return self._answer(200, text.encode())
        if path not in self.objects:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        body = self.objects[path]
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", "")):
            first, last = int(wanted[1]), min(int(wanted[2]), len(body) - 1)
            return self._answer(206, body[first : last + 1], f"bytes {first}-{last}/{len(body)}")
        return self._answer(200, body)

    do_HEAD = do_GET


def test_a_store_that_ignores_create_if_absent_is_found_out(rent: Rent) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Careless) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        machine = rent(env={"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"})
        refused = machine("init", "--remote-path", "s3://bucket/x", "--json", code=19)
        assert refused.json["error"]["code"] == "StoreUnsupported"
        assert "ignores create-if-absent" in refused.err
        assert not (machine.path / ".spotwarp" / "config.yaml").exists()
        server.shutdown()


def test_wrong_credentials_and_a_missing_bucket_are_told_apart(
    rent: Rent, seaweed_server: Seaweed, s3_url: str
) -> None:
    wrong = rent("wrong", remote=s3_url, env={**seaweed_server.env(), "AWS_SECRET_ACCESS_KEY": SECRET})
    denied = wrong("init", "--remote-path", s3_url, code=12)
    assert "hint:" in denied.err
    assert SECRET not in denied.err
    lost = rent("lost", env=seaweed_server.env())
    assert "no-such-bucket" in lost("init", "--remote-path", "s3://no-such-bucket/x", code=10).err


def test_a_server_that_never_answers_is_given_up_in_bounded_time(rent: Rent) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(64)
        env = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{deaf.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
        }
        done = rent(env=env)("init", "--remote-path", "s3://bucket/x", code=17, seconds=90)
    assert "hint:" in done.err
