"""What a workspace knows of itself: which snapshot it stems from, and a restore that is under way.

Small JSON files under `.spotwarp/`, written whole and synced before their rename. They are a cache: one that is missing
or damaged only means that the workspace is compared with the run by content. Only `awaited.json` is more: what it names
is nowhere else said to be missing on purpose.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from spotwarp import system
from spotwarp.config import DIRECTORY
from spotwarp.errors import WorkspaceFault

STATE = "state.json"
RESTORING = "restoring"
STAGING = "staging"
AWAITED = "awaited.json"
ARRIVING = "arriving"
SET_ASIDE = "set-aside"
STATCACHE = "cache/stat"
PAGES = "cache/pages"
NOTICE_FILE = "notice.json"
NOTICE_VARIABLE = "SPOTWARP_NOTICE_FILE"
"""In the command's environment: where that file is. So it also marks what the command started."""
DISTRUST = "distrust.json"
REPOSITORY = "repository.json"
"""Which repository the workspace belongs to (`repository.Known`): noted by `init`, or at the first opening."""
RATE = "cache/rate.json"

T = TypeVar("T", bound=msgspec.Struct)


class Origin(msgspec.Struct, frozen=True):
    """The workspace's content stems from snapshot `snapshot` (0: none) of `run` in the repository `repository`."""

    repository: str
    run: str
    snapshot: int
    pending: str = ""
    """The manifest that is being committed from here: if its entry stands, the content stems from that one."""
    boot: str = ""
    """The boot in which that was so. After another one the content may not be what it was: a crash of the machine
    loses what programs wrote and nobody synced.
    """
    manifest: str = ""
    """The id of that snapshot's manifest, so that another snapshot under its number is not taken for it. Empty: not
    known.
    """


class Restoring(msgspec.Struct, frozen=True):
    """A restore is under way. While this stands, no trainer may be started here."""

    run: str
    repository: str
    snapshot: int
    step: Literal["fetching", "clearing", "installing"]
    clear: tuple[str, ...] = ()
    """Local paths to set aside first, each byte as the character of that number: paths are bytes, JSON is text."""
    manifest: str = ""
    """The id of that snapshot's manifest; empty: not known."""


class Awaited(msgspec.Struct, frozen=True):
    """Checkpoint directories of the run's last snapshot that a restore has left for later: not deleted, not here yet.

    Each byte of a path as the character of that number.
    """

    repository: str
    run: str
    paths: tuple[str, ...] = ()


class Distrust(msgspec.Struct, frozen=True):
    """What was found damaged in the repository: nothing may be referred to in it, so that it is sent again."""

    repository: str
    run: str
    snapshots: tuple[int, ...] = ()
    packs: tuple[str, ...] = ()


class Rate(msgspec.Struct, frozen=True):
    """How fast the store took a small object when it was last tried, in bytes a second."""

    bytes_s: float


def committing(workspace: Path, repository: str, run: str, manifest: str) -> Origin:
    """The origin that the workspace has, with `manifest` as the one that is being committed from it."""
    known = load(runtime(workspace) / STATE, Origin)
    mine = known is not None and (known.repository, known.run) == (repository, run)
    before = known if known is not None and mine else Origin(repository, run, 0)
    return msgspec.structs.replace(before, pending=manifest, boot=boot_id())


def distrusted(workspace: Path, repository: str, run: str) -> Distrust:
    """What is known to be damaged of `run`."""
    known = load(runtime(workspace) / DISTRUST, Distrust)
    return known if known and (known.repository, known.run) == (repository, run) else Distrust(repository, run)


def distrust(
    workspace: Path, repository: str, run: str, *, snapshots: Iterable[int] = (), packs: Iterable[str] = ()
) -> None:
    """Remember damage, so that the next sync sends again what is here. Raises `WorkspaceFault`."""
    known = distrusted(workspace, repository, run)
    more = Distrust(
        repository,
        run,
        tuple(sorted({*known.snapshots, *snapshots})),
        tuple(sorted({*known.packs, *packs})),
    )
    if more != known:
        save(runtime(workspace) / DISTRUST, more)


def awaited(workspace: Path, repository: str, run: str) -> tuple[bytes, ...] | None:
    """The checkpoint directories of `run` that are still to come in here; None: there is a note, but it is damaged."""
    try:
        data = (runtime(workspace) / AWAITED).read_bytes()
    except FileNotFoundError:
        return ()
    except OSError:
        return None
    try:
        known = msgspec.json.decode(data, type=Awaited)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if (known.repository, known.run) != (repository, run):
        return ()
    return tuple(path.encode("latin-1", "replace") for path in known.paths)


def await_only(workspace: Path, repository: str, run: str, paths: Iterable[bytes]) -> None:
    """Note what is still to come in here: `paths`, and nothing else.

    Raises `WorkspaceFault`; then the earlier note stands as it was. Less is to be missed than noted: never more.
    """
    path, left = runtime(workspace) / AWAITED, tuple(sorted(paths))
    if not left:
        if path.exists():  # nearly never
            remove(path)
        return
    if left != awaited(workspace, repository, run):
        save(path, Awaited(repository, run, tuple(one.decode("latin-1") for one in left)))


def runtime(workspace: Path) -> Path:
    """The directory of SpotWarp's own files."""
    return workspace / DIRECTORY


def boot_id() -> str:
    """This boot of the machine; where it has no name, another one each time: nothing is believed then."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.urandom(8).hex()


def load(path: Path, kind: type[T]) -> T | None:
    """The value in `path`, None when it is missing or damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def save(path: Path, value: msgspec.Struct) -> None:
    """Replace `path` by `value`, whole and durably. Raises `WorkspaceFault`."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(value))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        _sync_directory(path.parent)
    except OSError as error:
        raise WorkspaceFault(
            f"{path} cannot be written: {error.strerror}", hint="Is the disk full or read-only?"
        ) from error


def overwrite(path: Path, value: msgspec.Struct) -> bool:
    """Write `value` over what is in `path`, which needs no room on a full disk; False when that is not possible.

    Not atomic: a death in the middle leaves a damaged file, so only for what may be lost.
    """
    try:
        with path.open("r+b") as file:
            file.write(msgspec.json.encode(value))
            file.truncate()
    except OSError:
        return False
    return True


def remove(path: Path) -> None:
    """Remove `path` durably; absent is fine."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    if not system.DIRECTORY:
        return  # no such thing there
    descriptor = os.open(path, os.O_RDONLY | system.DIRECTORY | system.CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
