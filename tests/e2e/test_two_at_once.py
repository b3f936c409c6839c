"""Two SpotWarps meet: one waits for the other, asks it, or is refused; neither buries what the other has stored."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable

import pytest

from spotwarp.testing.checkpoints import huggingface_files, write_files
from spotwarp.testing.faultproxy import FaultProxy, Rule
from spotwarp.testing.product import Machine, Program
from spotwarp.testing.seaweed import Seaweed

pytestmark = pytest.mark.slow

Rent = Callable[..., Machine]
WAITS = "touch ready; until test -e go; do sleep 0.05; done; exit 3"


@pytest.fixture
def remote(rent: Rent, seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str) -> Machine:
    """An initialised workspace whose real S3 server is reached through a proxy."""
    return rent(remote=s3_url, env=seaweed_server.env(endpoint=s3_proxy.endpoint)).init()


def training(machine: Machine, *more: str, command: str = WAITS) -> Program:
    """A run whose command has begun."""
    program = machine.start("run", *more, "--command", command)
    program.until((machine.path / "ready").exists, "the command's start")
    return program


# --- one waits for the other


def test_a_sync_that_waited_while_the_holder_stored_more_buries_nothing(ws: Machine, rent: Rent) -> None:
    ws.file("model", "one")
    ws("sync")
    other = rent("other").init()
    other("restore")
    other.file("model", "three")
    # The holder has been given notice, so that it is waited for; it stores more and leaves the run sealed.
    command = "trap 'touch told; until test -e go; do sleep 0.05; done; echo two > model; exit 0' TERM; touch ready; "
    program = ws.start(
        "run", "--interval", "1h", "--grace", "60s", "--command", command + "while :; do sleep 0.05; done"
    )
    program.until((ws.path / "ready").exists)
    program.send(signal.SIGTERM)
    program.until((ws.path / "told").exists)
    waiting = other.start("sync")
    waiting.until(lambda: "holds the run" in waiting.err, "the wait for the holder")
    ws.file("go", "")
    program.end(75)
    last = ws.snapshots()[-1]["id"]
    assert "hint:" in waiting.end(21).err
    assert other.snapshots()[-1]["id"] == last
    assert (other.path / "model").read_text() == "three"
    place = ws.path.with_name("out")
    ws("restore", "--to", str(place))
    assert (place / "model").read_text() == "two\n"


def test_what_a_command_gets_more_on_a_resume_goes_along(ws: Machine, rent: Rent) -> None:
    """A new machine knows only the run: its bare `run` starts the same command in the same way."""
    ws.file("args.sh", 'printf "%s|" "$@"; exit 9')
    write_files(ws.path / "out" / "checkpoint-20", huggingface_files(20))
    ws("run", "--resume-args", "--from {checkpoint} -x", "--command", "bash args.sh a", code=9)
    other = rent("other").init()
    told = f"a|--from|{other.path}/out/checkpoint-20|-x|".encode()
    assert other("run", code=9).out == told
    other("sync")  # carries the command on as well
    assert other("run", code=9).out == told
    assert other("run", "--resume-args", "--other", code=9).out == b"a|--other|"
    assert other("run", "--command", "bash args.sh b", code=9).out == b"b|"  # another command, without them
    assert other("run", code=9).out == b"b|"


# --- one asks the other


def test_a_sync_of_another_run_is_refused_inside_a_run(ws: Machine) -> None:
    program = training(ws, "--interval", "1h")
    refused = ws("sync", "--run", "other", "--json", code=11)
    assert "'main'" in refused.err
    assert "hint:" in refused.err
    assert ws.facts("sync", "--run", "main")["generation"] == 1
    assert "other" not in [r["run"] for r in ws.facts("runs")]
    ws.file("go", "")
    program.end(3)


def test_what_goes_wrong_inside_has_its_own_code_outside(remote: Machine, s3_proxy: FaultProxy) -> None:
    program = training(remote, "--interval", "1h")
    s3_proxy.rule(Rule(verb="PUT", path="/packs/|/manifests/", status=403, code="AccessDenied"))
    refused = remote("sync", "--json", code=12)
    assert json.loads(refused.out)["error"]["code"] == "StoreDenied"
    s3_proxy.rule()
    remote("sync")
    remote.file("go", "")
    program.end(3)


@pytest.mark.parametrize("rule", [Rule(status=503, code="SlowDown"), Rule(hang=True)], ids=["refuses", "hangs"])
def test_status_asks_the_one_at_work_while_the_store_is_away(remote: Machine, s3_proxy: FaultProxy, rule: Rule) -> None:
    program = training(remote, "--interval", "1h")
    stored = remote.facts("sync")["id"]
    s3_proxy.rule(rule)
    started = time.monotonic()
    known = remote.facts("status", code=17)
    assert time.monotonic() - started < 45
    assert known["store_error"]
    assert (known["run"], known["generation"], known["phase"], known["last_snapshot"]) == (
        "main",
        1,
        "training",
        stored,
    )
    assert known["at_risk_s"] >= 0
    assert b"training" in remote("status", code=17).out
    s3_proxy.rule()
    program.send(signal.SIGINT)
    program.send(signal.SIGINT)
    program.end(130)


# --- one is refused


def test_two_restores_to_one_directory(remote: Machine, s3_proxy: FaultProxy) -> None:
    remote.file("model", "x" * 1000)
    remote("sync")
    place = remote.path.with_name("out")
    s3_proxy.forget()
    s3_proxy.rule(Rule(verb="GET", path="/packs/", times=1, delay_s=6.0))
    first = remote.start("restore", "--to", str(place))
    assert s3_proxy.wait_seen(1, verb="GET", path="/packs/")
    refused = remote("restore", "--to", str(place), code=11)
    assert "hint:" in refused.err
    assert not place.exists()
    first.end(0)
    assert (place / "model").read_text() == "x" * 1000
    assert sorted(p.name for p in place.parent.iterdir() if p.name.startswith("out")) == ["out"]
