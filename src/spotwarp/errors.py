"""The error tree. Grouped by what the caller does about it, not by where it arose.

    SpotWarpError
     ├ UsageError            2    fix the command line
     │  └ ConfigError        2    fix .spotwarp/config.yaml (file and line are in the message)
     ├ StoreError            17   the object store did not do what was asked
     │  ├ StoreUnavailable   17   try again later (retryable: the request may or may not have arrived)
     │  ├ StoreConflict      17   the store asks for the same request again (HTTP 409, retryable)
     │  ├ StoreDenied        12   fix the credentials or their rights
     │  │  └ CredentialsExpired 12  renew the credentials (retryable: they are looked for again each time)
     │  ├ StoreFull          18   make room (quota or disk)
     │  ├ StoreUnsupported   19   the store lacks the operation (HTTP 501, or it ignores the condition)
     │  ├ BucketMissing      10   create the bucket or correct the URL
     │  ├ ObjectMissing      16   an object that should be there is not
     │  └ AlreadyExists      17   create-if-absent found the name taken
     ├ RepositoryError       16
     │  ├ RepositoryMissing  10   run `spotwarp init` first, or correct the URL
     │  ├ RunMissing         10   no such run in this repository
     │  ├ SnapshotMissing    10   no such snapshot, or none yet
     │  ├ WrongKey           12   it is encrypted, and the key is missing or another one: give the right one
     │  ├ OtherRepository    16   it is not the one that this workspace belongs to: nothing was stored or restored
     │  ├ UnsupportedFormat  19   written by a newer SpotWarp: upgrade; nothing was changed
     │  ├ CorruptObject      16   an object fails its hash, length or grammar
     │  └ ReadBackFailed     16   the store acknowledged what it does not have
     ├ LeaseError            11
     │  ├ LeaseHeld          11   another machine holds the run and is alive
     │  ├ Fenced             13   the run has moved on: stop writing, stop training
     │  └ RunEnded           20   the run is complete or failed: nothing may be added
     ├ ExecutionError        125
     │  ├ AlreadyRunning     11   this workspace already has a SpotWarp at work
     │  ├ LocalWork          21   the workspace has newer work than the run; the user must choose
     │  ├ WorkspaceFault     22   the workspace is missing, unreadable or full
     │  ├ SecretMissing      125  a variable that `secrets` names is empty
     │  ├ OtherShape         125  not as many processes or GPUs as the checkpoint was written by
     │  ├ NoticeFault        125  a source of preemption notices gives no usable answer: training goes on
     │  ├ NotRunning         10   no SpotWarp is at work in this workspace, on this machine
     │  ├ PlatformUnsupported 19  this needs Linux
     │  ├ CommandNotFound    127
     │  └ CommandNotRunnable 126
     └ Interrupted           130

Every error carries one sentence of what happened and, where there is one, a hint that says what to do next.
The exit codes are part of the interface of every verb but `run`, which passes the child's own code through.
"""

from __future__ import annotations

from typing import ClassVar


class SpotWarpError(Exception):
    """Base of all errors that a user may meet.

    `message` says what happened and what is safe; `hint` says what to do next.
    """

    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False
    usual_hint: ClassVar[str | None] = None
    """What to do next wherever the raiser knows nothing better."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.usual_hint

    @property
    def code(self) -> str:
        """The error's stable name, as `--json` prints it."""
        return type(self).__name__


class UsageError(SpotWarpError):
    """The command line asks for something impossible."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting is unknown or malformed."""


class StoreError(SpotWarpError):
    """The object store did not do what was asked."""

    exit_code = 17


class StoreUnavailable(StoreError):
    """No usable answer: the request may or may not have taken effect."""

    retryable = True
    usual_hint = "Is the store up, and the network? The same command again does no harm."
    retry_after_s: float | None = None
    """Seconds that the store asked to be left alone for, where it said so."""


class StoreConflict(StoreError):
    """The store asks for the same request again (HTTP 409); nothing was decided."""

    retryable = True


class StoreDenied(StoreError):
    """The credentials are wrong or lack a right."""

    exit_code = 12


class CredentialsExpired(StoreDenied):
    """The credentials have expired, and their source has no newer ones yet. Nothing was done."""

    retryable = True


class StoreFull(StoreError):
    """Quota or disk exhausted."""

    exit_code = 18
    usual_hint = "Make room there; `spotwarp prune --grace 0s` deletes what retention has let go."


class StoreUnsupported(StoreError):
    """The store lacks an operation or ignores its condition."""

    exit_code = 19


class BucketMissing(StoreError):
    """The bucket (or the root directory's parent) does not exist."""

    exit_code = 10


class ObjectMissing(StoreError):
    """An object that should be there is not."""

    exit_code = 16
    usual_hint = "`spotwarp check` says what is missing, and which snapshots are whole."


class AlreadyExists(StoreError):
    """Create-if-absent found the name taken."""


class RepositoryError(SpotWarpError):
    """The repository's content is not what it must be."""

    exit_code = 16


class RepositoryMissing(RepositoryError):
    """Nothing was initialised at this URL."""

    exit_code = 10


class RunMissing(RepositoryError):
    """The repository has no such run."""

    exit_code = 10


class SnapshotMissing(RepositoryError):
    """The run has no such snapshot."""

    exit_code = 10
    usual_hint = "`spotwarp snapshots` lists what there is."


class WrongKey(RepositoryError):
    """The repository is encrypted and the key for it is missing or another one, or it is not and there is a key."""

    exit_code = 12


class OtherRepository(RepositoryError):
    """What is at the remote path is not the repository that the workspace belongs to, or lost its encryption."""

    usual_hint = (
        "Nothing was stored or restored. Put the former one back, or correct remote_path; if the workspace is to be "
        "kept in what is there now, `spotwarp init --new-repository`."
    )


class UnsupportedFormat(RepositoryError):
    """Written by a newer SpotWarp; this one only reads what it fully understands."""

    exit_code = 19
    usual_hint = "Upgrade SpotWarp on this machine; nothing was changed."


class CorruptObject(RepositoryError):
    """An object fails its hash, its length or its grammar."""

    usual_hint = "`spotwarp check` says what is damaged, and which snapshots are whole."


class ReadBackFailed(RepositoryError):
    """The store acknowledged objects that a second look does not find whole.

    `packs` are the ids that must not be referred to again.
    """

    def __init__(self, message: str, *, packs: frozenset[str] = frozenset(), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.packs = packs


class LeaseError(SpotWarpError):
    """Somebody else has, or had, the run."""

    exit_code = 11


class LeaseHeld(LeaseError):
    """Another machine holds the run and is alive."""


class Fenced(LeaseError):
    """The run has moved on without this writer: stop writing, stop training."""

    exit_code = 13


class RunEnded(LeaseError):
    """The run is complete or failed; nothing may be added to it."""

    exit_code = 20


class ExecutionError(SpotWarpError):
    """SpotWarp could not do its part beside the training command."""

    exit_code = 125


class AlreadyRunning(ExecutionError):
    """This workspace already has a SpotWarp at work."""

    exit_code = 11


class LocalWork(ExecutionError):
    """The workspace holds work that the run has not; the user must choose."""

    exit_code = 21


class WorkspaceFault(ExecutionError):
    """The workspace is missing, unreadable or full."""

    exit_code = 22
    usual_hint = "Is the disk full, read-only or somebody else's?"


class SecretMissing(ExecutionError):
    """A variable that the option `secrets` names is not set, or empty."""


class OtherShape(ExecutionError):
    """This machine or command does not have the number of processes or GPUs that the checkpoint was written by."""


class NoticeFault(ExecutionError):
    """A source of preemption notices gives no usable answer. It never ends a run."""


class NotRunning(ExecutionError):
    """No SpotWarp is at work in this workspace, on this machine."""

    exit_code = 10
    usual_hint = "`spotwarp status` says who has the run."


class PlatformUnsupported(ExecutionError):
    """This system lacks what the verb stands on."""

    exit_code = 19
    usual_hint = "Commands run on Linux; status, snapshots, logs, check and prune work anywhere, restore --to on macOS."


class CommandNotFound(ExecutionError):
    """The training command does not exist."""

    exit_code = 127


class CommandNotRunnable(ExecutionError):
    """The training command exists but cannot be started."""

    exit_code = 126


class Interrupted(SpotWarpError):
    """The user asked to stop."""

    exit_code = 130
