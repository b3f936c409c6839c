"""What the demo counts in a run log."""

from __future__ import annotations

from spotwarp.demo.evidence import Evidence, weigh
from spotwarp.persistence.runlog.entry import AnyEntry, Claim, Complete, Snapshot


def claim(generation: int) -> Claim:
    return Claim(generation=generation, machine="m", cause="first", base=0, lease_s=2.0)


def snapshot(generation: int, read_bytes: int = 0) -> Snapshot:
    return Snapshot(generation=generation, manifest="m", address="a", base=0, read_bytes=read_bytes)


def test_each_generation_in_its_own_time_is_no_zombie() -> None:
    entries: list[AnyEntry] = [claim(1), snapshot(1, 5), snapshot(1, 2), claim(2), snapshot(2, 8)]
    assert weigh([*entries, Complete(generation=2, snapshot=5, exit=0)]) == Evidence(zombie_commits=0, read_bytes=15)


def test_everything_after_the_successors_claim_is_a_zombies() -> None:
    entries = [
        claim(1),
        snapshot(1),
        claim(2),
        snapshot(1),
        snapshot(2),
        snapshot(1),
        Complete(generation=1, snapshot=6, exit=0),
    ]
    assert weigh(entries).zombie_commits == 3
