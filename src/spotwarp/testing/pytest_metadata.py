"""A pytest plugin: the metadata services of the clouds on loopback, one for each test that names it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotwarp.testing.metadata import AwsMetadata, AzureMetadata, GcpMetadata, Metadata, metadata


@pytest.fixture
def aws() -> Iterator[AwsMetadata]:
    """Amazon's."""
    with metadata("aws") as served:
        yield served


@pytest.fixture
def gcp() -> Iterator[GcpMetadata]:
    """Google's."""
    with metadata("gcp") as served:
        yield served


@pytest.fixture
def azure() -> Iterator[AzureMetadata]:
    """Microsoft's."""
    with metadata("azure") as served:
        yield served


@pytest.fixture
def cloud(request: pytest.FixtureRequest) -> Iterator[Metadata]:
    """The one that an indirect parameter names."""
    with metadata(request.param) as served:
        yield served
