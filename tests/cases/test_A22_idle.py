"""Case A22: an idle run asks its store for next to nothing, and for the same whatever lies in the workspace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest

from spotwarp.testing.faultproxy import FaultProxy, Seen
from spotwarp.testing.product import Machine
from spotwarp.testing.pytest_product import bucket, rent, ws
from spotwarp.testing.pytest_seaweed import s3_proxy, s3_url, seaweed_server
from spotwarp.testing.seaweed import Seaweed

__all__ = ["bucket", "rent", "s3_proxy", "s3_url", "seaweed_server", "ws"]

LEASE_S, INTERVAL_S, BEATS = 2.0, 1.0, 16
ENV = {"SPOTWARP_LEASE": f"{LEASE_S:g}s", "SPOTWARP_INTERVAL": f"{INTERVAL_S:g}s"}


def kind(seen: Seen) -> str:
    """What a request was for."""
    path, _, query = seen.path.partition("?")
    if seen.verb == "GET" and "list-type" in query:
        return "LIST"
    part = re.search(r"/(log|beats|packs|manifests|telemetry|hint|config|names)(?:/|$)", path)
    return f"{seen.verb} {part[1] if part else path}"


@pytest.mark.slow
@pytest.mark.parametrize("files", [2000])
def test_A22_an_idle_hour_costs_heartbeats_and_looks_at_the_log(
    rent: Callable[..., Machine], seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str, files: int
) -> None:
    """No data, no listing, no request for a file; one heartbeat and one look at the log's end each quarter lease."""
    machine = rent(remote=s3_url, env={**seaweed_server.env(endpoint=s3_proxy.endpoint), **ENV}).init()
    for number in range(files):
        machine.file(f"data/{number}.txt", f"{number}\n")
    program = machine.start("run", "--command", "until test -e go; do sleep 0.1; done")
    beats = lambda: [seen for seen in s3_proxy.seen if kind(seen) == "PUT beats"]  # noqa: E731
    for first in ("PUT manifests", "PUT telemetry"):
        program.until(lambda first=first: any(kind(seen) == first for seen in s3_proxy.seen), f"the first {first}")
    settled = len(beats())
    program.until(lambda: len(beats()) >= settled + 6, "a few quiet intervals")
    s3_proxy.forget()
    program.until(lambda: len(beats()) > BEATS, "idle heartbeats")
    seen = s3_proxy.seen
    window_s = beats()[-1].at - beats()[0].at
    machine.file("go", "")
    program.end(0)
    counted = Counter(map(kind, seen))
    assert set(counted) <= {"PUT beats", "GET log"}, counted
    assert counted["PUT beats"] - 1 <= window_s / (LEASE_S / 4) + 1
    looks = window_s / (LEASE_S / 4) + window_s / INTERVAL_S
    assert counted["GET log"] <= looks + 3
    names = {one.key.rpartition("/")[2] for one in seen if kind(one) == "GET log"}
    assert len(names) == 1, "only the place where the next entry would be"
