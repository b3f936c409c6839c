"""Subjects of the store contract: memory, a local directory, and a real S3 server, bare as the rest never uses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock, SystemRng
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.store.local import LocalStore
from spotwarp.persistence.store.remote import S3Store
from spotwarp.testing.pytest_seaweed import BUCKET, s3_proxy, s3_url, seaweed_server
from spotwarp.testing.seaweed import Seaweed
from spotwarp.testing.stores import MemoryStore

__all__ = ["s3_proxy", "s3_url", "seaweed_server"]

CLOCK, RNG = SystemClock(), SystemRng()


@pytest.fixture(params=["memory", "local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "local":
        return LocalStore(tmp_path / "root", clock=CLOCK, rng=RNG)
    server: Seaweed = request.getfixturevalue("seaweed_server")
    return S3Store(BUCKET, RNG.token(8), env=server.env(), clock=CLOCK)


@pytest.fixture
def s3(seaweed_server: Seaweed) -> Callable[..., S3Store]:
    """Makes S3 stores at a fresh prefix; keywords are environment variables that differ."""
    prefix = RNG.token(8)

    def make(bucket: str = BUCKET, endpoint: str | None = None, **env: str) -> S3Store:
        return S3Store(bucket, prefix, env={**seaweed_server.env(endpoint=endpoint), **env}, clock=CLOCK)

    return make
