"""The store goes away while a command trains: training goes on, everybody can see what is not stored (I10)."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from spotwarp.testing.faultproxy import FaultProxy, Rule
from spotwarp.testing.product import Machine
from spotwarp.testing.seaweed import Seaweed

Rent = Callable[..., Machine]
AWAY = Rule(status=503, code="ServiceUnavailable")
COUNTING = "i=0; until test -e go; do i=$((i+1)); echo $i > count; sleep 0.05; done; exit $(cat go)"

pytestmark = pytest.mark.slow


@pytest.fixture
def remote(rent: Rent, seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str) -> Machine:
    """An initialised workspace whose real S3 server is reached through a proxy that can refuse."""
    return rent(remote=s3_url, env=seaweed_server.env(endpoint=s3_proxy.endpoint)).init()


def test_training_goes_on_and_is_stored_when_the_store_is_back(remote: Machine, s3_proxy: FaultProxy) -> None:
    program = remote.start("run", "--command", COUNTING)
    program.until(lambda: (remote.path / "count").exists() and remote.snapshots(), "a first snapshot")
    s3_proxy.rule(AWAY)
    program.until(lambda: "NOT STORED" in program.err, "the word that nothing is stored", 90)
    before = int((remote.path / "count").read_text() or 0)
    program.until(lambda: int((remote.path / "count").read_text() or 0) > before + 5, "training to go on")
    status = remote("status", "--json", code=17, seconds=120).json
    assert status["store_error"]
    assert status["at_risk_s"] > 0
    assert status["error"]
    words = remote("status", code=17, seconds=120).out.decode()
    assert words.startswith("NOT STORED")
    assert "main: training, generation 1" in words
    assert "not stored" in words.partition("work at risk")[2]
    assert not {"at_risk_s", "detached", "lacking"} & set(words.split())  # the usual view, not what it is made from
    s3_proxy.rule()
    program.until(lambda: "storing works again" in program.err, "the store", 90)
    remote.file("go", "4")
    done = program.end(4, 90)
    assert "everything is stored" in done.err
    facts = remote.facts("status")
    assert (facts["exit"], facts["errors"]) == (4, "")


@pytest.mark.parametrize("code", [0, pytest.param(3, marks=pytest.mark.deep)])
def test_a_final_sync_that_cannot_be_is_never_a_success(remote: Machine, s3_proxy: FaultProxy, code: int) -> None:
    program = remote.start("run", "--interval", "1h", "--command", COUNTING)
    program.until((remote.path / "count").exists)
    s3_proxy.rule(AWAY)
    remote.file("go", str(code))
    done = program.end(125, 120)
    assert "final sync failed" in done.err
    left = remote("status", code=17, seconds=60)  # the store is still away: what this machine knows
    assert "main: nobody is at work here" in left.out.decode()
    assert "not stored: count" in left.out.decode()
    s3_proxy.rule()
    assert remote.facts("status", code=1)["state"] == "silent"
    assert remote("run", "--command", "cat count; exit 6", code=6).out  # nothing was lost on this disk


def test_what_only_looks_gives_up_soon_and_says_that_it_waits(remote: Machine, s3_proxy: FaultProxy) -> None:
    s3_proxy.rule(AWAY)
    done = remote("snapshots", code=17, seconds=35)
    assert "waiting for the store" in done.err


def test_no_store_no_start(remote: Machine, s3_proxy: FaultProxy) -> None:
    s3_proxy.rule(AWAY)
    done = remote("run", "--command", "touch never", code=125, seconds=120)
    assert "hint:" in done.err
    assert not (remote.path / "never").exists()


@pytest.mark.parametrize("trouble", [Rule(verb="PUT", path="/packs/", hang=True), AWAY], ids=["hangs", "refuses"])
def test_work_at_risk_is_counted_while_a_sync_gets_nowhere(
    remote: Machine, s3_proxy: FaultProxy, trouble: Rule
) -> None:
    grows = "touch ready; until test -e more; do sleep 0.05; done; head -c 3000000 /dev/urandom > big; sleep 60"
    program = remote.start("run", "--command", grows)
    program.until(lambda: (remote.path / "ready").exists() and remote.snapshots(), "a first snapshot")
    s3_proxy.rule(trouble)
    remote.file("first", "something to store\n" * 1000)
    s3_proxy.wait_seen(2, path=trouble.path)
    remote.file("more", "")

    def risk() -> int:
        return int(remote.facts("status", code=None)["at_risk_bytes"] or 0)

    program.until(lambda: risk() > 3_000_000, "the work at risk to grow", 90)
    s3_proxy.rule()
    program.send(signal.SIGTERM)
    program.end(None, 60)
