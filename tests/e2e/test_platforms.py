"""Platforms as they are: SpotWarp as process 1, RunPod's five seconds, the clouds' real address, a real Slurm."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotwarp.testing.checkpoints import huggingface_files, write_files
from spotwarp.testing.faultproxy import FaultProxy, Rule
from spotwarp.testing.product import Machine, Program, until
from spotwarp.testing.seaweed import Seaweed
from spotwarp.testing.slurm import slurm

pytestmark = pytest.mark.slow

Rent = Callable[..., Machine]
SAVES = "trap 'sleep 0.3; echo saved > saved; exit 0' TERM; touch ready; while :; do sleep 0.05; done"


def training(machine: Machine, command: str = SAVES, **more: Any) -> Program:
    program = machine.start("run", "--interval", "1h", "--command", command, **more)
    program.until((machine.path / "ready").exists, "the command's start")
    return program


def stored(machine: Machine) -> Path:
    machine("restore", "--to", str(machine.path.with_name("out")))
    return machine.path.with_name("out")


def taken(machine: Machine, program: Program, after_s: float = 5.0) -> threading.Timer:
    """SIGTERM now, and SIGKILL to everything when its time is over."""
    timer = threading.Timer(after_s, machine.die)
    program.send(signal.SIGTERM)
    timer.start()
    return timer


# --- RunPod

RUNPOD = {"RUNPOD_POD_ID": "x1y2z3", "SPOTWARP_GRACE": "auto"}


def test_runpods_five_seconds_are_enough_for_what_fits(ws: Machine) -> None:
    program = training(ws, env=RUNPOD)
    killing = taken(ws, program)
    done = program.end(75, 10)
    killing.cancel()
    assert "SIGTERM: RunPod): 5.0 s left: 2.5 s for the command to save, 2.5 s for the final sync" in done.err
    assert (stored(ws) / "saved").exists()


def test_after_runpods_five_seconds_what_was_consistent_is_stored(
    rent: Rent, seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str
) -> None:
    """The store takes nothing any more when the signal comes, the command ignores it; five seconds later all ends."""
    env = seaweed_server.env(endpoint=s3_proxy.endpoint)
    machine = rent(remote=s3_url, env=env).init()
    write_files(machine.path / "out" / "checkpoint-10", huggingface_files(10))
    stubborn = "trap '' TERM; touch ready; while :; do date +%N >> growing; sleep 0.02; done"
    program = training(machine, stubborn, env=RUNPOD)
    program.until(lambda: machine.snapshots(), "the first snapshot")
    s3_proxy.rule(Rule(verb="PUT", path="/packs/", hang=True))
    taken(machine, program)
    program.process.wait(10)
    s3_proxy.rule()
    other = rent("other", remote=s3_url, env=env).init()
    other("check", "--read-data")
    done = other("run", "--command", "cat out/checkpoint-10/trainer_state.json > seen")
    assert "resuming from out/checkpoint-10" in done.err
    assert json.loads((other.path / "seen").read_text())["global_step"] == 10


# --- Kubernetes


@pytest.mark.deep
def test_kubernetes_process_1_is_told_saves_and_leaves_before_its_pod_is_killed(ws: Machine) -> None:
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "SPOTWARP_GRACE": "auto"}
    program = training(ws, env=env, under=["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"])
    outside = program.process.pid
    first = int(Path(f"/proc/{outside}/task/{outside}/children").read_text().split()[0])
    os.kill(first, signal.SIGTERM)
    done = program.end(75, 15)
    assert "the default of Kubernetes" in done.err
    assert "30.0 s left: 15.0 s for the command to save, 15.0 s for the final sync" in done.err
    assert (stored(ws) / "saved").exists()


# --- The clouds' own address, and the firmware's word

MACHINE = """
set -e
ip link set lo up
ip addr add 169.254.169.254/32 dev lo
mount -t tmpfs firmware /sys
mkdir -p /sys/class/dmi/id
echo "$VENDOR" > /sys/class/dmi/id/sys_vendor
echo "$PRODUCT" > /sys/class/dmi/id/product_name
{python} -m spotwarp.testing.metadata "$CLOUD" 169.254.169.254 80 < switches > served 2>&1 &
until grep -q ready served; do sleep 0.05; done
exec "$@"
"""
FIRMWARE = {
    "aws": ("Amazon EC2", "p4d.24xlarge", {"interrupt": [8]}),
    "gcp": ("Google", "Google Compute Engine", {"preempt": []}),
    "azure": ("Microsoft Corporation", "Virtual Machine", {"schedule": ["Preempt", 8]}),
}


@pytest.mark.deep
@pytest.mark.parametrize("cloud", FIRMWARE)
def test_a_cloud_is_recognised_and_heard_at_its_own_address(rent: Rent, cloud: str) -> None:
    """In a network and a mount namespace, with nothing set: as on the cloud's machine."""
    vendor, product, announce = FIRMWARE[cloud]
    ws = rent(env={"VENDOR": vendor, "PRODUCT": product, "CLOUD": cloud, "HTTP_PROXY": "http://127.0.0.1:9"}).init()
    os.mkfifo(ws.path / "switches")
    script = MACHINE.replace("{python}", shlex.quote(sys.executable))
    program = ws.start(
        "run", "--command", SAVES, under=["unshare", "--net", "--mount", "bash", "-c", script, "machine"]
    )
    with (ws.path / "switches").open("w") as switches:
        program.until(lambda: f"{cloud} is watched" in program.err, "the watcher")
        program.until((ws.path / "ready").exists, "the command's start")
        switches.write(json.dumps(announce) + "\n")
        switches.flush()
        program.until(lambda: f"preemption ({cloud}: " in program.err, "the notice")
        program.end(75)
    assert (stored(ws) / "saved").exists()


# --- Slurm

JOB = """#!/bin/bash
srun {python} -m spotwarp run --grace 5s --interval 1h --command 'bash train.sh'
code=$?
echo "code $code, restart ${{SLURM_RESTART_COUNT:-0}}" >> {told}
[ $code -eq 75 ] && scontrol requeue "$SLURM_JOB_ID"
exit $code
"""
TRAIN = """
step=$(cat step 2> /dev/null || echo 0)
echo "begins at $step, resumed $SPOTWARP_RESUMED" >> begins
trap 'echo $step > step; exit 0' TERM
while [ $step -lt 200 ]; do
  step=$((step + 1)); sleep 0.02
  if [ $SPOTWARP_RESUMED = 0 ]; then [ $step -lt 20 ] || { touch ready; step=20; }; fi
done
echo $step > step
"""


@pytest.mark.deep
def test_slurm_preempts_requeues_and_the_run_goes_on(ws: Machine, tmp_path: Path) -> None:
    """As in docs/notices.md: `srun spotwarp run`, and a requeue on exit code 75."""
    ws.file("train.sh", TRAIN)
    told = tmp_path / "told"
    script = ws.file("job.sh", JOB.format(python=shlex.quote(sys.executable), told=told))
    with slurm(tmp_path / "slurm", grace_s=8) as cluster:
        where = ("--parsable", f"--chdir={ws.path}", f"--output={tmp_path}/%j.out", "--ntasks=1")
        job = cluster("sbatch", *where, "--requeue", "--partition=low", str(script), env=ws.env)
        until((ws.path / "ready").exists, "the job's command")
        (ws.path / "ready").unlink()
        cluster("sbatch", *where, "--partition=high", "--exclusive", f"--wrap=touch {tmp_path}/high; sleep 1")
        until(lambda: cluster.state(job)["Restarts"] == "1", "the requeue", 60)
        until((tmp_path / "high").exists, "the job that took its place")

        def resumed() -> bool:
            with contextlib.suppress(Exception):  # refused while the job is on its way
                cluster("scontrol", "update", f"JobId={job}", "StartTime=now")
            return len(told.read_text().splitlines()) == 2

        until(resumed, "the second life", 60)
    output = (tmp_path / f"{job}.out").read_text()
    assert told.read_text().split("\n")[:2] == ["code 75, restart 0", "code 0, restart 1"], output
    assert re.fullmatch(r"begins at 0, resumed 0\nbegins at 2[01], resumed 1\n", (ws.path / "begins").read_text())
    facts = ws.facts("status")
    assert (facts["state"], facts["generation"]) == ("complete", 2)
