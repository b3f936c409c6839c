"""`spotwarp check`: the log replayed, the snapshots' objects looked at. Facts for printing; nothing is changed."""

from __future__ import annotations

from typing import Any

from spotwarp.errors import CorruptObject, ObjectMissing
from spotwarp.persistence.check import check
from spotwarp.persistence.entries import shown
from spotwarp.persistence.layout import log_key
from spotwarp.persistence.repository import Repository
from spotwarp.persistence.runlog.entry import Snapshot
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.persistence.runlog.replay import replay


def inspect_run(repository: Repository, log: RunLog, *, read_data: bool) -> dict[str, Any]:
    """Everything that is wrong with a run, and which snapshots are whole."""
    head = log.existing_head()
    problems: list[dict[str, Any]] = [
        {"kind": f"entry-{p.trouble}", "key": log_key(log.run, p.n), "what": p.message, "snapshots": [], "files": []}
        for p in replay(log)
    ]
    snapshots: list[Snapshot] = []
    for n in sorted(head.state.roots):
        try:
            entry = log.read(n)
        except (CorruptObject, ObjectMissing):
            continue  # named by the replay above
        if isinstance(entry, Snapshot):
            snapshots.append(entry)
    report = check(
        store=repository.store,
        run=log.run,
        snapshots=[(s.n, s.manifest, s.address) for s in snapshots],
        read_data=read_data,
    )
    problems += [
        {
            "kind": p.kind,
            "key": p.key,
            "what": p.what,
            "snapshots": list(p.snapshots),
            "files": [shown(f) for f in p.files],
        }
        for p in report.problems
    ]
    damaged = {p.key.rpartition("/")[2] for p in report.problems if "/packs/" in p.key}
    broken = {n for p in report.problems for n in p.snapshots} | (set(head.state.roots) - {s.n for s in snapshots})
    return {
        "run": log.run,
        "entries": head.n,
        "objects": report.objects,
        "bytes": report.bytes,
        "read_data": read_data,
        "problems": problems,
        "damaged_packs": sorted(damaged),
        "whole": [s.n for s in snapshots if s.n not in broken],
        "broken": sorted(broken),
    }
