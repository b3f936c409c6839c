"""One description for every kind of server that can be a store, so that one suite can ask the same of each.

Owns nothing: the servers are started by `seaweed`, `gcs`, `azurite` and `ceph`. It knows the variables that lead a
client to each of them, and those of somebody who has the wrong key, may only read, or names a bucket that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from spotwarp.clock import SystemClock, SystemRng
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.store.retrying import RetryingStore, RetryPolicy
from spotwarp.persistence.store.url import bare_store, parse_url
from spotwarp.retry import Backoff
from spotwarp.testing.azurite import Azurite
from spotwarp.testing.ceph import Ceph
from spotwarp.testing.gcs import READER as GCS_READER
from spotwarp.testing.gcs import WRITER as GCS_WRITER
from spotwarp.testing.gcs import GcsDouble
from spotwarp.testing.seaweed import READER, Seaweed

BUCKET: Final = "spotwarp"


@dataclass(frozen=True)
class Cloud:
    """One server, and a prefix in its bucket that nobody else uses.

    `env_at(endpoint)` is the writer's variables, for the server itself or a proxy; `wrong_key` and `reader`
    (None: this server has no such thing) change them. `secret` must never be seen in a message;
    `setting` is the variable that a hint about keys names.
    """

    name: str
    scheme: str
    port: int
    prefix: str
    env_at: Callable[[str | None], dict[str, str]]
    wrong_key: Mapping[str, str]
    secret: str
    setting: str
    reader: Mapping[str, str] | None = None

    @property
    def url(self) -> str:
        """The remote path."""
        return f"{self.scheme}://{BUCKET}/{self.prefix}"

    def env(self, endpoint: str | None = None, **other: str) -> dict[str, str]:
        """The variables of somebody who may write, with some of them `other`."""
        return {**self.env_at(endpoint), **other}

    def store(self, endpoint: str | None = None, other: Mapping[str, str] | None = None, url: str = "") -> Store:
        """The store as it is below all retrying, with some variables `other`."""
        env = self.env(endpoint, **(other or {}))
        return bare_store(parse_url(url or self.url), clock=SystemClock(), rng=SystemRng(), env=env)


def s3_cloud(server: Seaweed, prefix: str) -> Cloud:
    """SeaweedFS as S3."""
    reader = {"AWS_ACCESS_KEY_ID": READER.access_key, "AWS_SECRET_ACCESS_KEY": READER.secret_key}
    return replace(_speaks_s3(server, "s3", prefix), reader=reader)


def ceph_cloud(cluster: Ceph, prefix: str) -> Cloud:
    """Ceph's gateway as S3; nobody there may only read."""
    return _speaks_s3(cluster, "ceph", prefix)


def _speaks_s3(server: Seaweed | Ceph, name: str, prefix: str) -> Cloud:
    return Cloud(
        name=name,
        scheme="s3",
        port=server.port,
        prefix=prefix,
        env_at=lambda endpoint: server.env(endpoint=endpoint),
        wrong_key={"AWS_SECRET_ACCESS_KEY": "wrong"},
        secret=server.env()["AWS_SECRET_ACCESS_KEY"],
        setting="AWS_SECRET_ACCESS_KEY",
    )


def gcs_cloud(server: GcsDouble, prefix: str, keys: Path) -> Cloud:
    """The double of Google's, asking for tokens; `keys` is a directory for key files."""
    server.authenticated = True

    def key_file(email: str) -> str:
        path = keys / f"{email}.json"
        path.write_text(server.signer.key_file(email))
        return str(path)

    writer = key_file(GCS_WRITER)
    named = "GOOGLE_APPLICATION_CREDENTIALS"
    return Cloud(
        name="gcs",
        scheme="gs",
        port=server.port,
        prefix=prefix,
        env_at=lambda endpoint: {**server.env(endpoint), named: writer},
        wrong_key={named: key_file("nobody@spotwarp.example")},
        secret="PRIVATE KEY",  # noqa: S106 - what no message may hold
        setting=named,
        reader={named: key_file(GCS_READER)},
    )


def azure_cloud(server: Azurite, prefix: str) -> Cloud:
    """Azurite."""
    return Cloud(
        name="azure",
        scheme="az",
        port=server.port,
        prefix=prefix,
        env_at=server.env,
        wrong_key={"AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="},
        secret=server.env()["AZURE_STORAGE_ACCOUNT_KEY"],
        setting="AZURE_STORAGE_ACCOUNT_KEY",
        reader={"AZURE_STORAGE_ACCOUNT_KEY": "", "AZURE_STORAGE_SAS_TOKEN": server.sas(BUCKET, "rl")},
    )


def every_verb(store: Store) -> list[Callable[[], object]]:
    """Each verb of `store`, on keys of no meaning."""
    return [
        lambda: store.put("a", b"x"),
        lambda: store.put_new("b", b"x"),
        lambda: store.get("a"),
        lambda: store.get_range("a", 0, 1),
        lambda: store.head("a"),
        lambda: store.list("p"),
        lambda: store.delete("a"),
    ]


def patient(store: Store, budget_s: float = 30.0) -> RetryingStore:
    """`store`, tried again soon and for at most `budget_s` seconds."""
    return RetryingStore(
        store, clock=SystemClock(), rng=SystemRng(), policy=RetryPolicy(budget_s, Backoff(first_s=0.005, cap_s=0.1))
    )
