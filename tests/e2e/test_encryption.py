"""An encrypted repository as its users have it: the same verbs, and a store that learns nothing."""

from __future__ import annotations

import json
import os
import pty
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

from spotwarp.persistence import layout
from spotwarp.persistence.encryption.keyring import open_keys
from spotwarp.persistence.encryption.secret import read
from spotwarp.persistence.store.local import LocalStore
from spotwarp.testing.checkpoints import huggingface_files, write_files
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.clouds import s3_cloud
from spotwarp.testing.product import Machine, until
from spotwarp.testing.seaweed import Seaweed

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow

KEY, NEW = "SPOTWARP_KEY", "SPOTWARP_NEW_KEY"
PASSPHRASE = "correct horse battery staple"
TRAINING = (
    'echo output-that-is-secret; test -z "$SPOTWARP_KEY" || exit 7; echo ready; '
    "trap 'echo saved > saved; exit 0' TERM INT; until test -e go; do sleep 0.05; done"
)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere" / "key"


@pytest.fixture
def encrypted(rent: Rent, key: Path) -> Callable[..., Machine]:
    """Machines with a workspace in one encrypted repository."""
    key.parent.mkdir()

    def make(name: str = "ws", *more: str, **how: object) -> Machine:
        machine = rent(name, **how)
        machine("init", "--remote-path", machine.remote, "--encrypt", "--key-file", str(key), *more)
        return machine

    return make


def life(encrypted: Callable[..., Machine], tmp_path: Path, **how: object) -> None:
    """Stored, preempted, resumed elsewhere, completed, extended, looked at, checked, pruned and restored."""
    first = encrypted("first", **how)
    data = os.urandom(5 << 20)
    first.file("weights.bin", data)
    write_files(first.path / "out" / "checkpoint-20", huggingface_files(step=20))
    training = first.start("run", "--command", TRAINING)
    training.until(lambda: b"ready" in training.out and first.snapshots(), "a snapshot", 90)
    training.send(15)
    training.end(75, 90)
    status = first.facts("status")
    assert status["encrypted"]
    assert status["resumable_checkpoint"] == "out/checkpoint-20"
    second = encrypted("second", **how)
    second.file("go", "")
    second("run", "--keep-local", code=0, seconds=90)
    assert (second.path / "weights.bin").read_bytes() == data
    assert (second.path / "saved").exists()
    second("run", "--extend", "--command", "echo more > more", seconds=90)
    assert sorted(one["run"] for one in second.facts("runs")) == ["main", "main-2"]
    assert b"output-that-is-secret" in second("logs", "main", "--attempt", "1").out
    second("check", "--read-data")
    second("prune", "--grace", "0s")
    second("check", "--read-data")
    assert second.snapshots()
    second("restore", "--to", str(tmp_path / "out"))
    for name in ("weights.bin", "more", "out/checkpoint-20/model.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (second.path / name).read_bytes(), name


@pytest.mark.deep
def test_the_life_of_a_run(encrypted: Callable[..., Machine], tmp_path: Path) -> None:
    life(encrypted, tmp_path)


def test_the_life_of_a_run_on_s3(encrypted: Callable[..., Machine], tmp_path: Path, seaweed_server: Seaweed) -> None:
    cloud = s3_cloud(seaweed_server, "encrypted")
    life(encrypted, tmp_path, remote=cloud.url, env=cloud.env())


def test_the_store_learns_nothing(encrypted: Callable[..., Machine], bucket: Path, key: Path) -> None:
    content = b"a content that nobody may see"
    large = json.dumps({"parameter": [n * 7 for n in range(200_000)]}).encode()
    machine = encrypted("ws", "--run", "unspoken-run", env={"SPOTWARP_MACHINE_ID": "unspoken-machine"})
    machine.file("unspoken-file.txt", content)
    machine.file("unspoken-directory/large.json", large)
    write_files(machine.path / "checkpoint-31337", huggingface_files(step=31337))
    command = "echo unspoken-output; sleep 1.5; exit 3"
    machine("run", "--command", command, code=3)
    assert machine.facts("status")["command"] == [command]
    machine("run", "--extend", "--command", command, code=None)
    words = {b"unspoken", b"large.json", b"parameter", b"checkpoint", b"sleep", b"31337", b"generation", b"snapshot"}
    words |= {word for word in (socket.gethostname().encode(),) if len(word) > 6}
    words |= {content, large[1000:1100], key.read_bytes().strip()[-64:]}
    for whole in (content, large):
        digest = blake3(whole).digest()
        words |= {digest[:16], digest, digest[:16].hex().encode(), digest.hex().encode()}
    chunk = blake3(large[: 4 << 20]).digest()[:16]
    objects = {
        str(path.relative_to(bucket)).encode(): path.read_bytes() for path in bucket.rglob("*") if path.is_file()
    }
    assert {name.split(b"/")[0] for name in objects} >= {b"config", b"ballast", b"names", b"runs", b"keys"}
    assert {name.split(b"/")[2] for name in objects if name.startswith(b"runs/")} >= {b"log", b"packs", b"manifests"}
    for name, data in objects.items():
        for word in words | {chunk}:
            assert word not in name, name
            assert word not in data, (name, word)


@pytest.mark.deep
def test_without_the_key_nothing_is_shown_or_changed(encrypted: Callable[..., Machine], rent: Rent, key: Path) -> None:
    machine = encrypted()
    machine.file("data", "d" * 1000)
    machine("sync")
    before = {path: path.read_bytes() for path in Path(machine.remote).rglob("*") if path.is_file()}
    key.rename(key.with_name("gone"))
    for verb in (("runs",), ("sync",), ("restore",), ("key", "list")):
        assert machine(*verb, env={KEY: "not the passphrase"}, code=12).err.count("error:") == 1
    refused = machine("snapshots", code=2)
    assert "the key file" in refused.err
    assert "SPOTWARP_KEY" in refused.err
    assert "does not open" in machine("run", "--command", "true", env={KEY: "wrong wrong"}, code=125).err
    status = machine("status", env={KEY: "not the passphrase"}, code=12)
    assert b"as far as this machine knows" in status.out
    assert "FAIL" in machine("doctor", code=1, env={KEY: "not the passphrase"}).out.decode()
    other = rent("other")
    refused = other("init", "--remote-path", other.remote, code=12)
    assert "no key is given here" in refused.err
    assert not (other.path / ".spotwarp").exists()
    assert {path: path.read_bytes() for path in Path(machine.remote).rglob("*") if path.is_file()} == before
    in_a_variable = {KEY: key.with_name("gone").read_text()}
    other("init", "--remote-path", other.remote, env=in_a_variable)
    assert len(other("snapshots", "--json", env=in_a_variable).json) == 1


@pytest.mark.deep
def test_keys_come_and_go_and_data_stays(encrypted: Callable[..., Machine], tmp_path: Path, key: Path) -> None:
    machine = encrypted()
    machine.file("data", "d" * 100_000)
    machine("sync")
    packs = {path: path.read_bytes() for path in Path(machine.remote).rglob("packs/*")}
    (first,) = machine.facts("key", "list")
    assert (first["kind"], first["given"]) == ("file", True)
    second = machine("key", "add", "--json", env={NEW: PASSPHRASE}).json
    assert second["kind"] == "passphrase"
    passphrase = {KEY: PASSPHRASE}
    assert [one["given"] for one in machine("key", "list", "--json", env=passphrase).json] == [False, True]
    assert "the key in use" in machine("key", "remove", first["id"], code=2).err
    assert "shorter" in machine("key", "add", env={NEW: "short"}, code=2).err
    assert "no new key" in machine("key", "add", code=2).err
    machine("key", "remove", first["id"], env=passphrase)
    assert "does not open" in machine("snapshots", code=12).err
    other = tmp_path / "elsewhere" / "new"
    machine("key", "rotate", "--key-file", str(other), env=passphrase)
    assert "does not open" in machine("snapshots", env=passphrase, code=12).err
    named = {"SPOTWARP_KEY_FILE": str(other)}
    machine("restore", "--to", str(tmp_path / "out"), env=named)
    assert (tmp_path / "out" / "data").read_text() == "d" * 100_000
    assert {path: path.read_bytes() for path in Path(machine.remote).rglob("packs/*")} == packs
    assert len(machine("key", "list", "--json", env=named).json) == 1


def test_a_run_in_the_background_has_the_key_and_its_command_does_not(rent: Rent, tmp_path: Path) -> None:
    machine = rent(env={KEY: PASSPHRASE})
    made = machine("init", "--remote-path", machine.remote, "--encrypt")
    assert b"opens with the passphrase" in made.out
    assert PASSPHRASE.encode() not in made.out
    machine("run", "--detach", "--command", f"env > seen; echo '{'#' * 10}'; until test -e go; do sleep 0.05; done")
    seen = machine("status", env={KEY: ""}).out.decode()
    assert "cannot be read from here" in seen
    assert "no key is given here" in seen
    assert "NOT STORED" not in seen
    unread = machine("status", "--json", env={KEY: "not the passphrase"}).json
    assert (unread["run"], "store_error" in unread) == ("main", False)
    assert "the passphrase in SPOTWARP_KEY does not open" in unread["not_read"]
    machine.file("go", "")
    until(lambda: machine.facts("status", code=None)["state"] == "complete", "its end")
    assert PASSPHRASE not in (machine.path / "seen").read_text()
    assert "SPOTWARP_RUN_ID=main" in (machine.path / "seen").read_text()
    spelled = machine("run", "--run", "b", "--command", f"train '{PASSPHRASE}'", code=2)
    assert PASSPHRASE not in spelled.err
    asked = {"SPOTWARP_SECRETS": KEY}
    machine("run", "--run", "c", "--command", 'echo "$SPOTWARP_KEY" | tee asked', env=asked)
    assert PASSPHRASE in (machine.path / "asked").read_text()
    for log in (machine.path / ".spotwarp" / "log").rglob("*"):
        assert PASSPHRASE.encode() not in log.read_bytes()


@pytest.mark.deep
def test_init_refuses_what_would_not_be_encrypted(rent: Rent, ws: Machine, key: Path, tmp_path: Path) -> None:
    assert ws.facts("status")["encrypted"] is False
    with_key = {KEY: PASSPHRASE}
    assert "is not encrypted, though a key is given" in ws("status", env=with_key, code=12).err
    assert "is not encrypted" in ws("key", "list", code=12).err
    new = rent("new", remote=str(tmp_path / "new-bucket"))
    assert "no key to encrypt with" in new("init", "--remote-path", new.remote, "--encrypt", code=2).err
    assert "is it to be encrypted" in new("init", "--remote-path", new.remote, env=with_key, code=2).err
    inside = new("init", "--remote-path", new.remote, "--encrypt", "--key-file", str(new.path / "k"), code=2)
    assert "inside the workspace" in inside.err
    assert not (new.path / "k").exists()
    said = new("init", "--remote-path", new.remote, env={"RUNPOD_POD_ID": "x"}).out.decode()
    assert "rented host (RunPod)" in said
    assert "--encrypt" in said


@pytest.mark.deep
def test_the_passphrase_is_asked_for_twice_on_a_terminal(rent: Rent) -> None:
    machine = rent()
    ours, theirs = pty.openpty()
    program = machine.start("init", "--remote-path", machine.remote, "--encrypt", stdin=theirs)
    for asked in ("passphrase: ", "confirmation: "):
        program.until(lambda asked=asked: asked in program.err, asked)  # type: ignore[misc]
        os.write(ours, PASSPHRASE.encode() + b"\n")
    program.end(0)
    assert PASSPHRASE not in program.err
    os.close(ours)
    os.close(theirs)
    assert machine("runs", "--json", env={KEY: PASSPHRASE}).json[0]["run"] == "main"


@pytest.mark.deep
def test_damage_is_found_and_named(encrypted: Callable[..., Machine], key: Path) -> None:
    machine = encrypted()
    machine.file("one", os.urandom(3000))
    machine("sync")
    machine.file("two", os.urandom(3000))
    machine("sync")
    store = LocalStore(Path(machine.remote), clock=VirtualClock(), rng=SeededRng())
    hidden = open_keys(store, read(key)).cipher.hide("main")
    one, two = (meta.key for meta in store.list(layout.packs_prefix(hidden)))
    good = store.get(one)
    store.put(one, store.get(two))
    assert any("cannot be decrypted" in p["what"] or "written" in p["what"] for p in _problems(machine))
    changed = bytearray(good)
    changed[40] ^= 1
    store.put(one, bytes(changed))
    assert any("cannot be decrypted" in problem["what"] for problem in _problems(machine))
    store.put(one, good[:-5])
    assert _problems(machine)
    store.put(one, good)
    machine("check", "--read-data")


def _problems(machine: Machine) -> list[dict[str, str]]:
    return list(machine.facts("check", "--read-data", code=16)["problems"])
