"""A pytest plugin: one server of each kind for the whole session, and a fresh prefix and a fault proxy for each test.

Import its fixtures, or name it in `pytest_plugins`, together with those of `pytest_seaweed`. It never skips: where a
server is not installed the tests that ask for it fail.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotwarp.clock import SystemRng
from spotwarp.testing.azurite import Azurite, azurite
from spotwarp.testing.ceph import Ceph, ceph
from spotwarp.testing.clouds import BUCKET, Cloud, azure_cloud, ceph_cloud, gcs_cloud, s3_cloud
from spotwarp.testing.faultproxy import FaultProxy, fault_proxy
from spotwarp.testing.gcs import GcsDouble, gcs_double

CLOUDS = ("s3", "gcs", "azure", pytest.param("ceph", marks=pytest.mark.deep))


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsDouble]:
    """The double of Google Cloud Storage, with the bucket `spotwarp`."""
    with gcs_double(BUCKET) as server:
        yield server


@pytest.fixture(scope="session")
def azurite_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """A running Azurite with the container `spotwarp`."""
    with azurite(tmp_path_factory.mktemp("azurite"), containers=(BUCKET,)) as server:
        yield server


@pytest.fixture(scope="session")
def ceph_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ceph]:
    """A running Ceph gateway with the bucket `spotwarp`; needs root."""
    with ceph(tmp_path_factory.mktemp("ceph"), buckets=(BUCKET,)) as cluster:
        yield cluster


def find_cloud(kind: str, request: pytest.FixtureRequest) -> Cloud:
    """The server of that kind, for this test."""
    prefix = SystemRng().token(8)
    if kind == "gcs":
        keys = request.getfixturevalue("tmp_path_factory").mktemp("keys")
        return gcs_cloud(request.getfixturevalue("gcs_server"), prefix, keys)
    if kind == "azure":
        return azure_cloud(request.getfixturevalue("azurite_server"), prefix)
    if kind == "ceph":
        return ceph_cloud(request.getfixturevalue("ceph_cluster"), prefix)
    return s3_cloud(request.getfixturevalue("seaweed_server"), prefix)


@pytest.fixture(params=CLOUDS)
def cloud(request: pytest.FixtureRequest) -> Cloud:
    """Each server in turn."""
    return find_cloud(request.param, request)


@pytest.fixture
def proxy(cloud: Cloud) -> Iterator[FaultProxy]:
    """A fault proxy before the cloud's server, honest until it is given rules."""
    with fault_proxy(cloud.port) as proxy:
        yield proxy
