"""Cases A of machines that die at any moment, damaged files of our own, secrets, and disks that are full."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotwarp.testing.product import Machine
from spotwarp.testing.pytest_product import bucket, rent, ws
from spotwarp.testing.pytest_seaweed import s3_proxy, s3_url, seaweed_server
from spotwarp.testing.seaweed import Seaweed
from spotwarp.testing.trees import read_tree

__all__ = ["bucket", "rent", "s3_proxy", "s3_url", "seaweed_server", "ws"]

pytestmark = pytest.mark.slow

Rent = Callable[..., Machine]
WAITS = "touch ready; until test -e go; do date +%N > work; sleep 0.02; done; exit $(cat go)"

# --- A33


def killed_in_a_cycle(machine: Machine) -> None:
    """A run that dies with all of its machine while it holds the lease."""
    program = machine.start("run", "--command", WAITS)
    program.until(lambda: (machine.path / "ready").exists() and machine.snapshots(), "a snapshot")
    machine.die()
    (machine.path / "ready").unlink()


def test_A33_the_same_host_takes_over_by_itself(ws: Machine) -> None:
    killed_in_a_cycle(ws)
    done = ws("run", "--command", "exit 4", code=4, seconds=30)
    assert "has gone silent" in done.err


@pytest.mark.deep
def test_A33_another_host_takes_over_and_the_dead_cannot_come_back(ws: Machine, rent: Rent) -> None:
    """The dead one is only frozen: when it wakes up it is fenced."""
    program = ws.start("run", "--command", WAITS)
    program.until(lambda: (ws.path / "ready").exists() and ws.snapshots(), "a snapshot")
    os.killpg(program.process.pid, signal.SIGSTOP)
    for process in ws.processes():
        process.suspend()
    other = rent("other").init()
    under = ["unshare", "--uts", "sh", "-c", 'hostname another-host; exec "$@"', "sh"]
    done = other("run", "--command", "echo mine > work; exit 4", code=4, seconds=30, under=under)
    assert "has gone silent" in done.err
    last = other.snapshots()[-1]
    for process in ws.processes():
        process.resume()
    assert "fenced" in program.end(125, 40).err
    assert other.snapshots()[-1] == last
    assert last["generation"] == 2


@pytest.mark.deep
def test_A33_a_pid_that_is_alive_proves_nothing(ws: Machine) -> None:
    """In a namespace of its own the new SpotWarp, and others there, have the numbers that the dead one had."""
    under = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    program = ws.start("run", "--command", WAITS, under=under)
    program.until(lambda: (ws.path / "ready").exists() and ws.snapshots(), "a snapshot")
    ws.die()
    held = ws.facts("status", code=None)["holder"]
    assert "process 1)" in held
    ws("run", "--command", "exit 4", code=4, seconds=30, under=under)


# --- A34


@pytest.mark.parametrize("rounds", [6, pytest.param(50, marks=pytest.mark.deep)])
def test_A34_killed_syncs_beside_a_prune(ws: Machine, rent: Rent, bucket: Path, rounds: int) -> None:
    """After each: everything that a retained snapshot names is there and has its hash."""
    rng = random.Random(34 * rounds)
    other = rent("other").init()
    died = 0
    for _ in range(rounds):
        for name in rng.sample(range(6), 3):
            ws.file(f"data{name}", rng.randbytes(rng.randrange(1000, 2_000_000)))
        before = entries(bucket)
        storing, pruning = ws.start("sync", "--takeover"), other.start("prune", "--grace", "0s")
        storing.until(lambda before=before: entries(bucket) > before, "its claim")  # type: ignore[misc]
        try:
            storing.process.wait(rng.uniform(0.0, 0.3))
        except subprocess.TimeoutExpired:
            storing.process.kill()
            died += 1
            storing.process.wait(10)
        pruning.end(None, 60)
        assert other.facts("check", "--read-data", code=None).get("problems", []) == []
    assert died > rounds / 4
    ws("sync", "--takeover")
    other("prune", "--grace", "0s")
    assert other.facts("check", "--read-data")["problems"] == []
    place = other.path.with_name("restored")
    other("restore", "--to", str(place))
    stored, here = read_tree(place), read_tree(ws.path)
    assert {p: n for p, n in stored.items() if p.startswith(b"data")} == {
        p: n for p, n in here.items() if p.startswith(b"data")
    }


def entries(bucket: Path) -> int:
    """How many log entries the run has."""
    return len(list((bucket / "runs/main/log").glob("*")))


# --- A40

SECRET = "s3cr3t-0f-the-user-that-must-not-be-anywhere"
TOKEN = "t0ken-of-the-user-that-must-not-be-anywhere"


def test_A40_secrets_are_nowhere(rent: Rent, seaweed_server: Seaweed, s3_url: str, tmp_path: Path) -> None:
    """In the environment of everything, at every verb, also the failing ones: not printed, not stored, not in `ps`."""
    from spotwarp.testing.seaweed import WRITER

    env = {**seaweed_server.env(), "RUST_LOG": "trace", "SPOTWARP_LOG": "debug", "MY_API_KEY": TOKEN}
    machine = rent(remote=s3_url, env=env).init()
    machine.file(".env", f"PASSWORD={TOKEN}\n")
    machine.file(".aws/credentials", f"aws_secret_access_key = {TOKEN}\n")
    machine.file("train.py", "print('no secret')\n")
    commands: set[str] = set()
    program = machine.start("run", "--command", WAITS)
    program.until(lambda: (machine.path / "ready").exists() and machine.snapshots(), "a snapshot")
    for process in machine.processes():
        with contextlib.suppress(OSError):  # the command's own come and go
            commands.add(Path(f"/proc/{process.pid}/cmdline").read_text(errors="replace"))
    assert any("run" in command for command in commands)
    outputs = [machine(verb, code=None) for verb in ("status", "snapshots", "runs", "check", "sync")]
    machine.file("go", "0")
    program.end(0)
    wrong = {"AWS_ACCESS_KEY_ID": SECRET[:20], "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN}
    outputs += [machine(verb, code=None, env=wrong) for verb in ("status", "init", "sync")]
    assert any(done.code == 12 for done in outputs)
    secrets = [WRITER.secret_key, SECRET, TOKEN]
    said = [done.err + done.out.decode(errors="replace") for done in outputs]
    said += [path.read_text(errors="replace") for path in machine.path.with_name("ws.logs").iterdir()]
    own = [p for p in (machine.path / ".spotwarp").rglob("*") if p.is_file()]
    said += [path.read_text(errors="replace") for path in own]
    assert len(own) >= 3
    for text in [*commands, *said]:
        for secret in secrets:
            assert secret not in text
    assert (machine.path / ".spotwarp/config.yaml").stat().st_mode & 0o777 == 0o600
    place = tmp_path / "restored"
    machine("restore", "--to", str(place))
    assert (place / "train.py").exists()
    assert not (place / ".env").exists()
    assert not (place / ".aws/credentials").exists()
    for data in everything(seaweed_server, s3_url):
        for secret in secrets:
            assert secret.encode() not in data


def everything(server: Seaweed, url: str) -> Iterator[bytes]:
    """Every object, and what is compressed in it."""
    import re

    import zstandard

    from spotwarp.clock import SystemClock
    from spotwarp.persistence.store.s3 import S3Store

    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    store = S3Store(bucket, prefix, env=server.env(), clock=SystemClock())
    for meta in store.list(""):
        data = store.get(meta.key)
        yield data
        for found in re.finditer(rb"\x28\xb5\x2f\xfd", data):  # where a compressed frame may begin
            try:
                yield zstandard.ZstdDecompressor().decompressobj().decompress(data[found.start() :])
            except zstandard.ZstdError:
                continue


# --- A51


def damaged(content: bytes, how: str) -> bytes:
    return {"nul": bytes(len(content)), "empty": b"", "half": content[: len(content) // 2]}[how]


@pytest.mark.parametrize("how", ["nul", "empty", "half"])
def test_A51_own_files_damaged_by_a_hard_stop(ws: Machine, how: str) -> None:
    """All at once, as after a power cut: what is here is not lost, the run goes on, an error names the config."""
    ws.file("work", "stored")
    ws("run", "--command", "exit 3", code=3)
    config = ws.path / ".spotwarp/config.yaml"
    kept = config.read_bytes()
    own = [p for p in (ws.path / ".spotwarp").rglob("*") if p.is_file() and p != config]
    assert len(own) >= 3, own
    for path in own:
        path.write_bytes(damaged(path.read_bytes(), how))
    ws.file("work", "newer")
    ws("run", "--keep-local", "--command", "exit 4", code=4)
    place = ws.path.with_name(f"restored-{how}")
    ws("restore", "--to", str(place))
    assert (place / "work").read_text() == "newer"
    config.write_bytes(damaged(kept, how))
    done = ws("run", "--command", "exit 5", code=None)
    assert done.code in (2, 5, 125)  # half a config may be a config
    if done.code != 5:
        assert "hint:" in done.err
        config.unlink()
        ws.init()
        ws("run", "--command", "exit 5", code=5)


# --- the server is killed


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Seaweed]:
    """A server of one's own, to kill."""
    from spotwarp.testing.seaweed import seaweed

    with seaweed(tmp_path / "seaweed") as server:
        yield server


def test_a_server_that_is_killed_and_comes_back(rent: Rent, mortal: Seaweed) -> None:
    machine = rent(remote="s3://spotwarp/p", env=mortal.env()).init()
    program = machine.start("run", "--command", WAITS)
    program.until(lambda: (machine.path / "ready").exists() and machine.snapshots(), "a snapshot")
    mortal.kill()
    program.until(lambda: "NOT STORED" in program.err, "the word that nothing is stored", 90)
    machine.file("late", os.urandom(100_000))
    mortal.start()
    program.until(lambda: "storing works again" in program.err, "the store", 90)
    machine.file("go", "6")
    assert "everything is stored" in program.end(6, 90).err
    assert machine.facts("check", "--read-data")["problems"] == []


# --- A43, B18: disks that are full


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    """Makes file systems of so many MiB."""
    mounted: list[Path] = []

    def make(name: str, size: str) -> Path:
        path = tmp_path / name
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "spotwarp-test", path], check=True)
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.deep
def test_A43_a_disk_that_is_too_small_starts_nothing(ws: Machine, rent: Rent, disk: Callable[[str, str], Path]) -> None:
    for number in range(6):
        ws.file(f"part{number}", os.urandom(2_000_000))
    ws("sync")
    small = disk("small", "8M")
    target = rent("small").init()
    done = target("restore", code=22)
    assert "needs" in done.err
    done = target("run", "--command", "touch started", code=125)
    assert "needs" in done.err
    assert not [p for p in small.iterdir() if p.name != ".spotwarp"], "a plausible part of a tree"
    subprocess.run(["mount", "-o", "remount,size=40M", small], check=True)
    assert target("run", "--command", "ls part* | wc -l; exit 5", code=5).out.split() == [b"6"]


SAVES = """
import time
from pathlib import Path
from spotwarp.testing.checkpoints import huggingface_files, write_files
for step in range(1, 30):
    try:
        write_files(Path(f"out/checkpoint-{step}"), huggingface_files(step=step, size=4_000_000))
    except OSError as error:
        raise SystemExit(str(error))
    while not Path(f"go{step}").exists():
        time.sleep(0.01)
"""


@pytest.mark.deep
def test_B18_a_disk_that_fills_up_while_saving_is_the_jobs_own_error(
    rent: Rent, disk: Callable[[str, str], Path]
) -> None:
    disk("ws", "60M")
    machine = rent("ws").init()
    machine.file("save.py", SAVES)
    program = machine.start("run", "--", sys.executable, "save.py")
    for step in range(1, 30):
        program.until(lambda step=step: newest(machine) >= step, f"checkpoint {step} to be stored")  # type: ignore[misc]
        took = sum(p.stat().st_size for p in (machine.path / f"out/checkpoint-{step}").iterdir())
        about = os.statvfs(machine.path)
        if about.f_bavail * about.f_frsize < took:
            break
        machine.file(f"go{step}", "")
    program.until(lambda: "the next save may fail" in program.err, "the warning, before it fails", 15)
    assert "the next save may fail" in machine.facts("status")["disk"]
    (machine.path / f"go{step}").touch()
    done = program.end(1, 60)  # the trainer's own exit code
    assert "No space left" in done.err + done.out.decode()
    facts = machine.facts("status", code=None)
    assert (facts["state"], facts["exit"]) == ("stopped", 1)
    assert facts["resumable_step"] >= step
    own = sum(p.stat().st_size for p in (machine.path / ".spotwarp").rglob("*") if p.is_file())
    assert own < 1_000_000, "nothing is spooled in the workspace"
    place = machine.path.with_name("restored")
    machine("restore", "--to", str(place), "--snapshot", "latest-resumable")
    assert (place / facts["resumable_checkpoint"]).is_dir()


def newest(machine: Machine) -> int:
    """The newest checkpoint's step that is stored."""
    stored = [s["resumable"]["step"] for s in machine.snapshots() if s["resumable"]]
    return max(stored, default=0)
