"""`spotwarp key`: who can open an encrypted repository. No stored data is read or written anew."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spotwarp.cli import keys, render
from spotwarp.cli.context import LOOK_BUDGET_S, connect, key_of, key_place, known_in, settings
from spotwarp.cli.init import asked_for
from spotwarp.clock import SystemClock, SystemRng
from spotwarp.config import path_in
from spotwarp.errors import UsageError, WrongKey

if TYPE_CHECKING:
    from spotwarp.persistence.encryption.keyring import Keyring, Opened
    from spotwarp.persistence.encryption.secret import Secret

_COPY = "Keep a copy of it elsewhere."
_KEEP = "keep it elsewhere too: without it, or another key, nobody can ever read what is stored"

app = typer.Typer(no_args_is_help=True, help="Say and change who can open an encrypted repository.")


def register(into: typer.Typer) -> None:
    """Add the verb with its own verbs."""
    into.add_typer(app, name="key")


@dataclass(frozen=True, slots=True)
class _At:
    """An encrypted repository, opened with the key given here."""

    ring: Keyring
    opened: Opened
    workspace: Path
    key_file: str
    """As the config has it."""
    secret: Secret


def _open() -> _At:
    from spotwarp.persistence.encryption.keyring import Keyring, open_keys
    from spotwarp.persistence.repository import read_identity
    from spotwarp.persistence.store.retrying import Patient

    clock, rng = SystemClock(), SystemRng()
    workspace, config = settings()
    secret = key_of(config, workspace)
    store = connect(config.remote_path, clock=clock, rng=rng, single_writer=config.single_writer, cwd=workspace)
    if isinstance(store, Patient):
        store = store.with_budget(LOOK_BUDGET_S)
    identity, encrypted = read_identity(store)
    if (known := known_in(workspace)) is not None:
        known.confirm(identity, encrypted, store.url)
    if not encrypted:
        raise WrongKey(
            f"the repository at {store.url} is not encrypted: it has no keys",
            hint="`spotwarp init --encrypt` makes an encrypted one, at another remote path.",
        )
    opened = open_keys(store, secret)
    assert secret is not None  # noqa: S101 - nothing opens without one
    return _At(Keyring(store, clock=clock, rng=rng), opened.of(identity.id), workspace, config.key_file, secret)


def _new(at: _At, key_file: str | None) -> tuple[Secret, str]:
    """The key that is to open the repository too, and words on where it is."""
    from spotwarp.persistence.encryption.secret import chosen, read_or_make

    variable = keys.held().get(keys.NEW_KEY, "")
    if key_file is not None:
        path = key_place(key_file, at.workspace)
        secret, made = read_or_make(path)
        return secret, f"in {path}" + (f", which was made now. {_COPY}" if made else "")
    if variable.strip():
        secret = chosen(variable, f"in {keys.NEW_KEY}")
        return secret, f"{secret.words}; {_KEEP}"
    if not sys.stdin.isatty():
        raise UsageError(
            "there is no new key",
            hint=f"--key-file FILE makes one; or set {keys.NEW_KEY} to a passphrase, or type one on a terminal.",
        )
    return asked_for(new=True), f"the passphrase just typed; {_KEEP}"


def _clean(at: _At) -> None:
    """Say what is left of sets that were replaced, where it cannot be deleted."""
    if left := at.ring.clean():
        render.note(f"older wrapped keys are still in the bucket, and whoever has a removed key can use them: {left}")


@app.command("list")
def listed(as_json: bool = typer.Option(False, "--json", help="Print them as JSON.")) -> None:
    """List the keys that open the repository; `*` is the one given here.

    Examples:

    spotwarp key list

    spotwarp key list --json

    Exit codes: 0, 12 not encrypted, or no or another key, 17 store unavailable.
    """
    at = _open()
    found = at.ring.slots()
    _clean(at)
    if as_json:
        render.facts(
            [{"id": s.id, "kind": s.kind, "created": s.created, "given": s.id == at.opened.slot} for s in found]
        )
        return
    rows = [("*" if s.id == at.opened.slot else "", s.id, s.kind, s.created[:19].replace("T", " ")) for s in found]
    render.table(("", "id", "kind", "since (UTC)"), rows)


@app.command("add")
def add(
    key_file: str | None = typer.Option(None, "--key-file", help="A key file; it is made where it does not exist."),
    as_json: bool = typer.Option(False, "--json", help="Print the new key's id as JSON."),
) -> None:
    """Let one more key open the repository: a passphrase (typed, or in SPOTWARP_NEW_KEY) or a key file.

    Examples:

    spotwarp key add

    spotwarp key add --key-file ~/second.key

    Exit codes: 0, 2 wrong usage, 12 not encrypted, or no or another key, 17 store unavailable.
    """
    at = _open()
    secret, where = _new(at, key_file)
    slot = at.ring.add(at.opened, secret)
    if as_json:
        render.facts({"id": slot.id, "kind": slot.kind})
        return
    render.line(f"key {slot.id} opens the repository too: {where}")


@app.command("remove")
def remove(
    id: str = typer.Argument(..., metavar="ID", help="The key's id, as `spotwarp key list` has it."),
    as_json: bool = typer.Option(False, "--json", help="Print the removed key's id as JSON."),
) -> None:
    """Let a key no longer open the repository. The one given here cannot be removed.

    Nothing is encrypted anew: whoever has opened the repository with that key before, or has it and a copy of the
    bucket's `keys/` of before, can still read all of it. Against that only a new repository helps.

    Examples:

    spotwarp key remove 1f2e3d4c

    Exit codes: 0, 2 no such key or the one in use, 12 not encrypted, or no or another key, 17 store unavailable.
    """
    at = _open()
    at.ring.remove(at.opened, id)
    _clean(at)
    if as_json:
        render.facts({"removed": id})
        return
    render.line(f"key {id} no longer opens the repository")
    render.line(
        "whoever has copied its wrapped form from the bucket, and has it, still can: no data was encrypted anew"
    )


@app.command("rotate")
def rotate(
    key_file: str | None = typer.Option(None, "--key-file", help="A key file; it is made where it does not exist."),
    as_json: bool = typer.Option(False, "--json", help="Print the ids as JSON."),
) -> None:
    """Put a new key in the place of the one given here, in one step: a passphrase (typed, or in SPOTWARP_NEW_KEY) or a
    key file.

    Runs at work go on. Nothing is encrypted anew, as with `key remove`.

    Examples:

    spotwarp key rotate

    spotwarp key rotate --key-file ~/new.key

    Exit codes: 0, 2 wrong usage, 12 not encrypted, or no or another key, 17 store unavailable.
    """
    at = _open()
    secret, where = _new(at, key_file)
    slot = at.ring.rotate(at.opened, secret)
    _clean(at)
    if as_json:
        render.facts({"id": slot.id, "kind": slot.kind, "removed": at.opened.slot})
        return
    render.line(f"key {slot.id} opens the repository now: {where}")
    render.line(f"key {at.opened.slot} no longer does")
    if at.key_file and at.secret.source.startswith("in /"):
        name = "SPOTWARP_KEY_FILE" if os.environ.get("SPOTWARP_KEY_FILE") else f"`key_file` in {path_in(at.workspace)}"
        render.line(f"{name} still names the file of the old one")
    render.line("next: give it to this and every other machine (SPOTWARP_KEY, SPOTWARP_KEY_FILE or `key_file`)")
