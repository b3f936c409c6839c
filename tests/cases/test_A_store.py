"""Cases A of the object store that misbehaves, through whole programs against a real S3 server behind a proxy."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from spotwarp.testing.checkpoints import huggingface_files, write_files
from spotwarp.testing.faultproxy import FaultProxy, Rule
from spotwarp.testing.product import Machine, Program
from spotwarp.testing.pytest_product import bucket, rent, ws
from spotwarp.testing.pytest_seaweed import s3_proxy, s3_url, seaweed_server
from spotwarp.testing.seaweed import RENEWED, WRITER, S3Identity, Seaweed

__all__ = ["bucket", "rent", "s3_proxy", "s3_url", "seaweed_server", "ws"]

pytestmark = pytest.mark.slow

Rent = Callable[..., Machine]
COUNTING = "i=0; until test -e go; do i=$((i+1)); echo $i > count; sleep 0.05; done; exit $(cat go)"


@pytest.fixture
def remote(rent: Rent, seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str) -> Machine:
    """An initialised workspace whose real S3 server is reached through a proxy."""
    return rent(remote=s3_url, env=seaweed_server.env(endpoint=s3_proxy.endpoint)).init()


def checkpoints(machine: Machine, count: int = 8) -> int:
    """So many checkpoints, each of which makes a pack of its own; how many bytes of them cannot be compressed."""
    for step in range(1, count + 1):
        place = write_files(machine.path / f"out/checkpoint-{step}", huggingface_files(step=step))
        (place / "more.bin").write_bytes(os.urandom(300_000))
    return count * 300_000


# --- A19


def credentials_file(home: Path, identity: S3Identity) -> None:
    """Replace the shared credentials file whole."""
    (home / ".aws").mkdir(parents=True, exist_ok=True)
    new = home / ".aws/new"
    new.write_text(
        f"[default]\naws_access_key_id = {identity.access_key}\naws_secret_access_key = {identity.secret_key}\n"
    )
    new.rename(home / ".aws/credentials")


@pytest.fixture
def keyed(rent: Rent, seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str, tmp_path: Path) -> Machine:
    """As `remote`, with the key in the shared credentials file of the home directory `tmp_path/home`."""
    home = tmp_path / "home"
    credentials_file(home, WRITER)
    env = {"AWS_ENDPOINT_URL": s3_proxy.endpoint, "AWS_REGION": "us-east-1", "HOME": str(home)}
    return rent(remote=s3_url, env=env).init()


EXPIRED = Rule(verb="PUT|POST", status=400, code="ExpiredToken", signed_by=WRITER.access_key)


def nothing_sent_twice(proxy: FaultProxy, random_bytes: int) -> None:
    """Each pack was acknowledged once, and together they are no more than what there is."""
    packs = proxy.acknowledged("/packs/")
    assert set(packs.values()) == {1}
    sent = sum(s.length for s in proxy.seen if s.verb == "PUT" and s.status == 200 and "/packs/" in s.path)
    assert random_bytes <= sent < random_bytes * 1.2


@pytest.mark.parametrize("source", ["file", "variables"])
def test_A19_a_key_that_ends_in_the_middle_of_an_upload(
    keyed: Machine, s3_proxy: FaultProxy, tmp_path: Path, source: str
) -> None:
    """The file is rewritten while the upload fails: it goes on where it was. A spent variable gives way to the file."""
    size = checkpoints(keyed)
    old = {"AWS_ACCESS_KEY_ID": WRITER.access_key, "AWS_SECRET_ACCESS_KEY": WRITER.secret_key}
    s3_proxy.forget()
    s3_proxy.rule(Rule(**{**vars(EXPIRED), "skip": 5}))
    program = keyed.start("sync", env=old if source == "variables" else {})
    program.until(lambda: any(s.status == 400 for s in s3_proxy.seen), "a refusal")
    credentials_file(tmp_path / "home", RENEWED)
    program.end(0)
    nothing_sent_twice(s3_proxy, size)
    assert keyed.facts("check", "--read-data")["problems"] == []


PROGRAM = """
import json, sys, datetime
calls = open(sys.argv[1], "a+")
print("called", file=calls, flush=True)
calls.seek(0)
key = {old} if len(calls.readlines()) < 2 else {new}
until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=10)
print(json.dumps({{"Version": 1, "AccessKeyId": key[0], "SecretAccessKey": key[1], "Expiration": until.isoformat()}}))
"""


def test_A19_a_key_from_a_program_that_lasts_ten_seconds(keyed: Machine, s3_proxy: FaultProxy, tmp_path: Path) -> None:
    home, calls = tmp_path / "home", tmp_path / "calls"
    keys = [(i.access_key, i.secret_key) for i in (WRITER, RENEWED)]
    (home / "key.py").write_text(PROGRAM.format(old=keys[0], new=keys[1]))
    (home / ".aws/credentials").unlink()
    (home / ".aws/config").write_text(f"[default]\ncredential_process = '{sys.executable}' '{home}/key.py' '{calls}'\n")
    size = checkpoints(keyed)
    s3_proxy.forget()
    s3_proxy.rule(Rule(**{**vars(EXPIRED), "skip": 5}))
    keyed("sync")
    nothing_sent_twice(s3_proxy, size)
    assert 2 <= len(calls.read_text().splitlines()) <= 8, "the program is not asked for every request"


def test_A19_with_nothing_fresher_training_goes_on_and_what_is_not_stored_is_told(
    keyed: Machine, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    program = keyed.start("run", "--command", COUNTING)
    program.until(lambda: (keyed.path / "count").exists() and keyed.snapshots(), "a first snapshot")
    s3_proxy.rule(EXPIRED)
    keyed.file("work", os.urandom(100_000))
    program.until(lambda: "NOT STORED" in program.err, "the word that nothing is stored", 120)
    status = keyed("status", "--json", code=1).json
    assert "ExpiredToken" in status["errors"]
    assert status["at_risk_bytes"] >= 100_000
    assert status["at_risk_s"] > 0
    credentials_file(tmp_path / "home", RENEWED)
    program.until(lambda: "storing works again" in program.err, "the new key to be found", 60)
    keyed.file("go", "4")
    assert "everything is stored" in program.end(4).err


# --- A38

STUCK = Rule(verb="PUT|POST", hang=True)
TRAINS = "trap 'touch ended; exit 0' TERM INT; i=0; while :; do i=$((i+1)); echo $i > count; sleep 0.05; done"


def test_A38_a_stuck_upload_is_seen_and_the_end_comes_in_time(remote: Machine, s3_proxy: FaultProxy) -> None:
    program = stuck(remote, s3_proxy, grace="3s")
    first = remote("status", "--json", code=1).json
    second = remote("status", "--json", code=1).json
    assert first["errors"]
    assert second["at_risk_s"] > first["at_risk_s"] > 1
    assert second["at_risk_bytes"] >= 400_000
    before = int((remote.path / "count").read_text() or 0)
    program.until(lambda: int((remote.path / "count").read_text() or 0) > before, "training to go on")
    began = time.monotonic()
    program.send(signal.SIGTERM)
    done = program.end(125, 30)
    assert time.monotonic() - began < 3 + 1 + 12  # the grace, what it may overrun, a slow machine
    assert remote.processes() == []
    assert "not stored: big.bin" in done.err
    s3_proxy.rule()
    assert remote("run", "--command", "cat big.bin | wc -c; exit 6", code=6).out.strip() == b"400000"


def test_A38_a_second_sigterm_ends_it_at_once(remote: Machine, s3_proxy: FaultProxy) -> None:
    program = stuck(remote, s3_proxy, "--json", grace="60s")
    program.send(signal.SIGTERM)
    program.until((remote.path / "ended").exists, "the command's end")
    program.until(lambda: len(remote.processes()) == 1, "the tree to be gone")
    began = time.monotonic()
    while program.process.poll() is None and time.monotonic() < began + 20:
        program.send(signal.SIGTERM)  # again, should the first come before the tree is known to be gone
        time.sleep(0.5)
    assert time.monotonic() - began < 15  # the grace is a minute
    facts = json.loads(program.end(125).err.splitlines()[-1])
    assert facts["unstored"][0] == "big.bin"
    assert not facts["sealed"]


def stuck(remote: Machine, s3_proxy: FaultProxy, *more: str, grace: str) -> Program:
    """A run that has said that its uploads do not get through."""
    program = remote.start("run", *more, "--command", TRAINS, env={"SPOTWARP_GRACE": grace})
    program.until(lambda: (remote.path / "count").exists() and remote.snapshots(), "a first snapshot")
    s3_proxy.rule(STUCK)
    remote.file("big.bin", os.urandom(400_000))
    program.until(lambda: "NOT STORED" in program.err, "the word that nothing is stored", 90)
    return program


# --- A20


def test_A20_a_storm_of_503s_slows_the_pace_and_ends_no_run(remote: Machine, s3_proxy: FaultProxy) -> None:
    for number in range(500):
        remote.file(f"data/{number:03d}", os.urandom(2000))
    checkpoints(remote)
    s3_proxy.forget()
    s3_proxy.rule(Rule(status=503, code="SlowDown", skip=12, times=60))
    program = remote.start("run", "--command", COUNTING)
    program.until(lambda: (remote.path / "count").exists(), "the command")
    program.until(lambda: sum(s.status == 503 for s in s3_proxy.seen) == 60, "the storm to be over", 120)
    before = int((remote.path / "count").read_text() or 0)
    program.until(lambda: int((remote.path / "count").read_text() or 0) > before, "training to go on")
    program.until(lambda: remote.snapshots(), "a snapshot")
    remote.file("go", "3")
    assert "everything is stored" in program.end(3, 60).err
    refused = [s for s in s3_proxy.seen if s.status == 503 and s.verb == "PUT"]
    for key in {s.key for s in refused if "/packs/" in s.key}:
        gaps = [b.at - a.at for a, b in pairwise(s for s in s3_proxy.seen if s.key == key)]
        assert all(later > 0.045 * 2**n for n, later in enumerate(gaps[:6])), gaps  # at least half of the schedule
    assert set(s3_proxy.acknowledged("/packs/").values()) == {1}
    assert remote.facts("check", "--read-data")["problems"] == []
    place = remote.path.with_name("restored")
    remote("restore", "--to", str(place))
    assert len(list((place / "data").iterdir())) == 500


# --- A26


def test_A26_a_hot_key_that_may_be_rewritten_once_a_second(remote: Machine, s3_proxy: FaultProxy) -> None:
    """Heartbeats come every half second here: those refused cost neither data nor the run, and the last one counts."""
    s3_proxy.forget()
    s3_proxy.rule(Rule(verb="PUT", min_gap_s=1.0, status=429, code="TooManyRequests"))
    program = remote.start("run", "--command", COUNTING)
    program.until(lambda: (remote.path / "count").exists(), "the command")
    for step in (1, 2, 3):
        write_files(remote.path / f"out/checkpoint-{step}", huggingface_files(step=step))
        time.sleep(0.6)
    program.until(lambda: remote.facts("status", code=None)["resumable_step"] == 3, "the last checkpoint", 60)
    remote.file("go", "3")
    done = program.end(3, 60)
    assert "fenced" not in done.err
    assert any(s.status == 429 and "/beats/" in s.path for s in s3_proxy.seen), "the rule was never hit"
    assert not any(s.status == 429 and "/packs/" in s.path for s in s3_proxy.seen)
    facts = remote.facts("status")
    assert (facts["state"], facts["exit"], facts["resumable_step"]) == ("stopped", 3, 3)


# --- A30

SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <sys/time.h>
#include <stdlib.h>
static long off(void) { const char *s = getenv("CLOCK_OFF"); return s ? atol(s) : 0; }
int clock_gettime(clockid_t id, struct timespec *t) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int r = real(id, t);
  if (id == CLOCK_REALTIME && !r) t->tv_sec += off();
  return r;
}
int gettimeofday(struct timeval *t, void *z) {
  static int (*real)(struct timeval *, void *);
  if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
  int r = real(t, z);
  if (!r) t->tv_sec += off();
  return r;
}
"""


@pytest.fixture(scope="module")
def clock_shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that sets the wall clock of a process off by CLOCK_OFF seconds."""
    place = tmp_path_factory.mktemp("shim")
    (place / "off.c").write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", "off.so", "off.c", "-ldl"], cwd=place, check=True)
    return place / "off.so"


@pytest.mark.parametrize("off_s", [1200, -1200])
def test_A30_a_machine_whose_clock_is_wrong(
    remote: Machine, s3_proxy: FaultProxy, clock_shim: Path, off_s: int
) -> None:
    """The real server refuses what is signed twenty minutes off. Said at once, by how much; nothing is lost."""
    remote.file("work", "kept")
    env = {"LD_PRELOAD": str(clock_shim), "CLOCK_OFF": str(off_s)}
    began = time.monotonic()
    done = remote("sync", code=12, env=env)
    assert time.monotonic() - began < 20, "it is not tried again and again"
    found = re.search(r"this machine's clock is ([+-]\d+) s off", done.err)
    assert found, done.err
    assert abs(int(found[1]) - off_s) < 30
    assert "Set this machine's clock" in done.err
    remote("sync")
    place = remote.path.with_name("restored")
    remote("restore", "--to", str(place))
    assert (place / "work").read_text() == "kept"
