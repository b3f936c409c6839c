"""After a restore only what was compared or installed is known to be stored; anything else is read at the next sync."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotwarp import config
from spotwarp.clock import SystemClock
from spotwarp.execution.restoring.verb import restore_run
from spotwarp.execution.syncing.syncer import Syncer
from spotwarp.persistence import repository
from spotwarp.persistence.runlog.entry import Claim
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.testing.clocks import SeededRng
from spotwarp.testing.stores import MemoryStore

OWN = f"{config.DIRECTORY}/{config.FILE}"
"""Which no restore compares."""


@pytest.mark.parametrize("paths", [("lost",), ("lost", "elsewhere"), ()])
def test_what_differs_and_was_not_chosen_is_read_again(tmp_path: Path, paths: tuple[str, ...]) -> None:
    clock, store, said = SystemClock(), MemoryStore(), list[str]()
    repo = repository.create(store, clock=clock, rng=SeededRng("r"))[0]
    conf = config.load(None, env={"SPOTWARP_REMOTE_PATH": "memory", "SPOTWARP_RUN": "main"})
    log = RunLog(store, "main", life="a", clock=clock, rng=SeededRng("a"), append_budget_s=1)
    log.append(lambda _: Claim(generation=1, machine="m", cause="", base=0, lease_s=20))
    root = tmp_path / "w"
    for name in ("changed", "lost", "elsewhere/file", OWN):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"as it was")
    syncer = Syncer(root, conf, repo, log, 1, clock=clock, rng=SeededRng("s"), say=said.append)
    syncer.sync(final=True)
    changed = ("changed", OWN) if paths else (OWN,)
    for name in changed:
        before = (root / name).stat()
        (root / name).write_bytes(b"as it is!")
        os.utime(root / name, ns=(before.st_atime_ns, before.st_mtime_ns))
    (root / "lost").unlink()
    restore_run(
        root, conf, repo, log, wanted="latest", to=None, paths=paths, force=False, clock=clock, say=said.append
    )  # fmt: skip
    assert (root / "lost").read_bytes() == b"as it was"
    again = Syncer(root, conf, repo, log, 1, clock=clock, rng=SeededRng("t"), say=said.append)
    again.sync()
    head = log.head().state.snapshot
    assert head > 2, "something is new"
    restore_run(
        root, conf, repo, log, wanted="latest", to=tmp_path / "to", paths=(), force=False, clock=clock, say=said.append
    )  # fmt: skip
    for name in changed:
        assert (tmp_path / "to" / name).read_bytes() == b"as it is!"
