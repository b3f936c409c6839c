"""`spotwarp init`: make a workspace and a repository, and try the store for real."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spotwarp.cli import keys, render
from spotwarp.cli.context import connect, here, keep_known, key_place, known_in
from spotwarp.clock import Clock, Rng, SystemClock, SystemRng
from spotwarp.errors import ConfigError, ObjectMissing, RepositoryMissing, StoreUnsupported, UsageError

if TYPE_CHECKING:
    from spotwarp.persistence.encryption.secret import Secret
    from spotwarp.persistence.repository import Known
    from spotwarp.persistence.store.api import Store
    from spotwarp.persistence.store.probe import ProbeResult


MOST_NAMED = 8


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("init")(init)


def init(
    remote_path: str | None = typer.Option(
        None, "--remote-path", help="Where to store: s3://bucket/prefix, gs://…, az://…, file:///dir or a plain path."
    ),
    run: str | None = typer.Option(None, "--run", help="The run that this workspace continues.  [default: main]"),
    single_writer: bool = typer.Option(
        False, "--single-writer", help="Accept a store without create-if-absent. Only ever one machine may then write."
    ),
    encrypt: bool = typer.Option(
        False, "--encrypt", help="Make an encrypted repository: the store sees neither names nor content."
    ),
    key_file: str | None = typer.Option(
        None, "--key-file", help="The file with its key; with --encrypt it is made where it does not exist."
    ),
    new_repository: bool = typer.Option(
        False, "--new-repository", help="Have this workspace belong to what is at its remote path now, whatever was."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print what was found as JSON."),
) -> None:
    """Make this directory a workspace whose content is kept at a remote path.

    Writes .spotwarp/config.yaml and tries the target for real: write, read back, list, create-if-absent, a race for it,
    and delete. Safe to repeat: it tries the target again and changes nothing else. On another machine the same command
    joins the same repository and takes over the excludes of the run.

    Credentials and addresses come from the usual variables of each cloud: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
    AWS_PROFILE, AWS_ENDPOINT_URL, AWS_REGION; GOOGLE_APPLICATION_CREDENTIALS; AZURE_STORAGE_ACCOUNT_NAME,
    AZURE_STORAGE_ACCOUNT_KEY. See docs/stores.md.

    What --encrypt encrypts opens with the passphrase in SPOTWARP_KEY (asked for on a terminal where it is not set), or
    with the key in a file; without it nobody can read anything, so keep a copy elsewhere. `spotwarp key` changes it.

    Examples:

    spotwarp init --remote-path s3://my-bucket/my-project

    spotwarp init --remote-path gs://my-bucket/my-project

    spotwarp init --remote-path /mnt/nas/backups --run qwen-14b

    spotwarp init --remote-path s3://my-bucket/my-project --encrypt --key-file ~/my-project.key

    Exit codes: 0 ready, 2 wrong usage, 10 no such bucket, 12 denied or another key, 17 unavailable, 18 full, 19 unsafe
    store, 16 it was replaced by another repository.
    """
    workspace = here()
    clock, rng = SystemClock(), SystemRng()
    from spotwarp import config

    settled = _settled(workspace, remote_path, run, single_writer, key_file)
    store = connect(settled.remote_path, clock=clock, rng=rng, cwd=workspace)
    found = _probe(store, clock, rng, single_writer=settled.single_writer)
    secret, new_file = _secret(workspace, settled, store, encrypt=encrypt)
    known = known_in(workspace) if settled.existing and not new_repository else None
    made = _create(
        workspace, settled, store, clock, rng, rate=found.put_rate_bytes_s, secret=secret, encrypt=encrypt, known=known
    )
    if as_json:
        render.facts(
            {
                "workspace": str(workspace),
                "config": str(config.path_in(workspace)),
                "remote_path": settled.remote_path,
                "run": settled.run,
                "repository": made["repository"],
                "created": made["created"],
                "encrypted": made["encrypted"],
                "key": made["key"] or None,
                "key_file": settled.named or None,
                "key_file_made": new_file,
                "snapshots": made["snapshots"],
                "left_out": _withheld(workspace),
                "effective": _effective(settled.remote_path),
                "probe": asdict(found),
            }
        )
        return
    _tell(workspace, settled, found, made, new_file=new_file)


class _Settled:
    """What init goes by: flags over an existing config over defaults."""

    def __init__(
        self, remote_path: str, run: str, single_writer: bool, named: str, key_file: str, existing: bool
    ) -> None:
        self.remote_path, self.run, self.single_writer = remote_path, run, single_writer
        self.named, self.key_file, self.existing = named, key_file, existing
        """`named` is the key file of the flag, `key_file` the one in force, as for every verb."""


def _settled(
    workspace: Path, remote_path: str | None, run: str | None, single_writer: bool, key_file: str | None
) -> _Settled:
    from spotwarp import config
    from spotwarp.model import DEFAULT_RUN, checked_run
    from spotwarp.persistence.encryption.secret import place
    from spotwarp.persistence.store.url import parse_url

    if run is not None:
        checked_run(run)
    named = str(key_place(key_file, workspace)) if key_file is not None else ""
    in_force = named or os.environ.get("SPOTWARP_KEY_FILE", "")
    if not config.path_in(workspace).exists():
        if remote_path is None:
            raise ConfigError(
                "where should it be stored?", hint="spotwarp init --remote-path s3://bucket/project (or a directory)"
            )
        location = parse_url(remote_path, cwd=workspace)
        if location.scheme == "file" and Path(location.path).resolve().is_relative_to(workspace.resolve()):
            raise ConfigError(
                f"{location.path} is inside this workspace: it would be lost with it, and be stored in itself",
                hint="Name a directory on another disk, or a bucket.",
            )
        return _Settled(str(location), run or DEFAULT_RUN, single_writer, named, in_force, existing=False)
    present = config.load(workspace, env={})
    kept_at = str(parse_url(present.remote_path, cwd=workspace))
    if remote_path is not None and str(parse_url(remote_path, cwd=workspace)) != kept_at:
        raise ConfigError(
            f"this workspace is already kept at {kept_at}",
            hint=f"Edit remote_path in {config.path_in(workspace)} to move it, or use another directory.",
        )
    if run is not None and run != present.run:
        raise ConfigError(
            f"this workspace already continues run {present.run!r}",
            hint=f"Edit run in {config.path_in(workspace)}, use `spotwarp run --run {run}`, or another directory.",
        )
    if single_writer and not present.single_writer:
        raise ConfigError(
            "this workspace relies on create-if-absent",
            hint=f"Set single_writer in {config.path_in(workspace)} if really only one machine will ever write.",
        )
    if named and named != (str(place(present.key_file, workspace)) if present.key_file else ""):
        raise ConfigError(
            f"this workspace has {'another' if present.key_file else 'no'} key file in its config",
            hint=f"Edit key_file in {config.path_in(workspace)}.",
        )
    return _Settled(kept_at, present.run, present.single_writer, named, in_force or present.key_file, existing=True)


def _secret(workspace: Path, settled: _Settled, store: Store, *, encrypt: bool) -> tuple[Secret | None, bool]:
    """The key to open the repository with, or to make it with; the flag says that its file was made now."""
    from spotwarp.persistence.encryption import secret as secrets

    variable = keys.held().get(keys.KEY, "")
    new = encrypt and not _there(store)
    if variable.strip():
        if new and settled.named:
            raise UsageError(
                f"two keys are given: {keys.KEY} is set, which comes before a key file, and so is --key-file",
                hint=f"Unset {keys.KEY}, or leave --key-file out; `spotwarp key add` makes a second key later.",
            )
        return (secrets.chosen if new else secrets.secret)(variable, f"in {keys.KEY}"), False
    if settled.key_file:
        path = secrets.place(settled.key_file, workspace)
        return secrets.read_or_make(path) if new and settled.named else (secrets.read(path), False)
    if not encrypt:
        return None, False
    if not sys.stdin.isatty():
        raise UsageError(
            "there is no key to encrypt with",
            hint="--key-file FILE makes one; or set SPOTWARP_KEY to a passphrase, or type one on a terminal.",
        )
    return asked_for(new=new), False


def _there(store: Store) -> bool:
    from spotwarp.persistence.repository import read_identity

    try:
        read_identity(store)
    except RepositoryMissing:
        return False
    return True


def asked_for(*, new: bool) -> Secret:
    """The passphrase that is typed on the terminal; a `new` one twice."""
    from spotwarp.persistence.encryption.secret import chosen, secret

    text = typer.prompt("passphrase", hide_input=True, confirmation_prompt=new, err=True)
    return (chosen if new else secret)(text, "just typed")


def _probe(store: Store, clock: Clock, rng: Rng, *, single_writer: bool) -> ProbeResult:
    from spotwarp.persistence.store.probe import probe

    try:
        found = probe(store, clock=clock, rng=rng)
    except ObjectMissing as gone:
        raise StoreUnsupported(
            f"this store does not keep what it takes: {gone.message}",
            hint="Use another store. Is what answers there an object store, and the same at each request?",
        ) from gone
    if not (found.writable and found.read_back and found.listable and found.distinguishes_case):
        found.require()
    if found.create_if_absent != "atomic" and not single_writer:
        raise StoreUnsupported(
            f"this store {'ignores' if found.create_if_absent == 'ignored' else 'lacks'} create-if-absent: "
            "two machines could write one run and destroy it",
            hint="Use another store; or, if only ever one machine will write, `spotwarp init --single-writer`.",
        )
    return found


def _create(
    workspace: Path,
    settled: _Settled,
    store: Store,
    clock: Clock,
    rng: Rng,
    *,
    rate: float,
    secret: Secret | None,
    encrypt: bool,
    known: Known | None,
) -> dict[str, object]:
    from spotwarp import config
    from spotwarp.configfile import write
    from spotwarp.execution import localstate
    from spotwarp.persistence.encryption.keyring import open_keys
    from spotwarp.persistence.encryption.secret import read
    from spotwarp.persistence.repository import create
    from spotwarp.persistence.store.single_writer import SingleWriterStore

    repository, created = create(
        SingleWriterStore(store) if settled.single_writer else store,
        clock=clock,
        rng=rng,
        single_writer=settled.single_writer,
        secret=secret,
        encrypt=encrypt,
        known=known,
    )
    if settled.named and secret is not None:  # no file is noted that does not open it
        named = read(Path(settled.named))
        if named != secret:
            open_keys(store, named)
    keep_known(workspace, repository)
    repository.enlist(settled.run)
    head = repository.log(settled.run, life="init", clock=clock, rng=rng).head()
    if not settled.existing:
        excludes = _recorded_excludes(repository, settled.run, clock, rng) if head.state.snapshot else ()
        values: dict[str, object] = {
            "remote_path": settled.remote_path,
            "run": settled.run,
            "single_writer": settled.single_writer,
        }
        if excludes:
            values["exclude"] = excludes
        if settled.named:
            values["key_file"] = settled.named
        write(workspace, config.render(values))
    localstate.save(localstate.runtime(workspace) / localstate.RATE, localstate.Rate(rate))
    return {
        "repository": repository.identity.id,
        "created": created,
        "encrypted": repository.encrypted,
        "key": secret.words if secret is not None else "",
        "key_kind": secret.kind if secret is not None else "",
        "snapshots": len(head.state.retained),
        "generation": head.state.generation,
    }


def _recorded_excludes(repository: object, run: str, clock: Clock, rng: Rng) -> tuple[str, ...]:
    """The excludes that the run's last snapshot was taken with, from the config file in it; none if it cannot be
    read."""
    from spotwarp.execution.workspace import excludes_in
    from spotwarp.persistence.repository import Repository

    assert isinstance(repository, Repository)  # noqa: S101 - narrows the type
    return excludes_in(repository, repository.log(run, life="init", clock=clock, rng=rng), os.environ)


def _effective(remote_path: str) -> dict[str, str]:
    from spotwarp.persistence.store.url import effective, parse_url

    return effective(parse_url(remote_path), os.environ)


def _tell(workspace: Path, settled: _Settled, found: ProbeResult, made: dict[str, object], *, new_file: bool) -> None:
    from spotwarp.config import path_in
    from spotwarp.model import human_bytes

    render.line(f"{'checked' if settled.existing else 'initialised'} {workspace}")
    render.line(f"  stored at   {settled.remote_path}")
    if facts := _effective(settled.remote_path):
        render.line(f"              {', '.join(f'{name} {value}' for name, value in facts.items())}")
    render.line(
        f"  run         {settled.run}" + (f", {made['snapshots']} snapshot(s) kept" if made["snapshots"] else "")
    )
    render.line(f"  config      {path_in(workspace)}")
    rate = f", {human_bytes(found.put_rate_bytes_s)}/s for a small object" if found.put_rate_bytes_s else ""
    render.line(f"  the store   write, read back, list{rate}")
    words = {"atomic": "create-if-absent holds under a race", "ignored": "IGNORED", "unsupported": "NOT SUPPORTED"}
    render.line(f"              {words[found.create_if_absent]}")
    render.line(
        f"              {'delete allowed' if found.deletable else 'delete not allowed: old data is kept for ever'}"
    )
    render.line("  left out    __pycache__/, runtime files, and secrets by their names (.env, .ssh/ ...)")
    if withheld := _withheld(workspace):
        render.line(f"              here: {', '.join(withheld)}: not stored; name the variables in them in `secrets:`")
    for line in _on_encryption(settled, made, new_file=new_file):
        render.line(line)
    if settled.single_writer:
        render.line("  WARNING     single-writer: NOTHING stops a second machine from destroying this run")
    render.line("next: spotwarp run --command 'python train.py'")


def _on_encryption(settled: _Settled, made: dict[str, object], *, new_file: bool) -> list[str]:
    from spotwarp.execution.notice.platform import marketplace

    if not made["encrypted"]:
        host = marketplace(os.environ) if made["created"] else ""
        words = f"  encrypted   no. On a rented host ({host}) think of `--encrypt`, at another remote path"
        return [words] if host else []
    typed = "; set SPOTWARP_KEY to it for `run`" if made["key"] == "the passphrase just typed" else ""
    lines = [f"  encrypted   yes; opens with {made['key']}{typed}"]
    if new_file:
        lines.append(f"  WARNING     {settled.named} was made now. KEEP A COPY ELSEWHERE: without it, or another key")
        lines.append("              (`spotwarp key add`), nobody can ever read what is stored")
    elif made["created"] and made["key_kind"] == "passphrase":
        lines.append(
            "  WARNING     KEEP THE PASSPHRASE ELSEWHERE TOO: without it, or another key (`spotwarp key add`),"
        )
        lines.append("              nobody can ever read what is stored")
    return lines


def _withheld(workspace: Path) -> list[str]:
    """The secret files that are here; none named where looking takes too long (the first sync names them)."""
    from spotwarp.config import load
    from spotwarp.execution.parts import glance
    from spotwarp.execution.secrets import left_out

    seen = glance(workspace, load(workspace, env={}).exclude, SystemClock())
    return left_out(seen.skipped)[:MOST_NAMED] if seen else []
