"""Cases A through the program: what cannot be read, what is excluded, who moves the ground, a new machine."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.faultproxy import FaultProxy
from spotwarp.testing.product import Machine, until
from spotwarp.testing.pytest_product import bucket, rent, ws
from spotwarp.testing.pytest_seaweed import s3_proxy, s3_url, seaweed_server
from spotwarp.testing.seaweed import Seaweed
from spotwarp.testing.trees import read_tree

__all__ = ["bucket", "rent", "s3_proxy", "s3_url", "seaweed_server", "ws"]

pytestmark = pytest.mark.slow

Rent = Callable[..., Machine]
MIB = 1 << 20
POWERLESS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
"""Root who may not read everything: as an ordinary user. (An ordinary user is one already.)"""
UNTIL_GO = "until test -e go; do sleep 0.05; done"


def content(machine: Machine) -> dict[bytes, bytes]:
    """What is in a workspace, less what is SpotWarp's own."""
    return {p: node.content for p, node in read_tree(machine.path).items() if not p.startswith(b".spotwarp")}


def under() -> list[str]:
    return POWERLESS if os.geteuid() == 0 else []


def test_A08_what_is_excluded_is_neither_opened_nor_told(ws: Machine, rent: Rent) -> None:
    ws.file("kept", "x")
    closed = ws.path / "cache/deep/closed"
    closed.mkdir(parents=True)
    os.mkfifo(ws.path / "cache/pipe")
    (closed / "secret").write_text("y")
    if os.geteuid() == 0:
        os.chown(closed, 1234, 1234)
    closed.chmod(0)
    stop = threading.Event()

    def churn() -> None:
        k = 0
        while not stop.wait(0.001):
            (ws.path / f"cache/tmp{k}").write_bytes(b"z" * 4000)
            (ws.path / f"cache/tmp{k - 3}").unlink(missing_ok=True)
            k += 1

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        ws("exclude", "cache/**")
        done = ws("run", "--command", "sleep 2", code=0, under=under())
    finally:
        stop.set()
        thread.join(60)
        closed.chmod(0o755)
    for word in ("cache", "not stored", "cannot be read", "NOT STORED"):
        assert word not in done.err, done.err
    other = rent("other").init()
    other("restore")
    assert content(other).keys() == {b"kept"}


def test_A09_one_unreadable_file_among_a_hundred(ws: Machine, rent: Rent) -> None:
    for k in range(100):
        ws.file(f"f{k}", f"content {k}")
    (ws.path / "f57").chmod(0)
    done = ws("run", "--command", "exit 0", code=125, under=under())
    assert "not everything is stored: 1 path(s) could not be read: f57" in done.err
    assert ws.facts("status", code=None)["state"] != "complete"
    other = rent("other").init()
    other("restore")
    assert content(other) == {p: c for p, c in content(ws).items() if p != b"f57"}
    assert len(content(other)) == 99


def test_A15_watches_that_run_out_hide_nothing(rent: Rent) -> None:
    """Nothing is watched: the scan is the authority. With fifty watches allowed and a hundred directories."""
    machine = rent("first").init()
    for k in range(100):
        machine.file(f"d{k:03}/f", "old")
    few = 'w=/proc/sys/user/max_inotify_watches; echo 50 > $w && test "$(cat $w)" = 50 && exec "$@"'
    program = machine.start("run", "--command", UNTIL_GO, under=["unshare", "-Ur", "bash", "-c", few, "few"])
    program.until(lambda: machine.snapshots(), "the first snapshot")
    count = machine.snapshots()[-1]["id"]
    machine.file("d099/f", "new")
    program.until(lambda: machine.snapshots()[-1]["id"] > count, "the next one")
    machine.die()
    other = rent("other").init()
    other("restore")
    assert (other.path / "d099/f").read_text() == "new"
    assert len(list(other.path.glob("d*/f"))) == 100


@pytest.mark.deep
def test_A15_a_burst_of_files_while_it_was_stopped_is_all_there(rent: Rent) -> None:
    """More than the queue of a watcher holds."""
    machine = rent("first").init()
    program = machine.start("run", "--command", UNTIL_GO)
    program.until(lambda: machine.snapshots(), "the first snapshot")
    program.send(signal.SIGSTOP)
    burst = machine.path / "burst"
    burst.mkdir()
    for k in range(17_000):
        (burst / str(k)).touch()
    program.send(signal.SIGCONT)
    machine("sync")
    assert machine.snapshots()[-1]["files"] >= 17_000
    machine.file("go", "")
    program.end(0)
    machine("restore", "--to", str(machine.path.with_name("all")))
    assert len(list(machine.path.with_name("all").joinpath("burst").iterdir())) == 17_000


@pytest.mark.deep
def test_A16_a_workspace_that_is_unmounted_is_not_stored_as_empty(rent: Rent, tmp_path: Path) -> None:
    place = tmp_path / "mounted"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64M", "spotwarp-test", place], check=True)
    mounted = True
    try:
        machine = rent("mounted").init()
        for k in range(20):
            machine.file(f"f{k}", f"content {k}")
        go = tmp_path / "go"
        program = machine.start("run", "--command", f"cd /; until [ -e {go} ]; do sleep 0.05; done", cwd=None)
        until(lambda: machine.snapshots(), "the first snapshot")
        subprocess.run(["umount", "-l", place], check=True)
        mounted = False
        program.until(lambda: "NOT STORED" in program.err, "being told")
        go.touch()
        assert "everything is stored" not in program.end(125).err
    finally:
        if mounted:
            subprocess.run(["umount", "-l", place], check=True)
    other = rent("other").init()
    other("restore")
    assert content(other).keys() == {f"f{k}".encode() for k in range(20)}


def test_A45_content_decides_not_size_and_time(rent: Rent) -> None:
    first = rent("first").init()
    first.file("config.json", '{"lr": 1}')
    first("sync")
    other = rent("other").init()
    stale = other.file("config.json", '{"lr": 9}')
    os.utime(stale, (2**31, 2**31))  # newer than anything
    refused = other("restore", code=21)
    assert "config.json" in refused.err
    assert stale.read_text() == '{"lr": 9}'
    assert other("run", "--command", "cat config.json", code=None).code not in (0, 1)
    assert stale.read_text() == '{"lr": 9}'
    other("restore", "--force")
    assert stale.read_text() == '{"lr": 1}'
    [kept] = (other.path / ".spotwarp/set-aside").rglob("config.json")
    assert kept.read_text() == '{"lr": 9}'


def test_A50_a_restored_tree_is_not_sent_again(
    rent: Rent, seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str
) -> None:
    """Inodes and change times are all new on the new disk. Two cycles there send next to nothing, and read nothing."""
    env = seaweed_server.env(endpoint=s3_proxy.endpoint)
    first = rent("first", remote=s3_url, env=env).init()
    for k in range(10):
        first.file(f"data/{k}.bin", os.urandom(4 * MIB))
    for k in range(500):
        first.file(f"small/{k}", os.urandom(2000))
    first("sync")
    size = sum(p.stat().st_size for p in first.path.rglob("*") if p.is_file())
    first.die()
    second = rent("second", remote=s3_url, env=env).init()
    program = second.start("run", "--command", f"touch ready; {UNTIL_GO}")
    program.until((second.path / "ready").exists, "the restore")
    s3_proxy.forget()
    for cycle in range(2):
        second.file("log", f"line {cycle}")
        second("sync")
    sent = sum(seen.length for seen in s3_proxy.seen if seen.verb == "PUT")
    read = sum(s["read_bytes"] for s in second.snapshots()[-2:])
    assert 0 < sent < size / 100, f"{sent} of {size} bytes"
    assert read < size / 100, f"{read} of {size} bytes"
    second.file("go", "")
    program.end(0)


def test_a_sync_that_finds_nothing_new_writes_nothing(ws: Machine, rent: Rent) -> None:
    ws.file("f", "x")
    done = ws.facts("sync")
    assert not done["unchanged"]
    until(lambda: ws.facts("sync")["unchanged"], "its times are old enough to be believed")
    last = ws.snapshots()[-1]["id"]
    said = ws("sync").out
    assert said.startswith(b"snapshot %d: " % last)
    assert b"nothing new" in said
    assert ws.snapshots()[-1]["id"] == last
    assert ws.facts("sync", "--takeover")["id"] > last  # claims, so it commits
    ws.file("f", "y")
    new = ws.facts("sync")
    assert not new["unchanged"]
    other = rent("other").init()
    other("restore")
    assert (other.path / "f").read_text() == "y"
