"""How much memory a backup and a restore of many small files take: run as a program, so that it is measured alone.

    python -m spotwarp.testing.scale FILES DIRECTORY [--restore]

Makes FILES files of 100 bytes in one directory, backs them up, once more after nothing changed and once more after one
did, and tells what each cost, one JSON object a line. The store is a directory beside them.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from spotwarp.clock import SystemClock
from spotwarp.execution.syncing.judging import judge_all
from spotwarp.persistence.backup import BackupOptions
from spotwarp.persistence.install import install
from spotwarp.persistence.restore import FetchOptions, fetch
from spotwarp.persistence.store.local import LocalStore
from spotwarp.testing.backups import Backups
from spotwarp.testing.clocks import SeededRng

EPOCH_NS = 1_700_000_000 * 10**9
SIZE = 100


def make(root: Path, count: int) -> None:
    """`count` files of `SIZE` bytes, all different, in one directory."""
    root.mkdir(parents=True)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for number in range(count):
            name = b"file-%08d.txt" % (number * 7919 % count)
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=fd)
            os.write(file, (b"%024d\n" % number) * (SIZE // 25))
            os.utime(file, ns=(EPOCH_NS, EPOCH_NS))
            os.close(file)
    finally:
        os.close(fd)


def peak_bytes() -> int:
    """The most memory that this process ever had resident."""
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def told(stage: str, work: Callable[[], dict[str, int]]) -> None:
    """Do `work`, and tell what it was and what it took."""
    started, used = time.monotonic(), time.process_time()
    facts = work()
    wall, cpu = time.monotonic() - started, time.process_time() - used
    line = {"stage": stage, **facts, "wall_s": round(wall, 3), "cpu_s": round(cpu, 3), "peak_bytes": peak_bytes()}
    print(json.dumps(line), flush=True)  # noqa: T201 - its answer


def main() -> None:
    """See the module."""
    count, place = int(sys.argv[1]), Path(sys.argv[2])
    root, restored = place / "workspace", place / "restored"
    make(root / "many", count)
    (place / "store").mkdir()
    store = LocalStore(place / "store", clock=SystemClock(), rng=SeededRng())
    options = BackupOptions(workers=2, pack_size=8 << 20)
    backups = Backups(root, store=store, judge=lambda at, seen: judge_all(at, seen, settle_s=0.0), options=options)

    def back_up() -> dict[str, int]:
        done = backups.take()
        return {"files": done.files, "read": done.read_bytes, "packs": backups.packs_put(), "quiet": done.unchanged}

    told("first", back_up)
    told("second", back_up)
    told("idle", back_up)
    (root / "many/file-00000005.txt").write_bytes(b"other")
    told("changed", back_up)
    if "--restore" in sys.argv:
        manifest, staging = backups.base, place / "staging"
        assert manifest is not None
        del backups

        def restore() -> dict[str, int]:
            quick = FetchOptions(sync=False)
            report = fetch(store=store, manifest=manifest, staging=staging, clock=SystemClock(), options=quick)
            install(staging, restored, aside=place / "aside", sync=False)
            return {"files": report.files}

        told("restore", restore)
        shutil.rmtree(restored)


if __name__ == "__main__":
    main()
