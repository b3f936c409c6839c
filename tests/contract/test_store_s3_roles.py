"""A machine without a key gets one from where its platform keeps them, and gets a new one when that one ends."""

from __future__ import annotations

import http.server
import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock
from spotwarp.persistence.store.s3 import S3Store
from spotwarp.testing.seaweed import REGION, WRITER, Seaweed

UNTIL = "2999-01-01T00:00:00Z"
JSON = {"AccessKeyId": WRITER.access_key, "SecretAccessKey": WRITER.secret_key, "Token": "", "Expiration": UNTIL}
STS = (
    "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
    f"<AccessKeyId>{WRITER.access_key}</AccessKeyId><SecretAccessKey>{WRITER.secret_key}</SecretAccessKey>"
    f"<SessionToken></SessionToken><Expiration>{UNTIL}</Expiration>"
    "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
)


class KeyServer(http.server.BaseHTTPRequestHandler):
    """The three kinds of key servers in one: STS, a container's, the metadata service (version 2)."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        if self.command == "PUT" and path == "/latest/api/token":
            body = "session"
        elif path.endswith("/security-credentials/"):
            body = "the-role" if self.headers.get("X-aws-ec2-metadata-token") == "session" else ""
        elif path.endswith("/security-credentials/the-role"):
            body = json.dumps({**JSON, "Code": "Success", "LastUpdated": UNTIL, "Type": "AWS-HMAC"})
        elif path == "/container" and self.headers.get("Authorization") == "the-token":
            body = json.dumps(JSON)
        elif "AssumeRoleWithWebIdentity" in self.path and "the-identity" in self.path:
            body = STS
        else:
            self.send_error(403)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    do_GET = do_PUT = do_POST = _answer


@contextmanager
def key_server(certificate: Path | None = None) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), KeyServer) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def keys() -> Iterator[str]:
    with key_server() as url:
        yield url


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and the certificate for 127.0.0.1 that it signed itself, in one file."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    words += " -addext basicConstraints=critical,CA:FALSE"
    subprocess.run([*words.split(), "-keyout", path, "-out", path.with_name("c.pem")], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + path.with_name("c.pem").read_bytes())
    return path


def metadata(keys: str, home: Path) -> dict[str, str]:
    return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": keys}


def container(keys: str, home: Path) -> dict[str, str]:
    (home / "token").write_text("the-token")
    return {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{keys}/container",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(home / "token"),
    }


def web_identity(keys: str, home: Path) -> dict[str, str]:
    (home / "identity").write_text("the-identity")
    return {
        "AWS_ROLE_ARN": "arn:aws:iam::1:role/r",
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(home / "identity"),
        "AWS_ENDPOINT_URL_STS": keys,
    }


def web_identity_profile(keys: str, home: Path) -> dict[str, str]:
    env = web_identity(keys, home)
    (home / ".aws").mkdir()
    (home / ".aws/config").write_text(
        f"[profile p]\nrole_arn = {env.pop('AWS_ROLE_ARN')}\n"
        f"web_identity_token_file = {env.pop('AWS_WEB_IDENTITY_TOKEN_FILE')}\n"
    )
    return {**env, "AWS_PROFILE": "p"}


@pytest.mark.parametrize("source", [metadata, container])
def test_a_machine_gets_its_key_from_its_platform(
    seaweed_server: Seaweed, keys: str, tmp_path: Path, source: Callable[[str, Path], dict[str, str]]
) -> None:
    env = {"HOME": str(tmp_path), "AWS_ENDPOINT_URL": seaweed_server.endpoint, "AWS_REGION": REGION}
    store = S3Store("spotwarp", tmp_path.name, env={**env, **source(keys, tmp_path)}, clock=SystemClock())
    store.put("a", b"1")
    assert store.get("a") == b"1"


@pytest.mark.parametrize("source", [web_identity, web_identity_profile])
def test_a_pod_gets_its_key_for_its_identity(
    seaweed_server: Seaweed, certificate: Path, tmp_path: Path, source: Callable[[str, Path], dict[str, str]]
) -> None:
    env = {
        "HOME": str(tmp_path),
        "AWS_ENDPOINT_URL": seaweed_server.endpoint,
        "AWS_REGION": REGION,
        "AWS_CA_BUNDLE": str(certificate.with_name("c.pem")),
    }
    with key_server(certificate) as sts:
        store = S3Store("spotwarp", tmp_path.name, env={**env, **source(sts, tmp_path)}, clock=SystemClock())
        store.put("a", b"1")
        assert store.get("a") == b"1"
