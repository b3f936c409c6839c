"""`spotwarp sync`, `exclude` and `prune` as programs, beside a run and alone."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.product import Machine

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow  # a whole program, several times

FACTS = {"id", "generation", "time", "files", "bytes", "read_bytes", "stored_bytes", "resumable"} | {
    "late", "late_bytes", "lacking", "unchanged",
}  # fmt: skip


def restored(machine: Machine, number: int, name: str) -> bytes:
    """A file of a snapshot, as another directory gets it."""
    place = machine.path.with_name(f"restored-{number}")
    if not place.exists():
        machine("restore", "--snapshot", str(number), "--to", str(place))
    return (place / name).read_bytes()


def test_alone_it_stores_and_leaves_the_run_to_be_resumed(ws: Machine) -> None:
    ws.file("model", "one")
    first = ws.facts("sync")
    assert set(first) == FACTS
    assert restored(ws, first["id"], "model") == b"one"
    assert ws.facts("status")["state"] == "stopped"
    again = ws.facts("sync")  # nothing is new: nothing is claimed or sent
    assert (first["unchanged"], again) == (False, {**first, "unchanged": True})
    assert restored(ws, again["id"], "model") == b"one"
    assert ws("run", "--command", "cat model").out == b"one"


def test_the_training_script_calls_it_and_goes_on_when_it_is_stored(ws: Machine, rent: Rent) -> None:
    ws.file(
        "train.sh",
        "i=0; while [ $i -lt 3 ]; do i=$((i+1)); echo $i > step; spotwarp_sync > answer.$i || exit 1; done; exit 9",
    )
    sync = f"spotwarp_sync() {{ {shlex.quote(sys.executable)} -m spotwarp sync --json; }}; . ./train.sh"
    ws("run", "--interval", "1h", "--command", sync, code=9)
    answers = [json.loads((ws.path / f"answer.{i}").read_text()) for i in (1, 2, 3)]
    assert {a["generation"] for a in answers} == {1}
    assert len({a["id"] for a in answers}) == 3
    kept = {s["id"] for s in ws.snapshots()}
    for step, answer in enumerate(answers, 1):
        if answer["id"] in kept:  # retention may have let the others go
            assert restored(ws, answer["id"], "step") == f"{step}\n".encode()
    assert answers[-1]["id"] < max(kept)  # the final snapshot came after it


def test_a_script_that_dies_right_after_it_has_lost_nothing(ws: Machine, rent: Rent) -> None:
    program = ws.start("run", "--interval", "1h", "--command", "echo kept > work; touch ready; sleep 600")
    program.until((ws.path / "ready").exists)
    answer = ws.facts("sync")
    ws.die()
    other = rent("other").init()
    assert other("run", "--takeover", "--command", "cat work").out == b"kept\n"
    assert other.snapshots()[0]["id"] >= answer["id"]


def test_behind_the_run_it_refuses(ws: Machine, rent: Rent) -> None:
    ws.file("model", "one")
    ws("sync")
    other = rent("other").init()
    other("restore")
    ws.file("model", "two")
    newest = ws.facts("sync")["id"]
    other.file("model", "three")
    refused = other("sync", code=21)
    assert "hint:" in refused.err
    assert ws.snapshots()[-1]["id"] == newest
    assert (other.path / "model").read_text() == "three"


def test_another_machines_run_is_waited_for_and_left_alone(ws: Machine, rent: Rent) -> None:
    program = ws.start("run", "--command", "touch ready; sleep 600")
    program.until((ws.path / "ready").exists)
    program.until(ws.snapshots, "the first snapshot")
    other = rent("other").init()
    other("restore")
    waiting = other.start("sync")
    waiting.until(lambda: "holds the run" in waiting.err)
    assert str(program.process.pid) in waiting.err
    waiting.send(signal.SIGINT)
    waiting.end(130)
    assert program.process.poll() is None
    assert ws.facts("status")["generation"] == 1


def test_exclude_twice_is_as_once_and_a_run_takes_it_up(ws: Machine) -> None:
    config = ws.path / ".spotwarp" / "config.yaml"
    program = ws.start("run", "--command", "echo x > skipped.tmp; touch ready; until test -e go; do sleep 0.05; done")
    program.until((ws.path / "ready").exists)
    assert ws.facts("exclude", "*.tmp", "data/") == {"added": ["*.tmp", "data/"]}
    text = config.read_text()
    assert ws.facts("exclude", "data/", "*.tmp") == {"added": []}
    assert config.read_text() == text
    assert "# What not to store" in text
    ws.file("go", "")
    program.end(0)
    ws("restore", "--to", str(ws.path.with_name("out")))
    assert not (ws.path.with_name("out") / "skipped.tmp").exists()
    assert (ws.path.with_name("out") / "ready").exists()


def test_a_pattern_that_is_none_is_refused_and_the_config_stays_good(ws: Machine) -> None:
    before = (ws.path / ".spotwarp" / "config.yaml").read_bytes()
    for bad in ("", "  ", "a\nb"):
        assert "hint:" in ws("exclude", bad, code=2).err
    assert (ws.path / ".spotwarp" / "config.yaml").read_bytes() == before
    ws("status")


def test_prune_frees_what_was_let_go_and_twice_is_as_once(ws: Machine, bucket: Path) -> None:
    ws("init")
    for content in (b"a", b"b", b"c", b"d"):  # two are kept; the first one's pack holds more than the model
        ws.file("model", content * 300_000)
        ws("sync", env={"SPOTWARP_KEEP_HOURLY": "0", "SPOTWARP_KEEP_RESUMABLE": "1"})
    packs = bucket / "runs" / "main" / "packs"
    before = len(list(packs.iterdir()))
    assert ws.facts("prune") | {"kept_for_grace": 0} == {
        "packs": 0, "manifests": 0, "bytes": 0, "kept_for_grace": 0, "skipped": "",
    }  # fmt: skip
    done = ws.facts("prune", "--grace", "0s")
    assert done["packs"] > 0
    assert len(list(packs.iterdir())) == before - done["packs"]
    assert ws.facts("prune", "--grace", "0s")["packs"] == 0
    report = ws.facts("check", "--read-data")
    assert report["problems"] == []
    ws("restore", "--to", str(ws.path.with_name("out")))
    assert (ws.path.with_name("out") / "model").read_bytes() == (ws.path / "model").read_bytes()
    ws("prune", "--grace", "soon", code=2)
    ws("prune", "--run", "nobody", code=10)


@pytest.mark.slow
def test_what_looks_torn_is_stored_when_it_is_asked_for_and_nobody_has_it_open(ws: Machine) -> None:
    """A data file may look like a checkpoint that is being written."""
    tokens = bytes(4096) + b"\x07" * 100_000
    ws.file("tokens.pt", tokens)
    ws.file("empty.pt", b"")
    answer = ws.facts("sync")
    assert (answer["files"], answer["lacking"]) == (3, "")
    with ws.path.joinpath("tokens.pt").open("ab") as held:
        held.write(b"more")
        held.flush()
        answer = ws.facts("sync")
    assert "tokens.pt" in answer["lacking"]
    ws("sync")
    ws("restore", "--to", str(ws.path.with_name("out")))
    assert ws.path.with_name("out").joinpath("tokens.pt").read_bytes() == tokens + b"more"
