"""What the command needs and is never stored: named, checked, missed aloud, and nowhere in the bucket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from spotwarp.testing.product import Machine

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow

VALUE = "hf_Zq8AbCdEfGh"


def everything(bucket: Path) -> bytes:
    """All bytes in the bucket, and what is compressed in them, decompressed."""
    found = b""
    for path in bucket.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            found += data
            at = -1
            while (at := data.find(zstandard.MAGIC_NUMBER.to_bytes(4, "little"), at + 1)) >= 0:
                try:
                    found += zstandard.ZstdDecompressor().decompressobj().decompress(data[at:])
                except zstandard.ZstdError:
                    continue
    return found


def test_what_is_missing_stops_the_start_before_anything_else(rent: Rent, ws: Machine) -> None:
    ws.file("data", "d" * 100)
    ws("run", "--command", "exit 3", code=3)
    other = rent("other", env={"SPOTWARP_SECRETS": "HF_TOKEN, WANDB_API_KEY", "WANDB_API_KEY": " "}).init()
    refused = other("run", code=125)
    assert "HF_TOKEN, WANDB_API_KEY, which are not set" in refused.err
    assert [path.name for path in other.path.iterdir()] == [".spotwarp"]
    assert other.facts("status")["generation"] == 1
    other("run", code=3, env={"HF_TOKEN": VALUE, "WANDB_API_KEY": "wandb-key"})


def test_no_value_is_stored_or_said(rent: Rent, bucket: Path) -> None:
    machine = rent(env={"HF_TOKEN": VALUE, "SPOTWARP_NOTIFY": "exit 1"})
    machine.file(".env", f"HF_TOKEN={VALUE}\n")
    assert b"here: .env: not stored" in machine("init", "--remote-path", machine.remote).out
    config = machine.path / ".spotwarp" / "config.yaml"
    config.write_text(config.read_text().replace("secrets: []", "secrets: [HF_TOKEN]"))
    slowly = "; ".join(f"printf %s '{part}'; sleep 0.05" for part in (VALUE[:5], VALUE[5:9], VALUE[9:]))
    done = machine("run", "--command", f'echo "token $HF_TOKEN"; {slowly}; echo "$HF_TOKEN" >&2; exit 3', code=3)
    assert f"token {VALUE}\n".encode() in done.out  # the user's own terminal is the user's
    status = machine("status").out + machine("snapshots").out + machine("doctor", code=None).out
    log = (machine.path / ".spotwarp" / "log" / "output-0001.log").read_bytes()
    assert log.count(b"***") == 3
    for place in (everything(bucket), status, log, done.err.replace(f"{VALUE}\n", "", 1).encode()):
        assert VALUE.encode() not in place
    assert b"output-0001.log" in everything(bucket)  # the search can find what is there
    spelled = machine("run", "--command", f"train --token {VALUE}", code=2)
    resumed = machine("run", "--command", "train", "--resume-args", f"--token {VALUE}", code=2)
    assert "secrets" in spelled.err
    assert "secrets" in resumed.err
    assert VALUE not in spelled.err


def test_a_machine_without_the_secret_file_is_told(rent: Rent, ws: Machine) -> None:
    ws.file(".env", "TOKEN=x")
    ws.file(".env.example", "TOKEN=")
    ws.file("configs/.ssh/id_ed25519", "key")
    ws.file(".netrc", "mine")
    ws("exclude", "!.netrc")
    done = ws("run", "--command", "exit 3", code=3)
    assert "not stored: .env (a secret by its name" in done.err
    assert "`secrets:`" in done.err
    assert "not stored" not in ws("sync").err  # said once by the run; nothing new
    other = rent("other").init()
    done = other("run", code=3)
    assert ".env, configs/.ssh were not stored (secrets never are) and are not here" in done.err
    assert (other.path / ".netrc").read_text() == "mine"
    assert (other.path / ".env.example").exists()
    third = rent("third", env={"SPOTWARP_SECRETS": "TOKEN", "TOKEN": "x"}).init()
    assert "are not here" not in third("run", code=3).err  # its variables were named, and are there


def test_status_names_what_could_be_downloaded_again(ws: Machine) -> None:
    ws.file("venv/pyvenv.cfg", "home = /usr/bin")
    with ws.file("venv/lib/big.so", b"").open("wb") as file:
        file.truncate(40 << 20)
    said = ws("status").out.decode()
    assert "venv: a virtual environment, 40.0 MiB   spotwarp exclude '/venv/'" in said
    (part,) = ws.facts("status")["downloadable"]
    assert (part["path"], part["bytes"]) == ("venv", (40 << 20) + 15)
    ws("exclude", "/venv/")
    assert ws.facts("status")["downloadable"] == []
