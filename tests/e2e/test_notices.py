"""Every source of notices, with a real command: heard in time, the command saves, everything is stored, exit 75."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from spotwarp.testing.metadata import AwsMetadata, AzureMetadata, Metadata
from spotwarp.testing.product import Machine, Program, until
from spotwarp.testing.pytest_metadata import aws, azure, cloud

pytestmark = pytest.mark.slow

Rent = Callable[..., Machine]
SAVES = "trap 'sleep 0.2; echo saved > saved; exit 0' TERM; touch ready; while :; do sleep 0.05; done"
__all__ = ["aws", "azure", "cloud"]

# A proxy that is not there: link-local questions must not go to it.
PROXY = {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "no_proxy": ""}


def training(machine: Machine, *more: str, env: dict[str, str] | None = None, command: str = SAVES) -> Program:
    program = machine.start("run", "--interval", "1h", *more, "--command", command, env=env)
    program.until((machine.path / "ready").exists, "the command's start")
    return program


def restored(machine: Machine) -> Path:
    machine("restore", "--to", str(machine.path.with_name("out")))
    return machine.path.with_name("out")


def entries(machine: Machine) -> list[Any]:
    """The run log's phase entries, as the directory store has them."""
    found = []
    for path in sorted((Path(machine.remote) / "runs" / "main" / "log").iterdir()):
        entry = json.loads(path.read_bytes()[8:-16])
        if entry["kind"] == "phase":
            found.append(entry)
    return found


ANNOUNCE: dict[str, Callable[[Any], object]] = {
    "aws": lambda served: served.interrupt(8),
    "gcp": lambda served: served.preempt(),
    "azure": lambda served: served.schedule("Preempt", 8),
}
PERIOD_S = {"aws": 2.0, "gcp": 0.0, "azure": 1.0}
ASKED = {"aws": "/latest/meta-data/spot/instance-action", "azure": "/metadata/scheduledevents"}


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"], indirect=True)
def test_a_clouds_notice_is_heard_in_time_and_everything_is_stored(ws: Machine, cloud: Metadata) -> None:
    program = training(ws, env={**cloud.environment, **PROXY})
    program.until(lambda: f"{cloud.name} is watched" in program.err, "the watcher")
    if cloud.name == "gcp":
        until(lambda: cloud.asked("/computeMetadata/v1/instance/preempted?wait_for_change"), "the long poll")
    announced = time.monotonic()
    ANNOUNCE[cloud.name](cloud)
    program.until(lambda: f"preemption ({cloud.name}" in program.err, "the notice")
    if cloud.name != "gcp":  # the service's own log: asked within a period and a half second, and not more often
        times = [one.at for one in cloud.asked(ASKED[cloud.name])]
        assert min(at for at in times if at >= announced) - announced <= PERIOD_S[cloud.name] + 0.5
        assert all(after - at >= PERIOD_S[cloud.name] - 0.2 for at, after in pairwise(times))
    assert time.monotonic() - announced < PERIOD_S[cloud.name] + 0.5 + 1.0  # the last is the machine's load
    done = program.end(75)
    assert (restored(ws) / "saved").read_text() == "saved\n"
    noticed, sealed = [one for one in entries(ws) if one["phase"] in ("notice", "preempted")]
    assert 3 < noticed["seconds"] <= 10
    assert f"{cloud.name}: " in noticed["reason"]
    assert "s for the command to save" in noticed["reason"]
    assert "s for the final sync" in noticed["reason"]
    assert sealed["phase"] == "preempted"
    assert "Traceback" not in done.err


def test_azure_is_told_only_when_the_run_is_sealed(ws: Machine, azure: AzureMetadata) -> None:
    program = training(ws, env=azure.environment)
    program.until(lambda: "azure is watched" in program.err)
    others = azure.schedule("Preempt", 5, ["trainer_1"])
    ours = azure.schedule("Terminate", 20)
    until(lambda: azure.approved, "the approval")
    at = time.time() - (time.monotonic() - azure.approved[0][0])
    assert [event for _, event in azure.approved] == [ours] != [others]
    log = sorted((Path(ws.remote) / "runs" / "main" / "log").iterdir())
    assert json.loads(log[-1].read_bytes()[8:-16])["phase"] == "preempted"
    assert log[-1].stat().st_mtime <= at
    assert "told Azure" in program.end(75).err


def test_azure_is_not_told_when_not_everything_is_stored(ws: Machine, azure: AzureMetadata) -> None:
    program = training(ws, env=azure.environment)
    program.until(lambda: "azure is watched" in program.err)
    azure.schedule("Preempt", 3)
    program.until(lambda: "preemption (azure" in program.err)
    bucket = Path(ws.remote)
    bucket.rename(bucket.with_name("away"))
    program.end(125)
    bucket.with_name("away").rename(bucket)
    assert azure.approved == []


def test_a_rebalance_recommendation_stores_at_once_and_stops_nothing(ws: Machine, aws: AwsMetadata) -> None:
    program = training(ws, env=aws.environment)
    program.until(lambda: ws.snapshots(), "the first snapshot")
    ws.file("work", "new")
    aws.recommend_rebalance()
    program.until(lambda: "rebalance recommendation" in program.err, "the hint")
    until(lambda: len(ws.snapshots()) > 1, "the extra snapshot")
    assert (restored(ws) / "work").read_text() == "new"
    assert program.process.poll() is None
    assert not (ws.path / "saved").exists()
    program.send(signal.SIGTERM)
    program.end(75)


@pytest.mark.parametrize(("cloud", "how"), [("aws", "flood"), ("gcp", "absent"), ("azure", "hang")], indirect=["cloud"])
def test_a_source_that_is_broken_harms_nothing_and_is_seen(ws: Machine, cloud: Metadata, how: str) -> None:
    env = dict(cloud.environment)
    match how:
        case "hang":
            cloud.hang()
        case "absent":
            env = {name: value.rpartition(":")[0] + ":9" for name, value in env.items()}
        case "flood":
            cloud.garble(b"x" * (1 << 20))
    started = time.monotonic()
    program = training(ws, env=env)
    program.until(lambda: f"{cloud.name} is disabled" in program.err, "the word")
    said = ws.facts("status")["notices"]
    assert f"{cloud.name} disabled: " in said
    assert "SIGTERM (10 s" in said
    asked = len(cloud.journal)
    os.kill(program.process.pid, signal.SIGTERM)
    program.end(75)
    assert time.monotonic() - started < 45
    assert len(cloud.journal) - asked <= 1  # asked again once a minute


def test_neither_start_nor_end_waits_for_a_service_that_takes_two_minutes(ws: Machine, azure: AzureMetadata) -> None:
    azure.block_first(120)
    began = time.monotonic()
    program = training(ws, env=azure.environment)
    until(lambda: azure.asked("/metadata/scheduledevents"), "the question")
    assert "azure looking" in ws.facts("status")["notices"]
    program.send(signal.SIGTERM)
    program.end(75)
    assert time.monotonic() - began < 60


def test_a_file_is_a_notice_when_it_appears(ws: Machine) -> None:
    ws.file("notice", "left by an earlier machine")
    config = ws.path / ".spotwarp" / "config.yaml"
    config.write_text(config.read_text().replace('notice_file: ""', "notice_file: notice"))
    program = training(ws)
    program.until(lambda: "was there before" in program.err, "the word that an old one does not count")
    ws.file("partial", json.dumps({"seconds_left": 7})).rename(ws.path / "notice")
    program.until(lambda: "preemption (file" in program.err, "the notice")
    assert re.search(r"[67]\.\d s left", program.err)
    program.end(75)


HOOKS = {
    "a code": "test ! -e going || exit 75",
    "a line": "until test -e going; do sleep 0.05; done; echo '{\"seconds_left\": 6}'; sleep 60",
}


@pytest.mark.parametrize("hook", HOOKS)
def test_a_command_can_give_notice(ws: Machine, hook: str) -> None:
    program = training(ws, env={"SPOTWARP_NOTICE_COMMAND": HOOKS[hook], "SPOTWARP_NOTICE_EVERY": "0.5s"})
    program.until(lambda: "command is watched" in program.err, "the hook")
    ws.file("going", "")
    program.until(lambda: "preemption (command" in program.err, "the notice")
    program.end(75)
    until(lambda: not ws.processes(), "the hook's end")


def test_an_address_can_give_notice(ws: Machine, aws: AwsMetadata) -> None:
    aws.garble("{}")
    program = training(ws, env={"SPOTWARP_NOTICE_URL": f"http://{aws.address}/n", "SPOTWARP_NOTICE_EVERY": "0.5s"})
    program.until(lambda: "url is watched" in program.err, "the hook")
    aws.garble('{"seconds_left": 6}')
    program.until(lambda: "preemption (url" in program.err, "the notice")
    program.end(75)
