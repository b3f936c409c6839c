"""What a restore may leave for later, and how it comes in beside the running command.

The command needs the newest resumable checkpoint and what is in no checkpoint; older checkpoints may follow. Each
appears by one rename, complete, and never in the place of anything. `.spotwarp/awaited.json` names those that are still
to come, from before the first is missed until it is in place: every snapshot meanwhile has them as the one before, and
the next start goes on with them. What the command made under the same name, or whose directory it removed, wins.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from spotwarp.clock import Clock
from spotwarp.errors import CorruptObject, Interrupted, ObjectMissing, SpotWarpError, UnsupportedFormat, WorkspaceFault
from spotwarp.execution import localstate
from spotwarp.execution.checkpoints import step_of
from spotwarp.execution.localstate import runtime
from spotwarp.execution.syncing.judging import file_system_time
from spotwarp.execution.workspace import awaited, may_follow
from spotwarp.model import human_bytes
from spotwarp.persistence.beneath import Tree, ancestors, split
from spotwarp.persistence.content import digests_of
from spotwarp.persistence.entries import shown
from spotwarp.persistence.install import arrive
from spotwarp.persistence.manifest import FILE, SYMLINK, CheckpointFact, Entry, Manifest, tabled
from spotwarp.persistence.reads import written
from spotwarp.persistence.repository import Repository
from spotwarp.persistence.restore import FetchOptions, FetchProgress, fetch
from spotwarp.persistence.scan import scanned
from spotwarp.persistence.statcache import Record
from spotwarp.persistence.store.api import Store

_AGAIN_S: Final = 30.0
_NICE: Final = 10
_NAME: Final = re.compile(rb"checkpoint-[0-9]+")
_OPEN: Final = re.compile(rb"checkpoint-(?:[0-9]*[*?\[{$%\\`]|(?![0-9A-Za-z]))")
"""A name that a shell or a program has yet to complete; no option, such as `--checkpoint-dir`."""
_MOST_STATE: Final = 64 << 20


class _TrainerState(msgspec.Struct):
    best_model_checkpoint: str | None = None


def for_later(
    manifest: Manifest, root: Path, store: Store, *, worth: int, words: Iterable[str] = ()
) -> tuple[bytes, ...]:
    """The checkpoints of a snapshot that the command, with its `words`, can be started without; none where they have
    less than `worth` bytes together.

    Only directories `checkpoint-N` that are older than the newest resumable one, of which nothing is here, that share
    no file with anything else, that neither a symbolic link nor the command names, nor the trainer as its best. Raises
    the store's errors.
    """
    best = newest_of(manifest.checkpoints)
    chosen = set(_older(manifest.checkpoints, best, root)) if best is not None else set()
    if best is None or not chosen:
        return ()
    entries, size = tabled(manifest.entries), 0
    shared: set[bytes] = set()
    texts = [os.fsencode(word) for word in words]
    for entry in entries:
        group = next((path for path in ancestors(entry.path) if path in chosen), None)
        if group is not None:
            size += sum(extent.length for extent in entry.extents)
        if entry.link:
            shared.update((*ancestors(entry.path), *ancestors(entry.link)))
        if entry.kind == SYMLINK:
            texts.append(entry.target)
    if size < worth or (named := _named_best(manifest, best.path, store)) is None:
        return ()
    return tuple(sorted(path for path in chosen - shared - _spelled(chosen, texts) if split(path)[1] != named))


def _spelled(paths: Iterable[bytes], texts: Iterable[bytes]) -> frozenset[bytes]:
    """Those of the checkpoints `paths` whose name occurs in one of `texts`, wherever they lie; all of them where a name
    is left open, as in `checkpoint-*` or `checkpoint-$STEP`."""
    names, left_open = set[bytes](), False
    for text in texts:
        names.update(_NAME.findall(text))
        left_open = left_open or _OPEN.search(text) is not None
    return frozenset(path for path in paths if left_open or split(path)[1] in names)


def _older(facts: Sequence[CheckpointFact], best: CheckpointFact, root: Path) -> Iterator[bytes]:
    known = {fact.path for fact in facts}
    with Tree(root) as tree:
        for fact in facts:
            step = step_of(fact.path) if may_follow(fact) else None
            older = step is not None and best.step is not None and step < best.step
            alone = not known & set(ancestors(fact.path))
            if older and alone and tree.lstat(fact.path) is None:
                yield fact.path


def _named_best(manifest: Manifest, path: bytes, store: Store) -> bytes | None:
    """The checkpoint that the Hugging Face trainer loads at its end, by name; empty: none; None: it cannot be known."""
    entry = tabled(manifest.entries).find(path + b"/trainer_state.json")
    if entry is None:
        return b""
    if entry.size > _MOST_STATE:
        return None
    try:
        written(store, manifest, entry, into := io.BytesIO())
        best = msgspec.json.decode(into.getvalue(), type=_TrainerState).best_model_checkpoint
    except (CorruptObject, UnsupportedFormat, ObjectMissing, msgspec.DecodeError, RecursionError):
        return None
    return os.fsencode(best or "").rstrip(b"/").rpartition(b"/")[2]


def newest_of(facts: Sequence[CheckpointFact]) -> CheckpointFact | None:
    """The newest resumable checkpoint among `facts`."""
    resumable = [fact for fact in facts if fact.cls == "resumable"]
    return max(resumable, key=lambda fact: -1 if fact.step is None else fact.step, default=None)


def beneath(manifest: Manifest, paths: Sequence[bytes]) -> list[Entry]:
    """The entries of `manifest` at and beneath `paths`, and the directories above them."""
    entries = tabled(manifest.entries)
    above = {path for one in paths for path in ancestors(one)}
    found = [entry for path in sorted(above) if (entry := entries.find(path)) is not None]
    return found + [entry for path in paths for entry in entries.beneath(path)]


class Arrivals:
    """Brings in what was left for later, in a thread of its own that makes way for everybody else."""

    def __init__(
        self,
        root: Path,
        repository: Repository,
        run: str,
        manifest: Manifest,
        paths: Sequence[bytes],
        *,
        clock: Clock,
        say: Callable[[str], None],
        turn: Callable[[], object],
        written: Callable[[Iterable[Record]], object],
    ) -> None:
        """`paths` are checkpoints of `manifest`, the run's last snapshot. `turn` waits while there is a sync; `written`
        is told of the files that came in."""
        self._root, self._repository, self._run, self._manifest = root, repository, run, manifest
        self._clock, self._say, self._turn, self._written = clock, say, turn, written
        self._noted = {*paths, *awaited(root, repository.identity.id, run, manifest)}
        """Those, and what cannot be brought in from here because it is not whole there."""
        steps = {fact.path: fact.step or 0 for fact in manifest.checkpoints}
        self._left = sorted(paths, key=lambda path: steps.get(path, 0), reverse=True)
        self._sizes = {path: sum(e.size for e in tabled(manifest.entries).beneath(path)) for path in paths}
        best = newest_of(manifest.checkpoints)
        self._spare = best.bytes if best else 0
        """Room for the next checkpoint: what comes in must not keep the command from saving."""
        self._cancel = threading.Event()
        self._done = 0
        self._trouble = ""
        self._thread = threading.Thread(target=self._bring_all, name="arrivals", daemon=True)

    def start(self) -> None:
        """Begin."""
        if self._left:
            self._thread.start()

    def stop(self) -> None:
        """End after the read in hand; what is left is for the next start. Does not wait."""
        self._cancel.set()

    def words(self) -> str:
        """What still comes in, for people; empty when nothing does."""
        left = list(self._left)
        if not left:
            return ""
        size = max(0, sum(self._sizes[path] for path in left) - self._done)
        more = f"; {self._trouble}" if self._trouble else ""
        return f"{len(left)} older checkpoint(s), {human_bytes(size)}, still come in{more}"

    def _bring_all(self) -> None:
        damaged: set[bytes] = set()
        while not damaged.issuperset(self._left) and not self._cancel.is_set():
            for path in [one for one in self._left if one not in damaged]:
                try:
                    self._bring(path)
                except Interrupted:
                    return
                except (SpotWarpError, OSError) as error:
                    words = error.message if isinstance(error, SpotWarpError) else str(error)
                    if words != self._trouble:
                        self._say(f"{shown(path)} cannot be brought in yet, and stays in the snapshots: {words}")
                    self._trouble = words
                    if isinstance(error, CorruptObject):
                        damaged.add(path)
            if self._left and self._clock.wait(self._cancel, _AGAIN_S):
                return

    def _bring(self, path: bytes) -> None:
        if self._is_moot(path):
            return
        staging = runtime(self._root) / localstate.ARRIVING
        fetch(
            store=self._repository.store,
            manifest=self._manifest,
            wanted=beneath(self._manifest, [path]),
            staging=staging,
            clock=self._clock,
            # A crash of the machine has all of the workspace compared by content: nothing need be waited for here.
            options=FetchOptions(workers=2, sync=False, nice=_NICE, turn=self._turn, spare=self._spare),
            progress=self._progress,
            cancel=self._cancel,
        )
        self._turn()
        if self._cancel.is_set():
            raise Interrupted("the command has ended")
        records = self._records(staging, path)
        if arrive(staging, self._root, path):
            self._forget(path)
            self._written(records)
            self._say(f"{shown(path)} is in place too")
        else:
            self._is_moot(path)

    def _records(self, staging: Path, path: bytes) -> list[Record]:
        """The files in `staging` as the stat cache knows files: renames leave them as they are."""
        now_ns, records = file_system_time(self._root), []
        with Tree(staging) as tree:
            for entry in tabled(self._manifest.entries).beneath(path):
                status, digests = tree.lstat(entry.path), digests_of(entry, self._manifest.blobs)
                if entry.kind == FILE and status is not None and digests is not None:
                    seen = scanned(entry.path, status, FILE)
                    stamps = seen.mtime_ns, seen.ctime_ns, seen.ino, seen.dev
                    records.append(Record(entry.path, seen.size, *stamps, now_ns, digests))
        return records

    def _progress(self, progress: FetchProgress) -> None:
        self._done = progress.done

    def _is_moot(self, path: bytes) -> bool:
        """Whether the command has made something there, or removed what it was to lie in; then it is not awaited."""
        with Tree(self._root) as tree:
            parent = split(path)[0]
            if tree.lstat(path) is None and (not parent or tree.lstat(parent) is not None):
                return False
        self._say(f"{shown(path)} is not brought in: the command has made its own, or removed its directory")
        self._forget(path)
        return True

    def _forget(self, path: bytes) -> None:
        """In place, or moot. A death before this is noted is no harm: what is here is not awaited."""
        self._left.remove(path)
        self._done, self._trouble = 0, ""
        self._noted.discard(path)
        with contextlib.suppress(WorkspaceFault):  # no room for a shorter note: the longer one does no harm
            localstate.await_only(self._root, self._repository.identity.id, self._run, self._noted)


def still_awaited(root: Path, repository: str, run: str, manifest: Manifest) -> tuple[bytes, ...]:
    """What earlier lives left for later and is not here yet, as far as the last snapshot has it whole; noted anew."""
    if not (known := awaited(root, repository, run, manifest)):
        return ()
    facts = {fact.path: fact for fact in manifest.checkpoints}
    with Tree(root) as tree:
        left = tuple(path for path in known if path in facts and tree.lstat(path) is None)
    with contextlib.suppress(WorkspaceFault):  # see `_forget`
        localstate.await_only(root, repository, run, left)
    return tuple(path for path in left if may_follow(facts[path]))
