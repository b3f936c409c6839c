"""What the run log itself says about a demo that is over.

Owns the counting. Reads entries as they lie in the bucket, those included that retention has let go or that every
reader holds void: a superseded machine's entry should not even be there. Must never write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from spotwarp.clock import Clock, SystemRng


@dataclass(frozen=True, slots=True)
class Evidence:
    """`zombie_commits` in entries, `read_bytes` in bytes of workspaces that the agents have read for snapshots."""

    zombie_commits: int
    read_bytes: int


def weigh(entries: Iterable[object]) -> Evidence:
    """The evidence in a run's entries, given in their order. What any but the newest generation adds is a zombie's."""
    from spotwarp.persistence.runlog.entry import Claim, Complete, Failed, Phase, Published, Snapshot

    newest = zombies = read = 0
    for entry in entries:
        if isinstance(entry, Claim):
            newest = max(newest, entry.generation)
        elif isinstance(entry, Snapshot | Phase | Published | Complete | Failed):
            zombies += entry.generation < newest
        if isinstance(entry, Snapshot):
            read += entry.read_bytes
    return Evidence(zombies, read)


def gather(bucket: Path, clock: Clock) -> Evidence:
    """The evidence in all runs of the repository at `bucket`. Raises errors of the tree when it cannot be read."""
    from spotwarp.persistence.repository import open_repository
    from spotwarp.persistence.store.url import open_store, parse_url

    rng = SystemRng()
    repository = open_repository(open_store(parse_url(str(bucket)), clock=clock, rng=rng))
    logs = [repository.log(run, life=rng.token(8), clock=clock, rng=rng) for run in repository.runs()]
    found = [weigh(log.entries()) for log in logs]
    return Evidence(sum(one.zombie_commits for one in found), sum(one.read_bytes for one in found))
