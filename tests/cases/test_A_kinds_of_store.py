"""Cases A of what differs between stores: names, spellings, headers, addresses, limits, and what a kill leaves there.

Stores that cannot run here are emulated by their documented behaviour, through a proxy before a real server.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest

from spotwarp.clock import SystemClock, SystemRng
from spotwarp.testing.azurite import Azurite
from spotwarp.testing.clouds import BUCKET, Cloud
from spotwarp.testing.faultproxy import FaultProxy, Rule, fault_proxy
from spotwarp.testing.product import Machine
from spotwarp.testing.pytest_clouds import azurite_server, ceph_cluster, find_cloud, gcs_server
from spotwarp.testing.pytest_product import bucket, rent, ws
from spotwarp.testing.pytest_seaweed import s3_proxy, s3_url, seaweed_server
from spotwarp.testing.seaweed import REGION, WRITER, Seaweed

__all__ = [
    "azurite_server",
    "bucket",
    "ceph_cluster",
    "gcs_server",
    "rent",
    "s3_proxy",
    "s3_url",
    "seaweed_server",
    "ws",
]

pytestmark = pytest.mark.slow

Rent = Callable[..., Machine]
MIB = 1024 * 1024


@pytest.fixture
def env(seaweed_server: Seaweed, s3_proxy: FaultProxy) -> dict[str, str]:
    """The variables that lead through the proxy."""
    return seaweed_server.env(endpoint=s3_proxy.endpoint)


@pytest.fixture(params=["s3", "azure"])
def behind(request: pytest.FixtureRequest) -> Iterator[tuple[Cloud, FaultProxy]]:
    """A server, and a proxy before it."""
    cloud = find_cloud(request.param, request)
    with fault_proxy(cloud.port) as proxy:
        yield cloud, proxy


# --- A13, A14: names


def test_A13_a_long_path_is_stored_where_keys_may_have_1024_bytes(
    rent: Rent, env: dict[str, str], s3_proxy: FaultProxy, s3_url: str, tmp_path: Path
) -> None:
    s3_proxy.rule(Rule(verb="PUT|POST", max_key=1024, status=400, code="KeyTooLongError"))
    machine = rent(remote=f"{s3_url}/{'p' * 480}", env=env).init()
    name = "/".join(["d" * 100] * 10) + "/" + "f" * 100
    assert len(name) > 1100
    machine.file(name, "deep")
    machine("sync")
    machine("restore", "--to", str(tmp_path / "out"))
    assert (tmp_path / "out" / name).read_text() == "deep"
    assert max(len(seen.key) for seen in s3_proxy.seen) < 1024


def test_A13_a_store_with_shorter_keys_is_refused_at_init(
    rent: Rent, env: dict[str, str], s3_proxy: FaultProxy, s3_url: str
) -> None:
    s3_proxy.rule(Rule(verb="PUT|POST", max_key=100, status=400, code="KeyTooLongError"))
    said = rent(remote=s3_url, env=env)("init", "--remote-path", s3_url, code=17).err
    assert "long name" in said
    assert "KeyTooLongError" in said


def test_A14_names_that_differ_by_case_come_back_both(
    rent: Rent, env: dict[str, str], s3_url: str, tmp_path: Path
) -> None:
    machine = rent(remote=s3_url, env=env).init()
    machine.file("Model.bin", os.urandom(300_000))
    machine.file("model.bin", os.urandom(300_000))
    machine("sync")
    machine("restore", "--to", str(tmp_path / "out"))
    for name in ("Model.bin", "model.bin"):
        assert (tmp_path / "out" / name).read_bytes() == (machine.path / name).read_bytes()


# --- A18, A28, A29: what a killed upload leaves, and how large it may be


def test_A18_A28_a_kill_in_the_middle_of_an_upload_leaves_nothing_and_foreign_uploads_stay(
    rent: Rent, behind: tuple[Cloud, FaultProxy], request: pytest.FixtureRequest
) -> None:
    cloud, proxy = behind
    begin, unfinished = _foreign_uploads(cloud, request)
    begin()
    before = unfinished()
    assert len(before) == 1
    machine = rent(remote=cloud.url, env=cloud.env(proxy.endpoint)).init()
    for number in range(4):
        machine.file(f"data/{number}", os.urandom(10 * MIB))
    proxy.rule(Rule(verb="PUT", path="packs", skip=1, hang=True))
    upload = machine.start("sync")
    assert proxy.wait_seen(2, verb="PUT", path="packs")
    machine.die()
    upload.process.wait(20)
    assert unfinished() == before
    proxy.rule()
    machine("sync", "--takeover")
    machine("prune", "--grace", "0s")
    machine("check", "--read-data")
    assert unfinished() == before


def _foreign_uploads(
    cloud: Cloud, request: pytest.FixtureRequest
) -> tuple[Callable[[], object], Callable[[], list[str]]]:
    """How somebody else begins an upload of parts below the same prefix, and what is unfinished below it."""
    name = f"{cloud.prefix}/runs/main/packs/1-{SystemRng().token(16)}"
    if cloud.name == "azure":
        server: Azurite = request.getfixturevalue("azurite_server")

        def stage() -> None:
            status, _ = server.request("PUT", f"/{BUCKET}/{name}?blockid=QUFB&comp=block", b"x" * 100)
            assert status == 201

        return stage, lambda: [found for found in server.uncommitted(BUCKET) if found.startswith(cloud.prefix)]
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{cloud.port}",
        region_name=REGION,
        aws_access_key_id=WRITER.access_key,
        aws_secret_access_key=WRITER.secret_key,
    )

    def unfinished() -> list[str]:
        listed = client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        return [each["Key"] for each in listed if each["Key"].startswith(cloud.prefix)]

    return lambda: client.create_multipart_upload(Bucket=BUCKET, Key=name), unfinished


def test_A28_an_orphan_that_still_uploads_harms_nobody(rent: Rent, request: pytest.FixtureRequest) -> None:
    """The first uploader is frozen in the middle and goes on when another has taken over: no name is used twice."""
    cloud = find_cloud("azure", request)
    with fault_proxy(cloud.port) as proxy, fault_proxy(cloud.port) as other:
        first = rent("first", remote=cloud.url, env=cloud.env(proxy.endpoint)).init()
        first.file("data", os.urandom(10 * MIB))
        proxy.rule(Rule(verb="PUT", path="packs", delay_s=1.0))
        orphan = first.start("sync")
        assert proxy.wait_seen(1, verb="PUT", path="packs")
        orphan.send(signal.SIGSTOP)
        second = rent("second", remote=cloud.url, env=cloud.env(other.endpoint)).init()
        second.file("data", os.urandom(10 * MIB))
        second("sync", "--takeover")
        orphan.send(signal.SIGCONT)
        assert orphan.end().code == 13, orphan.err
        names = [
            {seen.path for seen in side.seen if seen.verb == "PUT" and "packs" in seen.path} for side in (proxy, other)
        ]
        assert all(names)
        assert not names[0] & names[1]
        second("sync")
        second("prune", "--grace", "0s")
        second("check", "--read-data")


def test_A29_no_count_of_parts_can_run_out(
    rent: Rent, env: dict[str, str], s3_proxy: FaultProxy, s3_url: str, tmp_path: Path
) -> None:
    """A store that takes no part at all: a large file is many objects of a bounded size, however large it is."""
    s3_proxy.rule(Rule(path="partNumber=|uploads", status=400, code="InvalidArgument"))
    machine = rent(remote=s3_url, env=env).init()
    data = os.urandom(70 * MIB)
    machine.file("large", data)
    machine("sync")
    machine("restore", "--to", str(tmp_path / "out"))
    assert (tmp_path / "out/large").read_bytes() == data
    sent = [seen.length for seen in s3_proxy.seen if seen.verb == "PUT"]
    assert max(sent) < 48 * MIB
    assert sum(sent) < 1.1 * len(data)


# --- A23: slashes


def test_A23_what_one_spelling_stores_every_other_finds(
    rent: Rent, env: dict[str, str], s3_url: str, tmp_path: Path
) -> None:
    first = rent("first", remote=f"{s3_url}/p/", env=env).init()
    first.file("a", "x")
    first("sync")
    stored = first.snapshots()
    assert len(stored) == 1
    for number, spelling in enumerate(("/p", "./p//")):  # the contract suite has them all
        other = rent(f"other-{number}", remote=f"{s3_url}/{spelling}", env=env).init()
        assert other.snapshots() == stored
    elsewhere = rent("elsewhere", remote=f"{s3_url}/", env=env).init()
    assert elsewhere.snapshots() == []
    for nonsense in ("s3://", "s3:///p", "s3://b/../p", "gs://B/p", "az://a--b/p", "p4://b/p"):
        assert "hint:" in rent("none")("init", "--remote-path", nonsense, code=2).err


# --- A24: headers; and the stores that are known for what they refuse

R2 = [
    Rule(reject_header=name, status=501, code="NotImplemented")
    for name in ("x-amz-checksum-", "x-amz-acl", "x-amz-tagging")
]


def test_A24_a_store_that_takes_no_new_headers_works_out_of_the_box(
    rent: Rent, env: dict[str, str], s3_proxy: FaultProxy, s3_url: str, tmp_path: Path
) -> None:
    s3_proxy.rule(*R2)
    machine = rent(remote=s3_url, env=env).init()
    machine.file("a", os.urandom(2 * MIB))
    machine("sync")
    machine("check", "--read-data")
    machine("restore", "--to", str(tmp_path / "out"))
    assert (tmp_path / "out/a").read_bytes() == (machine.path / "a").read_bytes()


def test_a_store_without_conditional_writes_is_refused_in_seconds_and_works_for_a_single_writer(
    rent: Rent, env: dict[str, str], s3_proxy: FaultProxy, s3_url: str
) -> None:
    """As B2 answers: 501 to a PUT with If-None-Match."""
    s3_proxy.rule(Rule(verb="PUT", reject_header="if-none-match", status=501, code="NotImplemented"))
    machine = rent(remote=s3_url, env=env)
    begin = SystemClock().monotonic()
    said = machine("init", "--remote-path", s3_url, code=19).err
    assert SystemClock().monotonic() - begin < 30
    assert "--single-writer" in said
    assert "lacks create-if-absent" in said
    machine("init", "--remote-path", s3_url, "--single-writer")
    machine.file("a", "x")
    machine("run", "--command", "echo y > b")
    machine("check", "--read-data")
    assert machine.facts("status")["state"] == "complete"


# --- A25: endpoint, region, addressing


@pytest.mark.parametrize("where", ["variable", "profile", "services"])
def test_A25_an_endpoint_is_found_wherever_it_is_set(
    rent: Rent, seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str, tmp_path: Path, where: str
) -> None:
    home = tmp_path / "home"
    (home / ".aws").mkdir(parents=True)
    key = f"aws_access_key_id = {WRITER.access_key}\naws_secret_access_key = {WRITER.secret_key}\n"
    (home / ".aws/credentials").write_text(f"[work]\n{key}")
    profile = f"[profile work]\nregion = {REGION}\n"
    env = {"HOME": str(home), "AWS_PROFILE": "work"}
    if where == "variable":
        env |= {"AWS_ENDPOINT_URL_S3": s3_proxy.endpoint, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    elif where == "profile":
        profile += f"endpoint_url = {s3_proxy.endpoint}\n"
    else:
        profile += f"services = own\n[services own]\ns3 =\n  endpoint_url = {s3_proxy.endpoint}\n"
    (home / ".aws/config").write_text(profile)
    made = rent(remote=s3_url, env=env).facts("init", "--remote-path", s3_url)
    assert made["effective"] == {"endpoint": s3_proxy.endpoint, "region": REGION, "addressing": "path"}
    assert {seen.path[: len(BUCKET) + 1] for seen in s3_proxy.seen} == {f"/{BUCKET}"}


@pytest.mark.parametrize(
    ("rule", "code", "setting"),
    [
        (Rule(status=301, code="PermanentRedirect"), 10, "AWS_REGION"),
        (Rule(status=400, code="AuthorizationHeaderMalformed"), 10, "AWS_REGION"),
        pytest.param(Rule(hang=True), 17, "AWS_ENDPOINT_URL", marks=pytest.mark.deep),
        (Rule(status=404, code="NotS3"), 17, "AWS_ENDPOINT_URL"),
    ],
    ids=["region", "signature", "silence", "no-store"],
)
def test_A25_a_wrong_setting_is_named_within_half_a_minute(
    rent: Rent, env: dict[str, str], s3_proxy: FaultProxy, s3_url: str, rule: Rule, code: int, setting: str
) -> None:
    s3_proxy.rule(rule)
    begin = SystemClock().monotonic()
    assert setting in rent(remote=s3_url, env=env)("init", "--remote-path", s3_url, code=code).err
    assert SystemClock().monotonic() - begin < 30 + 20  # a slow machine
