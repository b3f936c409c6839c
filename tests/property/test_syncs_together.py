"""Cut syncs, whole versions, hard links, checkpoints, stores that lose and lie, prunes and new machines, all at once.

The real syncer, log, judges, prune and restorer, against a model that knows only what was ever on the disk. After every
commit: a checkpoint that is called resumable is one version, whole; a single-file checkpoint is there in a whole
version, the one on disk or the one of the snapshot before; every other file is what is on disk, or was late and is
named; and every retained snapshot can be read, whatever was lost and deleted meanwhile.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from spotwarp import config
from spotwarp.errors import SpotWarpError, StoreUnavailable
from spotwarp.execution.restoring.restorer import Restorer
from spotwarp.execution.syncing import syncer as syncing
from spotwarp.execution.syncing.syncer import Syncer
from spotwarp.execution.syncing.versions import End
from spotwarp.execution.workspace import Choice
from spotwarp.persistence import repository, statcache
from spotwarp.persistence.backup import BackupOptions, backup
from spotwarp.persistence.check import check
from spotwarp.persistence.entries import checked
from spotwarp.persistence.held import Held
from spotwarp.persistence.install import install
from spotwarp.persistence.manifest import Manifest
from spotwarp.persistence.prune import prune
from spotwarp.persistence.restore import FetchOptions, fetch
from spotwarp.persistence.runlog.entry import Claim, Snapshot
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.persistence.store.api import Buffer
from spotwarp.testing.checkpoints import huggingface_files, safetensors_file, torch_file, write_files
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.stores import Fault, FaultyStore, MemoryStore

pytestmark = pytest.mark.slow

RUN, MIB = "main", 1 << 20
SINGLES = ["last.ckpt", "best.pt", "out/ema.safetensors"]
FILES = st.sampled_from(["train.py", "data/a", "data/b", "data/c.dat", "out/notes", "out/config.json", "out/runs/e"])
SIZES = st.sampled_from([0, 10, 1000, 70_000, 300_000, 2 * MIB])
STEPS = st.sampled_from([1, 2, 3])
TAGS = st.integers(0, 5)
EVENTS: dict[str, dict[str, object]] = {
    "no reply to the commit": {"verbs": "put_new", "key": "/log/", "lost_reply": True, "times": None},
    "no commit": {"verbs": "put_new", "key": "/log/", "error": StoreUnavailable("injected"), "times": None},
    "late commit": {"verbs": "put_new", "key": "/log/", "late": True},
    "pack refused": {"verbs": "put", "key": "/packs/", "error": StoreUnavailable("injected"), "skip": 1},
    "pack lost": {"verbs": "put", "key": "/packs/", "drop": True},
    "manifest lost": {"verbs": "put", "key": "/manifests/", "drop": True},
    "nothing": {"verbs": "put", "key": "nowhere"},
}


class Link(MemoryStore):
    """A store behind a link of a MiB a second."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self._passing = clock

    def put(self, key: str, data: Buffer) -> None:
        self._passing.advance(memoryview(data).nbytes / MIB)
        super().put(key, data)


def noise(size: int, tag: int) -> bytes:
    return random.Random(tag).randbytes(size)


def single(path: str, tag: int) -> bytes:
    body = noise(40_000 + 1000 * (tag % 2), tag)
    return torch_file(body) if path.endswith(".pt") else safetensors_file({"w": body})


def contents(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    found = {str(path.relative_to(root)): path for path in files}
    return {name: path.read_bytes() for name, path in found.items() if not name.startswith(".spotwarp")}


def step_dir(name: str) -> str:
    """The checkpoint directory that the file lies in, or nothing."""
    parts = name.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 and parts[1].startswith("checkpoint-") else ""


class Together(RuleBasedStateMachine):
    """A trainer, its machines, and what becomes of its snapshots."""

    @initialize()
    def begin(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="spotwarp-together-"))
        self.root = self.home / "w"
        self.root.mkdir()
        (self.root / "readme").write_bytes(b"always here")
        self.clock, self.lives, self.looks = VirtualClock(), 0, 0
        self.memory = Link(self.clock)
        self.store = FaultyStore(self.memory)
        self.repository, _ = repository.create(self.store, clock=self.clock, rng=SeededRng("r"))
        env = {
            "SPOTWARP_REMOTE_PATH": "memory",
            "SPOTWARP_RUN": RUN,
            "SPOTWARP_KEEP_RESUMABLE": "1",
            "SPOTWARP_KEEP_HOURLY": "0",
        }
        self.config = config.load(None, env=env)
        self.whole: dict[str, set[bytes]] = {}
        """The whole versions of single files that were ever on disk."""
        self.versions: dict[str, list[dict[str, bytes]]] = {}
        """The whole versions of checkpoint directories that were ever on disk."""
        options = BackupOptions(workers=1, uploads=1, pack_size=4 * MIB + (1 << 18), nice=0, coding="delta")
        self.patches = [
            mock.patch.object(
                syncing, "backup", lambda **how: backup(**how | {"options": options, "look": lambda _: Held()})
            ),
            mock.patch.object(statcache, "_FINE_GUARD_NS", 20_000_000),
        ]
        for patch in self.patches:
            patch.start()
        self.before: dict[str, bytes] = {}
        """What the last snapshot restores to, single files of no proven version left out."""
        self.number = 0
        self.machine()
        self.save(1, 1)
        self.write("data/a", 300_000, 1)
        self.write("train.py", 1000, 2)
        self.rewrite("last.ckpt", 1, 1.0)

    def teardown(self) -> None:
        for patch in getattr(self, "patches", []):
            patch.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    # ---- lives -----------------------------------------------------------------------------------------------------

    def machine(self) -> None:
        """Another life: it claims, and knows what is on this disk."""
        self.lives += 1
        life = f"life-{self.lives}"
        self.log = RunLog(self.store, RUN, life=life, clock=self.clock, rng=SeededRng(life), append_budget_s=3)
        claimed = self.log.append(
            lambda h: Claim(
                generation=h.state.generation + 1, machine=life, cause="", base=h.state.snapshot, lease_s=20
            )
        )
        self.syncer = Syncer(
            self.root, self.config, self.repository, self.log, claimed.generation,
            clock=self.clock, rng=SeededRng(f"s{self.lives}"), say=lambda _: None,
        )  # fmt: skip

    @rule(elsewhere=st.booleans())
    def next_machine(self, elsewhere: bool) -> None:
        """The process dies; the next one runs on the same disk, or on a new one."""
        self.store.heal()
        self.store.land()
        if elsewhere:
            shutil.rmtree(self.root)
            self.root.mkdir()
        say = lambda _: None  # noqa: E731
        log = RunLog(self.store, RUN, life=f"restore-{self.lives}", clock=self.clock, rng=SeededRng(self.lives))
        if log.head().state.snapshot:
            restorer = Restorer(self.root, self.config, self.repository, log, clock=self.clock, say=say)
            restorer.recover()
            restorer.bring_up(Choice.KEEP if not elsewhere else Choice.RESTORE)
            restorer.clear_the_way()
        if not (self.root / "readme").exists():
            (self.root / "readme").write_bytes(b"always here")
        self.machine()

    # ---- the trainer -----------------------------------------------------------------------------------------------

    @rule(name=FILES, size=SIZES, tag=TAGS)
    def write(self, name: str, size: int, tag: int) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(noise(size, tag))

    @rule(name=FILES)
    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    @rule(old=FILES, new=FILES)
    def link(self, old: str, new: str) -> None:
        if old != new and (self.root / old).exists():
            (self.root / new).parent.mkdir(parents=True, exist_ok=True)
            (self.root / new).unlink(missing_ok=True)
            os.link(self.root / old, self.root / new)

    @rule(step=STEPS, tag=TAGS)
    def save(self, step: int, tag: int) -> None:
        name = f"out/checkpoint-{step}"
        files = huggingface_files(step, size=200 + 50_000 * tag)
        shutil.rmtree(self.root / name, ignore_errors=True)
        write_files(self.root / name, files)
        self.versions.setdefault(name, []).append(files)

    @rule(step=STEPS, tag=TAGS, files=st.integers(0, 6))
    def save_in_part(self, step: int, tag: int, files: int) -> None:
        name = f"out/checkpoint-{step}"
        shutil.rmtree(self.root / name, ignore_errors=True)
        (self.root / name).mkdir(parents=True)
        write_files(self.root / name, dict([*huggingface_files(step, size=200 + 50_000 * tag).items()][:files]))

    @rule(step=STEPS)
    def rotate(self, step: int) -> None:
        shutil.rmtree(self.root / f"out/checkpoint-{step}", ignore_errors=True)

    @rule(name=st.sampled_from(SINGLES), tag=TAGS, part=st.sampled_from([1.0, 1.0, 0.5, 0.0]))
    def rewrite(self, name: str, tag: int, part: float) -> None:
        """In place."""
        data = single(name, tag)
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        with (self.root / name).open("wb") as file:
            file.write(data[: int(len(data) * part)])
        if part == 1.0:
            self.whole.setdefault(name, set()).add(data)

    # ---- syncs -----------------------------------------------------------------------------------------------------

    @rule(end=st.sampled_from(list(End)), final=st.booleans())
    def sync_well(self, end: End, final: bool) -> None:
        self.sync("nothing", None, end, final)

    @rule(cut_s=st.sampled_from([0.0, 1.0, 2.5, 6.0]), end=st.sampled_from(list(End)))
    def sync_in_a_hurry(self, cut_s: float, end: End) -> None:
        self.sync("nothing", cut_s, end, True)

    @rule(event=st.sampled_from([*EVENTS]), cut_s=st.sampled_from([None, 3.0]), end=st.sampled_from(list(End)))
    def sync_badly(self, event: str, cut_s: float | None, end: End) -> None:
        self.sync(event, cut_s, end, cut_s is not None)

    @rule(tag=TAGS, end=st.sampled_from(list(End)))
    def sync_while_last_is_rewritten(self, tag: int, end: End) -> None:
        self.rewrite("last.ckpt", tag, 0.5)
        self.sync("nothing", None, end, False)

    def sync(self, event: str, cut_s: float | None, end: End, final: bool) -> None:
        self.store.add(Fault(**EVENTS[event]))  # type: ignore[arg-type]
        deadline = None if cut_s is None else partial(float, self.clock.monotonic() + cut_s)
        try:
            done = self.syncer.sync(final=final, end=end, deadline=deadline)
        except SpotWarpError:
            self.store.heal()
            self.looked_at(None)
            return
        self.store.heal()
        assert done.snapshot.n == self.syncer._log.head().state.snapshot
        self.looked_at(done.snapshot, late=bool(done.snapshot.late), changed=done.verified is not None)

    @rule()
    def land(self) -> None:
        self.store.land()
        self.looked_at(None)

    @rule()
    def prune(self) -> None:
        self.store.heal()
        prune(self.repository, self.log, grace_s=0)
        self.readable()

    # ---- what must hold --------------------------------------------------------------------------------------------

    def looked_at(self, stored: Snapshot | None, *, late: bool = False, changed: bool = True) -> None:
        """Compare the last snapshot with what it may be. `stored`: a sync says that it stands for what is on disk."""
        head = self.log.head()
        if not head.state.snapshot or (stored is None and head.state.snapshot == self.number):
            return
        entry = self.log.read(head.state.snapshot)
        assert isinstance(entry, Snapshot)
        try:
            manifest = self.repository.manifest(RUN, entry)
            found = self.restored(manifest)
        except SpotWarpError:
            assert stored is None, "a sync that ended well cannot be restored"
            return  # the store lost what it acknowledged, and the sync said so
        if stored is not None:
            self.compared(manifest, found, late=late)
        self.shaped(manifest, found)
        self.before, self.number = found, entry.n

    def restored(self, manifest: Manifest) -> dict[str, bytes]:
        checked(manifest.entries)
        self.looks += 1
        into = self.home / f"r{self.looks}"
        staging = self.home / f"s{self.looks}"
        fetch(store=self.memory, manifest=manifest, staging=staging, clock=self.clock,
            options=FetchOptions(workers=1, sync=False))  # fmt: skip
        install(staging, into, aside=self.home / "aside", sync=False)
        found = contents(into)
        shutil.rmtree(into)
        return found

    def shaped(self, manifest: Manifest, found: dict[str, bytes]) -> None:
        """Of each checkpoint that counts there is one version, whole."""
        for fact in manifest.checkpoints:
            name = os.fsdecode(fact.path)
            inside = {path[len(name) + 1 :]: data for path, data in found.items() if path.startswith(f"{name}/")}
            assert inside or fact.cls == "torn", f"{name} is a fact of nothing"
            if fact.cls == "resumable":
                assert inside in self.versions[name], f"{name} is a mixture"
        for fact in manifest.versions:
            name = os.fsdecode(fact.path)
            assert found[name] in self.whole[name], f"{name} is no whole version"

    def compared(self, manifest: Manifest, found: dict[str, bytes], *, late: bool) -> None:
        """What a sync says is stored is what is on disk, but for what it names."""
        disk = contents(self.root)
        named = {os.fsdecode(skip.path) for skip in manifest.skipped}
        torn = {os.fsdecode(fact.path) for fact in manifest.checkpoints if fact.cls == "torn"}
        for name, data in disk.items():
            if found.get(name) == data:
                continue
            if name in SINGLES:
                kept, whole = self.before.get(name), self.whole.get(name, set())
                assert found.get(name) == (kept if kept in whole else None), name
                aside = [data for path, data in found.items() if path.startswith(f"{name}.unverified")]
                assert name in found or name in named or data in aside, f"{name} is left out and not named"
                continue
            assert late, f"{name} is not what is on disk"
            if folder := step_dir(name):
                assert found.get(name) in (None, self.before.get(name)), name
                assert any(path.startswith(f"{folder}/") for path in named) or folder in torn, name
            else:
                assert name in named, f"{name} was late and is not named"
                assert found.get(name) in (None, self.before.get(name)), name
        for name in found.keys() - disk.keys():
            assert ".unverified" in name or (late and step_dir(name)), f"{name} is not on disk"

    def readable(self) -> None:
        """Every retained snapshot that a sync said was stored can still be read."""
        state = self.log.head().state
        wanted = [entry for n in state.retained if isinstance(entry := self.log.read(n), Snapshot)]
        report = check(
            store=self.memory, run=RUN, read_data=True, workers=1,
            snapshots=[(entry.n, entry.manifest, entry.address) for entry in wanted],
        )  # fmt: skip
        if self.number in state.retained:
            assert self.number in report.fine, report.problems


TestTogether = Together.TestCase
TestTogether.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)
