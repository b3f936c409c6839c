"""What is done, and dies, in the crash tests: a session of several syncs, and the command line. Run in forked children.

The workspace has three states; `lay` makes any of them out of any other, byte for byte and time for time the same.
"""

from __future__ import annotations

import os
import random
import shutil
import zlib
from functools import partial
from pathlib import Path

from spotwarp.cli import context, render
from spotwarp.cli.app import main
from spotwarp.execution import claiming
from spotwarp.execution.occupancy import lock
from spotwarp.execution.syncing import syncer as syncing
from spotwarp.execution.syncing.versions import End
from spotwarp.persistence import prune, receipts
from spotwarp.persistence.backup import BackupOptions, backup, sharing
from spotwarp.persistence.runlog import lease
from spotwarp.testing import crash
from spotwarp.testing.checkpoints import huggingface_files, safetensors_file, torch_file

STATES = 3
LINKED = "data/same.bin"
"""Another name of `data/base.bin`."""
EPOCH_NS = 1_700_000_000 * 10**9
SETTINGS = {
    "SPOTWARP_LEASE": "0.5s",
    "SPOTWARP_SETTLE": "0s",
    "SPOTWARP_KEEP_RESUMABLE": "1",
    "SPOTWARP_KEEP_HOURLY": "0",
}


def content(state: int) -> dict[str, bytes]:
    """The files of the workspace in that state, by path."""
    files = {
        "data/base.bin": _noise(700_000, 1),
        "data/moving.bin": _noise(600_000, 10 + state),
        "data/growing.bin": _noise(400_000 * state, 2),
        "train.py": b"print('train')\n",
        "data/last.pt": torch_file(_noise(300_000, 30 + state)),
    }
    files |= {LINKED: files["data/base.bin"]}
    files |= {f"logs/{at}.txt": b"line\n" * (at + (state if at % 5 == 0 else 0)) for at in range(1, 40)}
    files |= {f"only-in-{state}/deep/{at}": _noise(1000, 100 * state + at) for at in range(3)}
    files[f"only-in-{state}/caf\udce9"] = b"a name that is no text"
    for step in (10 * state, 10 * state + 10):
        made = huggingface_files(step, size=300_000) | {"model.safetensors": _weights(step)}
        files |= {f"out/checkpoint-{step}/{name}": data for name, data in made.items()}
    table = bytearray(_noise(500_000, 3))  # written to in places
    table[200_000 : 200_000 + 5000 * state] = _noise(5000 * state, 4)
    return files | {"data/table.bin": bytes(table)}


def lay(workspace: Path, state: int) -> None:
    """Make `workspace` that state; what is right already is not touched."""
    wanted = content(state)
    for path in [p for p in workspace.rglob("*") if p.is_file() and ".spotwarp" not in p.parts]:
        if str(path.relative_to(workspace)) not in wanted:
            path.unlink()
    for name, data in wanted.items():
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == LINKED and not path.exists():
            path.hardlink_to(workspace / "data/base.bin")
        elif not path.exists() or path.read_bytes() != data:
            path.write_bytes(data)
            stamp = EPOCH_NS + zlib.crc32(data) % 10**6 * 10**9
            os.utime(path, ns=(stamp, stamp))
    for folder in sorted((p for p in workspace.rglob("*") if p.is_dir()), reverse=True):
        if ".spotwarp" in folder.parts:
            continue
        if not any(folder.iterdir()):
            shutil.rmtree(folder)
            continue
        os.utime(folder, ns=(EPOCH_NS, EPOCH_NS))


def session(
    workspace: str, told: str, env: dict[str, str], at: int = 0, after: bool = False, kill: list[int] | None = None
) -> int:
    """Claim, store the three states one after the other with rotation and a prune, seal.

    Each snapshot that was acknowledged is told by a line in the file `told`. At the store call `at` the process dies;
    or, where `kill` is given, those processes are killed, 0 meaning this one. Returns how many calls there were.
    """
    os.environ.update(SETTINGS | env)
    os.chdir(workspace)
    calls = crash.at_store_call(at, after=after, death=crash.die if kill is None else partial(crash.kill, kill))
    options = BackupOptions(workers=1, pack_size=1 << 20, coding="delta")
    vars(sharing)["_LARGE"] = 2000  # bytes: the manifests count as large ones, and share what they can
    vars(syncing)["backup"] = lambda **how: backup(**how | {"options": options})
    opened = context.enter()
    log, root = opened.log(), Path(workspace)
    with lock.hold(root, what="sync", since=""), Path(told).open("ab", buffering=0) as book:
        heart = lease.Heart(
            log, opened.repository.store, lease_s=0.5, clock=opened.clock, facts=lambda: ("", {}), on_lost=print
        )
        heart.start()
        claimed = claiming.claim(
            log, opened.repository.store, lambda: claiming.Claimant(None, root, 0.5),
            lease_s=0.5, takeover=False, clock=opened.clock, say=render.note,
        )  # fmt: skip
        heart.holding = lease.Holding(claimed.generation, log.life)
        opened.repository.enlist(log.run)
        syncer = syncing.Syncer(
            root, opened.config, opened.repository, log, claimed.generation,
            clock=opened.clock, rng=opened.rng, say=render.note,
        )  # fmt: skip
        for state in range(1, STATES + 1):
            lay(root, state)
            done = syncer.sync(end=End.CLEAN, final=state == STATES)
            book.write(b"%d\n" % state)
            if state == 2:
                prune.prune(opened.repository, log, grace_s=0)
        assert done.verified is not None
        receipts.seal(log, done.verified, phase="stopped", exit_code=None, reason="")
        heart.stop()
    return calls()


def warm(scratch: Path) -> None:
    """Have everything imported that the verbs import late. Leaves neither files nor threads."""
    here = Path.cwd()
    place = scratch / "warm"
    place.mkdir()
    lay(place, 1)
    verbs = ["init", "--remote-path", str(scratch / "warm-bucket")], ["sync"], ["check"], ["prune"]
    codes = spotwarp(str(place), [*verbs, ["restore", "--to", str(scratch / "warm-restored")]], {})
    assert codes == [0] * 5, codes
    os.chdir(here)
    for made in scratch.glob("warm*"):
        shutil.rmtree(made)


def spotwarp(directory: str, lines: list[list[str]], env: dict[str, str]) -> list[int]:
    """The command line in `directory`, once for each of `lines`; the exit codes."""
    os.environ.update(SETTINGS | env)
    os.chdir(directory)
    return [main(line) for line in lines]


def dying(directory: str, line: list[str], at: int, after: bool, calls: str) -> list[int]:
    """One verb, which dies at the call `at` to the store or the file system; its exit code and how many calls it made.

    `calls` is `store` or `files`; or `room`: then the disk is full from that call on, and nobody dies.
    """
    os.environ.update(SETTINGS)
    os.chdir(directory)
    if calls == "room":
        counter = crash.full_from(at, Path(directory))
        code = main(line)
        return [code, next(counter) - 1]
    if calls == "files":
        counter = crash.at_file_call(at, after=after)
        code = main(line)
        return [code, next(counter) - 1]
    made = crash.at_store_call(at, after=after)
    code = main(line)
    return [code, made()]


def _weights(step: int) -> bytes:
    """A model whose numbers move a little from save to save."""
    import numpy as np

    start = np.random.default_rng(5).standard_normal(80_000)
    moved = np.random.default_rng(step).standard_normal(80_000)
    return safetensors_file({"w": (start + 1e-4 * step * moved).astype("<f4").tobytes()}, dtype="F32", width=4)


def _noise(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)
