"""What every verb needs before it can start: the workspace, its config, the open repository, this process's
identity."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from spotwarp.cli import keys
from spotwarp.cli.render import note
from spotwarp.clock import Clock, Rng, SystemClock, SystemRng
from spotwarp.config import Config, find_workspace, load, mistaken
from spotwarp.errors import WorkspaceFault

if TYPE_CHECKING:
    from spotwarp.persistence.encryption.secret import Secret
    from spotwarp.persistence.repository import Known, Repository
    from spotwarp.persistence.runlog.log import RunLog
    from spotwarp.persistence.store.api import Store

LOG_BUDGET_S = 20.0
LOOK_BUDGET_S = 20.0
"""How long a verb that only looks tries a store that is away."""
PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class Context:
    """An initialised workspace and the repository it points to."""

    workspace: Path
    config: Config
    repository: Repository
    clock: Clock
    rng: Rng
    life: str
    """Names this process's life in the run log (R9)."""
    key_text: str = field(default="", repr=False)
    """The key of the repository as it was given, which no log may hold."""

    def log(self, run: str | None = None) -> RunLog:
        """The log of `run`, or of the config's."""
        urgent = self.repository.with_budget(LOG_BUDGET_S)  # the log must not queue behind throttled packs
        return urgent.log(run or self.config.run, life=self.life, clock=self.clock, rng=self.rng)


def connect(
    remote_path: str,
    *,
    clock: Clock,
    rng: Rng,
    single_writer: bool = False,
    cwd: Path | None = None,
    bandwidth: float | None = None,
) -> Store:
    """The store at `remote_path`. Nothing is asked of it yet."""
    from spotwarp.persistence.parallel import settle_allocator
    from spotwarp.persistence.store.single_writer import SingleWriterStore
    from spotwarp.persistence.store.url import open_store, parse_url

    settle_allocator()  # before the store starts its threads
    store = open_store(parse_url(remote_path, cwd=cwd), clock=clock, rng=rng, env=os.environ, bandwidth=bandwidth)
    return SingleWriterStore(store) if single_writer else store


def here() -> Path:
    """The working directory. Raises `WorkspaceFault` when it has been deleted."""
    try:
        return Path.cwd()
    except OSError as error:
        raise WorkspaceFault(
            f"the working directory cannot be read: {error.strerror}", hint="Was it deleted or moved? `cd` to it again."
        ) from error


def settings(run: str | None = None, **overrides: object) -> tuple[Path, Config]:
    """The workspace at or above the working directory and its config. Raises `ConfigError`."""
    workspace = find_workspace(here())
    config = load(workspace, env=os.environ, overrides={"run": run, **overrides})
    keys.leave(config.secrets)
    return workspace, config


def key_of(config: Config, workspace: Path) -> Secret | None:
    """The key that this process was given. Raises `ConfigError`, `UsageError`."""
    from spotwarp.persistence.encryption.secret import given

    return given(keys.held(), config.key_file, workspace)


def key_place(flag: str, workspace: Path) -> Path:
    """The path that --key-file means: one that is relative begins where the user is. Raises `ConfigError`."""
    from spotwarp.persistence.encryption.secret import place

    if flag.startswith("~"):
        return place(flag, workspace)
    path = here() / flag
    return place(str(path.parent.resolve() / path.name), workspace)


def known_in(workspace: Path) -> Known | None:
    """The repository that the workspace belongs to, None where none was opened from it yet."""
    from spotwarp.execution import localstate
    from spotwarp.persistence.repository import Known

    return localstate.load(localstate.runtime(workspace) / localstate.REPOSITORY, Known)


def keep_known(workspace: Path, repository: Repository) -> None:
    """Have the workspace belong to `repository` from now on. Raises `WorkspaceFault`."""
    from spotwarp.execution import localstate

    localstate.save(localstate.runtime(workspace) / localstate.REPOSITORY, repository.known)


def enter(run: str | None = None, *, budget_s: float | None = None, **overrides: object) -> Context:
    """Open the workspace at or above the working directory; `budget_s` is how long to try a store that is away.

    Raises `ConfigError`, `RepositoryMissing`, `OtherRepository`, `WrongKey`, store errors.
    """
    from spotwarp.persistence.repository import open_repository
    from spotwarp.persistence.store.retrying import Patient

    clock, rng = SystemClock(), SystemRng()
    workspace, config = settings(run, **overrides)
    for words in mistaken(os.environ):
        note(words)
    store = connect(
        config.remote_path,
        clock=clock,
        rng=rng,
        single_writer=config.single_writer,
        cwd=workspace,
        bandwidth=config.limits.bandwidth,
    )
    secret = key_of(config, workspace)
    if budget_s is not None and isinstance(store, Patient):
        store = store.with_budget(budget_s)
    waiting = threading.Timer(PATIENCE_S, note, [f"waiting for the store {store.url} to answer"])
    waiting.daemon = True
    waiting.start()
    try:
        known = known_in(workspace)
        repository = open_repository(store, secret, known)
    finally:
        waiting.cancel()
    if known is None:
        with suppress(WorkspaceFault):  # it is noted another time, from a place that can be written to
            keep_known(workspace, repository)
    return Context(workspace, config, repository, clock, rng, rng.token(8), secret.text if secret else "")
