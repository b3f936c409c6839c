"""A run that is held to limits keeps them, says so, and forgets them when its machine is about to go."""

from __future__ import annotations

import signal
import time

import pytest

from spotwarp.testing.backups import noise
from spotwarp.testing.product import Machine

MIB = 1 << 20
RATE = MIB


@pytest.mark.slow
def test_a_notice_lifts_the_limit_that_a_run_keeps(ws: Machine) -> None:
    ws.file("data.bin", noise(24 * MIB, 1))
    program = ws.start(
        *("run", "--limits", f"cpu=1.5, bandwidth={RATE}B/s", "--coding", "raw", "--command", "exec sleep 60")
    )
    begun = time.monotonic()
    program.until(lambda: ws.facts("status").get("limits"), "the run to say what it may use")
    seen = ws.facts("status")
    assert seen["limits"] == "1.5 core(s), 1.0 MiB/s each way"
    assert (seen["coding"], seen["coding_why"]) == ("raw", "as told")
    assert seen["last_snapshot"] is None, "24 MiB take 24 s"
    program.send(signal.SIGTERM)
    program.end(75)
    assert time.monotonic() - begun < 20
    ws("check", "--read-data")
    costs(ws)


def costs(ws: Machine) -> None:
    """The run has stored more than 24 MiB by more than three puts, whatever that costs."""
    free = ws.facts("status", "--cost")["cost"]
    assert free["stored"]["packs"] > 24 * MIB
    assert free["requests"]["puts"] > 3
    assert free["requests"]["sent"] > 0, "of each attempt all but its last seconds are known"
    assert free["dollars"]["month"] == free["dollars"]["restore"] == 0.0
    said = ws("status", "--cost", env={"SPOTWARP_PRICES": "storage=1000, egress=100"}).out.decode()
    assert "a restore" in said
    assert "with the config's prices" in said
