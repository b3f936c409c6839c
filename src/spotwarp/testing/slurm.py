"""A real Slurm on this machine: one node, two cores, a partition that is preempted and one that preempts.

Needs root and Debian's `munge`, `slurmctld`, `slurmd` and `slurm-client`. Everything it writes is below one directory,
and nothing of it runs on at the end. Preemption requeues after `grace_s`, without Slurm's usual two minutes of delay.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldPort={control}
SlurmdPort={node}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
KillWait={grace}
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SchedulerParameters=requeue_delay=1,bf_interval=1,sched_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN RealMemory=1000
PartitionName=low Nodes={host} Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace} State=UP
PartitionName=high Nodes={host} PriorityTier=10 PreemptMode=OFF State=UP
"""


class Slurm:
    """The cluster that runs. `env` is what its commands need."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env: Mapping[str, str] = {**os.environ, "SLURM_CONF": str(root / "slurm.conf")}

    def __call__(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        """What a command such as `sbatch` prints. Raises `CalledProcessError`."""
        done = subprocess.run(words, env={**self.env, **(env or {})}, check=True, capture_output=True, timeout=30)
        return done.stdout.decode().strip()

    def state(self, job: str) -> dict[str, str]:
        """A job's facts (`JobState`, `Restarts` …)."""
        shown = self("scontrol", "--oneliner", "show", "job", job)
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def log(self) -> str:
        """What the daemons have said."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.root.glob("*.log")))


@contextlib.contextmanager
def slurm(root: Path, *, grace_s: int = 5) -> Iterator[Slurm]:
    """Start it below `root`, end it afterwards. Raises `AssertionError` when it does not come up."""
    for name in ("state", "spool"):
        (root / name).mkdir(parents=True)
    key = root / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    numbers = {"control": _free_port(), "node": _free_port(), "grace": grace_s}
    (root / "slurm.conf").write_text(_CONF.format(host=host, root=root, **numbers))
    cluster = Slurm(root)
    conf = str(root / "slurm.conf")
    ends = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    munge = [f"--{name}={root / ('munge.' + end)}" for name, end in ends.items()]
    with contextlib.ExitStack() as running:
        for words in (
            ["munged", "--foreground", "--force", *munge],
            ["slurmctld", "-D", "-f", conf],
            ["slurmd", "-D", "-f", conf],
        ):
            running.enter_context(_daemon(words, root, cluster.env))
            if words[0] == "munged":
                _until((root / "munge.socket").exists, cluster)
        _until(lambda: _idle(cluster), cluster)
        yield cluster
        with contextlib.suppress(subprocess.CalledProcessError):
            cluster("scancel", "--signal=KILL", "--user=root", "--full")


def _idle(cluster: Slurm) -> bool:
    with contextlib.suppress(subprocess.CalledProcessError):
        return "idle" in cluster("sinfo", "-h")
    return False


@contextlib.contextmanager
def _daemon(words: list[str], root: Path, env: Mapping[str, str]) -> Iterator[None]:
    path = shutil.which(words[0], path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert path, f"{words[0]} is not installed: apt-get install munge slurmctld slurmd slurm-client"
    with (root / f"{words[0]}.out.log").open("wb") as output:
        process = subprocess.Popen(
            [path, *words[1:]], env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def _until(condition: object, cluster: Slurm) -> None:
    assert callable(condition)
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit, f"Slurm does not come up:\n{cluster.log()[-3000:]}"
        time.sleep(0.05)
