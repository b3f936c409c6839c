"""Machines with SpotWarp on them, and a real S3 server where a directory is too kind a store."""

from __future__ import annotations

from spotwarp.testing.pytest_clouds import azurite_server, ceph_cluster, cloud, gcs_server, proxy
from spotwarp.testing.pytest_product import bucket, rent, ws
from spotwarp.testing.pytest_seaweed import s3_proxy, s3_url, seaweed_server

__all__ = [
    "azurite_server",
    "bucket",
    "ceph_cluster",
    "cloud",
    "gcs_server",
    "proxy",
    "rent",
    "s3_proxy",
    "s3_url",
    "seaweed_server",
    "ws",
]
