"""Cases A of what is true of the store: lies about what is there, loss behind our back, "stored" never said early."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.cli.app import main
from spotwarp.clock import SystemClock
from spotwarp.persistence.store.s3 import S3Store
from spotwarp.testing.faultproxy import FaultProxy, Rule
from spotwarp.testing.product import SETTINGS, Done, Machine, until
from spotwarp.testing.pytest_product import bucket, rent, ws
from spotwarp.testing.pytest_seaweed import s3_proxy, s3_url, seaweed_server
from spotwarp.testing.seaweed import REGION, WRITER, Seaweed
from spotwarp.testing.trees import read_tree

__all__ = ["bucket", "rent", "s3_proxy", "s3_url", "seaweed_server", "ws"]

pytestmark = pytest.mark.slow

Rent = Callable[..., Machine]


@pytest.fixture
def remote(rent: Rent, seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str) -> Machine:
    """An initialised workspace whose real S3 server is reached through a proxy."""
    return rent(remote=s3_url, env=seaweed_server.env(endpoint=s3_proxy.endpoint)).init()


class Desk(Machine):
    """A machine whose verbs run in this process: many of them cost little. Not for `run`, which takes the signals."""

    def __init__(
        self, path: Path, remote: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        super().__init__(path, remote, {})
        self._monkeypatch, self._capfd = monkeypatch, capfd

    def __call__(self, *words: str, code: int | None = 0, seconds: float = 60.0, **more: object) -> Done:
        """See `Machine`."""
        self._monkeypatch.chdir(self.path)
        self._capfd.readouterr()
        found = main(list(words))
        out, err = self._capfd.readouterr()
        assert code is None or found == code, f"{found}, not {code}: {err}"
        return Done(found, out.encode(), err)


@pytest.fixture
def desk(
    seaweed_server: Seaweed,
    s3_proxy: FaultProxy,
    s3_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Desk:
    """As `remote`, in this process."""
    for name, value in {**SETTINGS, **seaweed_server.env(endpoint=s3_proxy.endpoint)}.items():
        monkeypatch.setenv(name, value)
    made = Desk(tmp_path / "ws", s3_url, monkeypatch, capfd)
    made.init()
    return made


@pytest.fixture
def behind(seaweed_server: Seaweed, s3_url: str) -> S3Store:
    """The same place, past the proxy and past SpotWarp."""
    bucket, _, prefix = s3_url.removeprefix("s3://").partition("/")
    return S3Store(bucket, prefix, env=seaweed_server.env(), clock=SystemClock())


def packs(behind: S3Store) -> dict[str, int]:
    return {meta.key: meta.size for meta in behind.list("runs/main/packs")}


def restored(machine: Machine, name: str = "restored", *more: str, code: int = 0) -> Path:
    place = machine.path.with_name(name)
    machine("restore", "--to", str(place), *more, code=code)
    return place


# --- a listing that is not the whole

PARTIAL = {
    "lacks packs": Rule(verb="GET", path="list-type=2", unlisted="/packs/"),
    "lacks manifests": Rule(verb="GET", path="list-type=2", unlisted="/manifests/"),
    "ends early": Rule(verb="GET", path="list-type=2", list_ends_after=1),
    "is empty": Rule(verb="GET", path="list-type=2", list_ends_after=0),
}


@pytest.mark.parametrize("kind", PARTIAL)
def test_a_listing_that_is_not_the_whole_condemns_nothing(
    desk: Desk, s3_proxy: FaultProxy, behind: S3Store, kind: str
) -> None:
    for n in range(3):
        desk.file(f"work{n}", os.urandom(50_000))
        desk("sync")
    before = packs(behind)
    s3_proxy.rule(PARTIAL[kind])
    s3_proxy.forget()
    assert desk.facts("check")["problems"] == []
    desk.file("work3", os.urandom(50_000))
    done = desk("sync")
    assert "sending it again" not in done.err
    assert set(s3_proxy.acknowledged("/packs/").values()) == {1}
    desk("prune", "--grace", "0s")
    assert before.keys() <= packs(behind).keys()
    s3_proxy.rule()
    assert desk.facts("check", "--read-data")["problems"] == []
    tree = read_tree(restored(desk))
    assert {f"work{n}".encode() for n in range(4)} <= tree.keys()


def test_a_pack_that_is_really_missing_is_found_missing(desk: Desk, behind: S3Store) -> None:
    desk.file("work", os.urandom(50_000))
    desk("sync")
    for key in packs(behind):
        behind.delete(key)
    facts = desk.facts("check", code=16)
    assert {problem["kind"] for problem in facts["problems"]} == {"pack-missing"}


# --- answers that are cut off and say so of themselves


@pytest.mark.parametrize("where", ["/manifests/", "/packs/", "/log/", "/config"])
def test_one_answer_cut_off_on_its_way_is_read_again(desk: Desk, s3_proxy: FaultProxy, where: str) -> None:
    """The length is the announced one; only the hash tells. The newest snapshot is not given up for it."""
    for n in range(2):
        desk.file("work", b"%d" % n + os.urandom(50_000))
        desk("sync")
    s3_proxy.rule(Rule(verb="GET", path=where, shorten_reply=60, times=1))
    place = restored(desk)
    assert (place / "work").read_bytes() == (desk.path / "work").read_bytes()
    s3_proxy.rule(Rule(verb="GET", path=where, shorten_reply=60, times=1))
    assert desk.facts("check", "--read-data")["problems"] == []
    s3_proxy.rule(Rule(verb="GET", path=where, shorten_reply=60, times=1))
    desk.file("work", b"2" + os.urandom(50_000))
    assert "sending" not in desk("sync").err


@pytest.mark.parametrize("where", ["/manifests/", "/log/", "/config"])
def test_answers_that_are_always_cut_off_give_an_error_and_never_a_file(
    desk: Desk, s3_proxy: FaultProxy, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spotwarp.cli.context.LOG_BUDGET_S", 2.0)
    desk.file("work", os.urandom(50_000))
    desk("sync")
    s3_proxy.rule(Rule(verb="GET", path=where, shorten_reply=60))
    place = desk.path.with_name("restored")
    assert desk("restore", "--to", str(place), code=None).code in (16, 17, 19)
    assert not (place / "work").exists()
    s3_proxy.rule(Rule(verb="GET", path=where, drip_bytes_s=200_000.0))
    assert (restored(desk, "again") / "work").read_bytes() == (desk.path / "work").read_bytes()


# --- A31


@pytest.mark.parametrize("year", [2001, 2030])
@pytest.mark.parametrize("verbs", ["GET|HEAD", "HEAD"])
def test_A31_store_time_and_ours_disagree(
    desk: Desk, s3_proxy: FaultProxy, behind: S3Store, year: int, verbs: str
) -> None:
    for n in range(5):  # more than are kept
        desk.file("work", b"%d" % n + os.urandom(50_000))
        desk("sync")
    before = packs(behind)
    day = {2001: "Mon", 2030: "Tue"}[year]
    s3_proxy.rule(Rule(verb=verbs, last_modified=f"{day}, 01 Jan {year} 00:00:00 GMT"))
    done = desk("prune", code=None)
    assert packs(behind) == before, "something was deleted by an age that nobody knows"
    assert "grace" in done.out.decode() + done.err
    desk.file("work", b"5" + os.urandom(50_000))
    desk("sync")
    assert (restored(desk) / "work").read_bytes() == (desk.path / "work").read_bytes()
    assert desk.facts("check", "--read-data")["problems"] == []
    desk("prune", "--grace", "0s")
    assert packs(behind).keys() != before.keys()
    assert desk.facts("check", "--read-data")["problems"] == []


# --- A32

COUNTING = "i=0; until test -e go; do i=$((i+1)); echo $i > count; sleep 0.05; done; exit $(cat go)"


def test_A32_a_full_store_takes_deletes_and_training_goes_on(
    remote: Machine, s3_proxy: FaultProxy, behind: S3Store
) -> None:
    for n in range(5):
        remote.file("work", b"%d" % n + os.urandom(50_000))
        remote("sync")
    program = remote.start("run", "--command", COUNTING, env={"SPOTWARP_PRUNE": "false", "SPOTWARP_PATIENCE": "1s"})
    program.until(lambda: (remote.path / "count").exists() and remote("status").out != b"", "the command")
    s3_proxy.rule(Rule(verb="PUT|POST", status=507, code="QuotaExceeded"))
    program.until(lambda: "NOT STORED" in program.err, "the word that nothing is stored", 60)
    assert "QuotaExceeded" in remote("status", "--json", code=1).json["errors"]
    before, steps = packs(behind), int((remote.path / "count").read_text() or 0)
    remote("prune", "--grace", "0s")
    assert set(packs(behind)) < set(before), "prune needs no write to free space"
    program.until(lambda: int((remote.path / "count").read_text() or 0) > steps, "training to go on")
    remote.file("last", os.urandom(10_000))
    remote.file("go", "0")
    done = program.end(125, 60)
    assert "last" in done.err
    assert remote("status", "--json", code=None).json["state"] != "complete", "nothing that ends a machine may be said"
    s3_proxy.rule()
    remote("run", "--command", "exit 0")
    assert remote.facts("status")["state"] == "complete"
    assert (restored(remote) / "last").read_bytes() == (remote.path / "last").read_bytes()


# --- A35, A36


def test_A35_half_a_pack_is_named_and_never_lands(desk: Desk, behind: S3Store) -> None:
    desk.file("old", os.urandom(50_000))
    desk("sync")
    known = packs(behind)
    desk.file("new", os.urandom(200_000))
    desk("sync")
    (key,) = packs(behind).keys() - known.keys()
    behind.put(key, behind.get(key)[: packs(behind)[key] // 2])
    place = desk.path.with_name("restored")
    done = desk("restore", "--to", str(place), code=None)
    assert done.code != 0
    assert "new" in done.err
    assert not (place / "new").exists()
    facts = desk.facts("check", code=16)
    assert [problem["files"] for problem in facts["problems"]] == [["new"]]
    whole = facts["whole"]
    assert whole
    assert (restored(desk, "older", "--snapshot", str(whole[-1])) / "old").exists()


def test_A36_what_is_gone_from_the_store_is_found_and_sent_again(desk: Desk, behind: S3Store) -> None:
    for n in range(3):
        desk.file(f"work{n}", os.urandom(50_000))
        desk("sync")
    for key in list(packs(behind))[:2]:
        behind.delete(key)
    desk.file("unrelated", "1")
    done = desk("sync")  # its snapshot is the final one of its generation: every pack it names is looked for
    assert "sending it again" in done.err

    latest = desk.facts("snapshots")[-1]["id"]
    assert latest in desk("check", "--read-data", "--json", code=None).json["whole"]
    assert read_tree(restored(desk)).keys() >= {b"work0", b"work1", b"work2", b"unrelated"}


# --- A37


@pytest.mark.parametrize(("command", "code", "name"), [("true", 0, ""), ("echo hi > a.txt", 0, "a.txt")])
def test_A37_a_short_command_is_stored_all_the_same(
    remote: Machine, s3_proxy: FaultProxy, command: str, code: int, name: str
) -> None:
    s3_proxy.rule(Rule(delay_s=0.3))
    remote("run", "--command", command, code=code)
    s3_proxy.rule()
    assert remote.facts("status")["state"] == "complete"
    tree = read_tree(restored(remote))
    assert not name or name.encode() in tree


def test_A37_its_own_code_is_kept(remote: Machine, s3_proxy: FaultProxy) -> None:
    s3_proxy.rule(Rule(delay_s=0.3))
    remote("run", "--command", "echo x > b; exit 3", code=3)
    assert (restored(remote) / "b").read_text() == "x\n"


# --- A39


@pytest.mark.parametrize("trial", range(2))
def test_A39_done_is_said_when_the_store_has_it(rent: Rent, remote: Machine, s3_proxy: FaultProxy, trial: int) -> None:
    """The gate is what another machine sees: once it says complete, this one may vanish."""
    gate = rent("gate", remote=remote.remote, env={"AWS_ENDPOINT_URL": s3_proxy.endpoint, **_aws()}).init()
    command = [sys.executable, "-m", "spotwarp.demo.trainer", "--out", "out", "--steps", "4", "--save-every", "2"]
    program = remote.start("run", "--", *command)
    program.until(lambda: b"start at" in program.out, "the trainer")
    s3_proxy.rule(Rule(verb="PUT|POST", path="/packs/|/manifests/", delay_s=0.4 + trial))
    until(lambda: gate("status", "--json", code=None).json.get("state") == "complete", "the gate's yes", 90)
    remote.die()
    s3_proxy.rule()
    place = restored(gate)
    final = (place / "out/final/model.safetensors").read_bytes()
    assert f"final {hashlib.sha256(final).hexdigest()}".encode() in program.out


def _aws() -> dict[str, str]:
    return {
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": WRITER.access_key,
        "AWS_SECRET_ACCESS_KEY": WRITER.secret_key,
    }


# --- A41


def test_A41_a_tail_that_is_refused_is_no_success(remote: Machine, s3_proxy: FaultProxy) -> None:
    remote.file("work", os.urandom(50_000))
    program = remote.start("run", "--json", "--interval", "1h", "--command", COUNTING, env={"SPOTWARP_PATIENCE": "2s"})
    program.until(lambda: remote.snapshots(), "a first snapshot")
    s3_proxy.rule(Rule(verb="PUT|POST", path="spotwarp/.+", status=403, code="AccessDenied"))
    remote.file("tail", os.urandom(10_000))
    remote.file("go", "0")
    done = program.end(125, 60)
    facts = json.loads(done.err.splitlines()[-1])
    assert "tail" in facts["unstored"]
    assert "AccessDenied" in facts["error"]
    assert facts["sealed"] == ""
