"""Whoever is not watching is told: a real web server on loopback, a real S3 server that fails behind a proxy."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator

import pytest

from spotwarp.testing.faultproxy import FaultProxy, Rule
from spotwarp.testing.product import Machine
from spotwarp.testing.seaweed import Seaweed
from spotwarp.testing.webhooks import Webhook, webhook

Rent = Callable[..., Machine]
AWAY = Rule(status=503, code="ServiceUnavailable")
COUNTING = "i=0; until test -e go; do i=$((i+1)); echo $i > count; sleep 0.05; done; exit $(cat go)"
SAVING = "trap 'echo saved > saved; exit 0' TERM INT; echo ready; while :; do sleep 0.05; done"

pytestmark = pytest.mark.slow


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as server:
        yield server


@pytest.fixture
def told(rent: Rent, hook: Webhook) -> Machine:
    """A machine whose news go to `hook`, by an address that stands in the environment only."""
    return rent(env={"SPOTWARP_NOTIFY": "env:HOOK", "HOOK": f"{hook.url}hook-secret"}).init()


def stored(machine: Machine) -> bool:
    """Whether a snapshot was committed and read back, as the machine itself has noted."""
    note = machine.path / ".spotwarp" / "state.json"
    return note.exists() and json.loads(note.read_bytes())["snapshot"] > 0


def test_a_stalled_backup_is_loud_and_its_recovery_too(
    rent: Rent, hook: Webhook, seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str
) -> None:
    env = {**seaweed_server.env(endpoint=s3_proxy.endpoint), "SPOTWARP_NOTIFY": hook.url, "SPOTWARP_STALL_AFTER": "1s"}
    machine = rent(remote=s3_url, env=env).init()
    program = machine.start("run", "--command", COUNTING)
    program.until(lambda: (machine.path / "count").exists() and machine.snapshots(), "a first snapshot")
    program.until(lambda: stored(machine), "it to be known here")
    s3_proxy.rule(AWAY)
    program.until(lambda: "stalled" in hook.events(), "the news", 90)
    program.until(lambda: "NOT STORED for" in program.err, "the log")
    status = machine("status", code=17, seconds=120)
    assert status.out.splitlines()[0].startswith(b"NOT STORED     STALLED")
    news = next(told.json for told in hook.seen if told.json["event"] == "stalled")
    assert news["error"]
    assert news["at_risk_s"] > 0
    assert (news["run"], news["generation"]) == ("main", 1)
    assert news["snapshot"] is not None
    before = int((machine.path / "count").read_text() or 0)
    program.until(lambda: int((machine.path / "count").read_text() or 0) > before, "training to go on")
    s3_proxy.rule()
    program.until(lambda: "recovered" in hook.events(), "the news of its end", 90)
    machine.file("go", "0")
    program.end(0, 90)
    assert hook.events() == ["stalled", "recovered", "done"]


def test_the_life_of_a_run_is_told(told: Machine, hook: Webhook, rent: Rent) -> None:
    program = told.start("run", "--command", SAVING)
    program.until(lambda: b"ready" in program.out, "the command")
    program.send(signal.SIGTERM)
    program.end(75)
    assert hook.events() == ["preempted"]  # after the final sync: the notice left too little time before it
    news = hook.seen[0].json
    assert (news["stored"], news["exit_code"]) == (True, 75)
    assert news["snapshot"] == told.snapshots()[-1]["id"]
    env = {"SPOTWARP_NOTIFY": "env:HOOK", "HOOK": hook.url}
    second = rent("second", env=env).init()
    second("run", "--command", "exit 3", code=3)
    assert hook.events() == ["preempted", "resumed", "failed"]
    assert hook.seen[2].json["exit_code"] == 3
    second("run", "--command", "true")
    assert hook.events()[3:] == ["resumed", "done"]


def test_a_long_notice_is_told_at_once(told: Machine, hook: Webhook) -> None:
    program = told.start(
        "run", "--grace", "10m", "--command", "trap '' TERM; echo ready; until test -e go; do sleep 0.05; done"
    )
    program.until(lambda: b"ready" in program.out, "the command")
    program.send(signal.SIGTERM)
    program.until(lambda: hook.seen, "the news")
    first = hook.seen[0].json
    assert (first["event"], round(first["seconds_left"], -1)) == ("preempted", 600)
    assert "stored" not in first
    told.file("go", "")
    program.end(75)
    assert [t.json.get("stored") for t in hook.seen] == [None, True]


def test_a_user_who_stops_it_knows(told: Machine, hook: Webhook) -> None:
    program = told.start("run", "--command", SAVING)
    program.until(lambda: b"ready" in program.out, "the command")
    program.send(signal.SIGINT)
    program.end(130)
    assert hook.seen == []


def test_a_start_that_fails_is_told(told: Machine, hook: Webhook) -> None:
    told("run", "--command", "exit 1", code=1)
    told("run", "--", "no-such-program", code=127)
    assert hook.events() == ["failed", "failed"]
    assert "no-such-program" in hook.seen[1].json["text"]
    told("run", "--command", "", code=2)
    assert len(hook.seen) == 2


def test_a_receiver_that_hangs_or_is_away_changes_nothing(rent: Rent, hook: Webhook) -> None:
    hook.hang = True
    targets = json.dumps([hook.url, "http://127.0.0.1:1/", "sleep 600", "exit 5"])
    machine = rent().init()
    config = machine.path / ".spotwarp" / "config.yaml"
    config.write_text(config.read_text().replace("notify: []", f"notify: {targets}"))
    program = machine.start("run", "--command", SAVING, "--grace", "5s")
    program.until(lambda: b"ready" in program.out, "the command")
    program.send(signal.SIGTERM)
    done = program.end(75, 30)
    assert (machine.path / "saved").exists()
    assert machine.facts("status")["state"] == "preempted"
    program = machine.start("run", "--command", COUNTING, env={"SPOTWARP_NOTIFY": "exit 5"})
    program.until(lambda: machine.facts("status", code=None)["notify_error"], "the failure in status")
    machine.file("go", "0")
    done = program.end(0, 60)
    assert done.err.count("exited with 5") == 1


def test_no_secret_leaves(rent: Rent, hook: Webhook, bucket: object) -> None:
    env = {
        "SPOTWARP_NOTIFY": "env:HOOK",
        "HOOK": f"{hook.url}hook-secret",
        "SPOTWARP_SECRETS": "HF_TOKEN",
        "HF_TOKEN": "hf_abcdef123",
    }
    machine = rent(env=env).init()
    done = machine("run", "--command", "echo my $HF_TOKEN; exit 3", code=3)
    assert done.out == b"my hf_abcdef123\n"  # the user's own terminal
    again = machine("run", "--command", "echo hf_abc''def123; exit 3", code=3)
    assert hook.events() == ["failed", "resumed", "failed"]
    words = done.err + again.err + "".join(told.body.decode() for told in hook.seen)
    for secret in ("hf_abcdef123", "hook-secret"):
        assert secret not in words
    logs = [path.read_bytes() for path in (machine.path / ".spotwarp" / "log").iterdir()]
    assert b"my ***\n" in logs
    for path in machine.path.with_name("bucket").rglob("*"):
        assert not path.is_file() or b"hook-secret" not in path.read_bytes()
