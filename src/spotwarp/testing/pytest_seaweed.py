"""A pytest plugin: one real S3 server for the whole session, and a fault proxy and a fresh prefix for each test.

Use it with `pytest_plugins = ["spotwarp.testing.pytest_seaweed"]` in the top conftest, or by importing its fixtures.
It never skips: without the `weed` binary the tests that ask for a server fail.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotwarp.clock import SystemRng
from spotwarp.testing.faultproxy import FaultProxy, fault_proxy
from spotwarp.testing.seaweed import Seaweed, seaweed

BUCKET = "spotwarp"


@pytest.fixture(scope="session")
def seaweed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A running server with the bucket `spotwarp`. Who kills it must start it again."""
    with seaweed(tmp_path_factory.mktemp("seaweed"), buckets=(BUCKET,)) as server:
        yield server


@pytest.fixture
def s3_proxy(seaweed_server: Seaweed) -> Iterator[FaultProxy]:
    """A fault proxy before the server, honest until it is given rules."""
    with fault_proxy(seaweed_server.port) as proxy:
        yield proxy


@pytest.fixture
def s3_url() -> str:
    """A remote path in the bucket that no other test uses."""
    return f"s3://{BUCKET}/{SystemRng().token(8)}"
