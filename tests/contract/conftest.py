"""Subjects of the store contract, without retries: memory, a local directory, and a real server of each kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock, SystemRng
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.store.local import LocalStore
from spotwarp.persistence.store.s3 import S3Store
from spotwarp.testing.pytest_clouds import CLOUDS, azurite_server, ceph_cluster, cloud, find_cloud, gcs_server, proxy
from spotwarp.testing.pytest_seaweed import BUCKET, s3_proxy, s3_url, seaweed_server
from spotwarp.testing.seaweed import Seaweed
from spotwarp.testing.stores import MemoryStore

__all__ = ["azurite_server", "ceph_cluster", "cloud", "gcs_server", "proxy", "s3_proxy", "s3_url", "seaweed_server"]

CLOCK, RNG = SystemClock(), SystemRng()


@pytest.fixture(autouse=True)
def _rewrites_need_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The double of Google's store has no such limit here; what keeps to it has tests of its own."""
    monkeypatch.setattr("spotwarp.persistence.store.gcs.REWRITE_S", 0.0)


@pytest.fixture(params=["memory", "local", *CLOUDS])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "local":
        return LocalStore(tmp_path / "root", clock=CLOCK, rng=RNG)
    return find_cloud(request.param, request).store()


@pytest.fixture
def s3(seaweed_server: Seaweed) -> Callable[..., S3Store]:
    """Makes S3 stores at a fresh prefix; keywords are environment variables that differ."""
    prefix = RNG.token(8)

    def make(bucket: str = BUCKET, endpoint: str | None = None, **env: str) -> S3Store:
        return S3Store(bucket, prefix, env={**seaweed_server.env(endpoint=endpoint), **env}, clock=CLOCK)

    return make
