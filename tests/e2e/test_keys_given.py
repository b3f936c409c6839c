"""Where a key comes from: all verbs agree, what was used is told, and nothing that is started inherits it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.product import Machine

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow

KEY, NEW, FILE = "SPOTWARP_KEY", "SPOTWARP_NEW_KEY", "SPOTWARP_KEY_FILE"
PASSPHRASE = "correct horse battery staple"


def test_init_goes_by_the_same_keys_as_other_verbs(rent: Rent, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    key, other = (tmp_path / "keys" / name for name in ("key", "other"))
    machine = rent()
    made = machine("init", "--remote-path", machine.remote, "--encrypt", "--key-file", "../keys/key")
    assert f"opens with the key in {key}" in made.out.decode()
    named = {FILE: str(key)}
    fresh = rent("fresh", remote=str(tmp_path / "fresh-bucket"))
    refused = fresh("init", "--remote-path", fresh.remote, env=named, code=2)
    assert "is it to be encrypted" in refused.err
    assert not (Path(fresh.remote) / "config").exists()
    joined = rent("joined")
    joined("init", "--remote-path", joined.remote, env=named)
    assert "\nkey_file:" not in (joined.path / ".spotwarp" / "config.yaml").read_text().replace('key_file: ""', "")
    joined("runs", env=named)
    both = {KEY: key.read_text().strip()}
    third = rent("third")
    other.write_text("spotwarp-key-" + "ab" * 32 + "\n")
    refused = third("init", "--remote-path", third.remote, "--key-file", str(other), env=both, code=12)
    assert f"the key in {other} does not open" in refused.err
    assert not (third.path / ".spotwarp" / "config.yaml").exists()
    said = third("init", "--remote-path", third.remote, "--key-file", str(key), env=both).out.decode()
    assert "opens with the key in SPOTWARP_KEY" in said
    third("runs")
    refused = fresh("init", "--remote-path", fresh.remote, "--encrypt", "--key-file", str(other), env=both, code=2)
    assert "two keys are given" in refused.err
    wrong = third("runs", env={FILE: str(other)}, code=12)
    assert f"the key in {other} does not open" in wrong.err
    rotated = third("key", "rotate", env={NEW: PASSPHRASE}).out.decode()
    assert f"`key_file` in {third.path / '.spotwarp' / 'config.yaml'} still names" in rotated
    assert "nobody can ever read" in rotated


def test_no_program_inherits_a_key(rent: Rent, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(f"#!/bin/sh\nenv > {tmp_path}/seen\n")
    (tools / "nvidia-smi").chmod(0o755)
    keys = {KEY: PASSPHRASE, NEW: "another horse and battery"}
    machine = rent(env={**keys, "PATH": f"{tools}:{os.environ['PATH']}"})
    said = machine("init", "--remote-path", machine.remote, "--encrypt").out.decode()
    assert "KEEP THE PASSPHRASE" in said
    machine("doctor", code=None)
    seen = (tmp_path / "seen").read_text()
    assert "PATH=" in seen
    assert "horse" not in seen
