"""The S3 store against a real server that is made to misbehave: recovered, or a typed error, and never short data."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock, SystemRng
from spotwarp.errors import (
    AlreadyExists,
    StoreDenied,
    StoreUnavailable,
    UsageError,
)
from spotwarp.persistence.store.s3 import S3Store
from spotwarp.persistence.store.url import open_store
from spotwarp.testing.clouds import patient
from spotwarp.testing.faultproxy import FaultProxy, Rule
from spotwarp.testing.seaweed import READER, WRITER, Seaweed, seaweed

CLOCK, RNG = SystemClock(), SystemRng()
Make = Callable[..., S3Store]


# ------------------------------------------------------------------------------------------ who may, and where


def test_an_unknown_key_is_denied(s3: Make) -> None:
    with pytest.raises(StoreDenied):
        s3(AWS_ACCESS_KEY_ID="nobody").put("a", b"")


def test_the_environments_own_variables_do_not_leak_in(s3: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-another-key")
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    store = s3()
    store.put_new("a", b"1")
    with pytest.raises(AlreadyExists):
        store.put_new("a", b"2")


def test_a_profile_gives_key_region_and_endpoint(seaweed_server: Seaweed, s3_url: str, tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(
        f"[work]\naws_access_key_id = {WRITER.access_key}\naws_secret_access_key = {WRITER.secret_key}\n"
    )
    (tmp_path / ".aws/config").write_text(
        f"[profile work]\nregion = us-east-1\nendpoint_url = {seaweed_server.endpoint}\n"
    )
    store = open_store(s3_url, clock=CLOCK, rng=RNG, env={"HOME": str(tmp_path), "AWS_PROFILE": "work"})
    store.put("a", b"1")
    assert store.get("a") == b"1"


def test_a_rewritten_profile_is_picked_up_when_the_key_expires(
    seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str, tmp_path: Path
) -> None:
    def write(access: str, secret: str) -> None:
        (tmp_path / "credentials").write_text(
            f"[default]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n"
        )

    env = {
        "HOME": str(tmp_path),
        "AWS_ENDPOINT_URL": s3_proxy.endpoint,
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
    }
    write(READER.access_key, READER.secret_key)
    bucket, _, prefix = s3_url.removeprefix("s3://").partition("/")
    store = S3Store(bucket, prefix, env=env, clock=CLOCK)
    s3_proxy.rule(Rule(status=400, code="ExpiredToken"))
    with pytest.raises(StoreDenied, match="ExpiredToken"):  # nothing newer in the file
        store.put("a", b"1")
    write(WRITER.access_key, WRITER.secret_key)
    s3_proxy.rule(Rule(status=400, code="ExpiredToken", times=1))
    patient(store).put("a", b"1")
    assert store.get("a") == b"1"


def test_no_credentials_at_all_is_said_at_once(seaweed_server: Seaweed, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "AWS_ENDPOINT_URL": seaweed_server.endpoint}
    with pytest.raises(StoreDenied) as caught:
        S3Store("spotwarp", "p", env=env, clock=CLOCK).get("a")
    assert "AWS_ACCESS_KEY_ID" in (caught.value.hint or "")


def test_an_untrusted_bundle_of_certificates_is_named(s3: Make, tmp_path: Path) -> None:
    store = s3(endpoint="https://127.0.0.1:1", AWS_CA_BUNDLE=str(tmp_path / "missing.pem"))
    with pytest.raises(StoreDenied) as caught:
        store.get("a")
    assert "AWS_CA_BUNDLE" in (caught.value.hint or "")
    (tmp_path / "junk.pem").write_text("-----BEGIN CERTIFICATE-----\njunk\n-----END CERTIFICATE-----\n")
    with pytest.raises(StoreDenied) as caught:
        s3(endpoint="https://127.0.0.1:1", AWS_CA_BUNDLE=str(tmp_path / "junk.pem")).get("a")
    assert "AWS_CA_BUNDLE" in (caught.value.hint or "")


@pytest.mark.parametrize(("status", "code"), [(501, "NotImplemented"), (401, "Unauthorized")])
def test_A24_no_newfangled_checksum_header_is_sent(s3: Make, s3_proxy: FaultProxy, status: int, code: str) -> None:
    s3_proxy.rule(Rule(verb="PUT|POST", reject_header="x-amz-checksum-", status=status, code=code))
    store = s3(endpoint=s3_proxy.endpoint)
    store.put("a", b"1")
    store.put_new("b", b"1")


# ------------------------------------------------------------------------------------------ storms and deaths


@pytest.mark.slow
def test_A20_a_storm_of_refusals_slows_everybody_and_loses_nothing(s3: Make, s3_proxy: FaultProxy) -> None:
    store = patient(s3(endpoint=s3_proxy.endpoint), budget_s=60)
    s3_proxy.rule(Rule(verb="PUT", status=503, code="SlowDown", times=40))
    bodies = {f"packs/{n:03d}": os.urandom(1000 + n) for n in range(40)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda item: store.put(*item), bodies.items()))
    puts = [each for each in s3_proxy.seen if each.verb == "PUT"]
    assert len(puts) == 80, "each refusal costs one try more, and no success is repeated"
    assert set(s3_proxy.acknowledged().values()) == {1}
    calm = (puts[39].at - puts[19].at) / 20
    assert calm > 0.015, f"the pace did not drop: {calm:.4f} s between requests in the storm"
    asked = len(s3_proxy.seen) - len(puts)
    assert asked <= 2 + (puts[-1].at - puts[0].at), "asking for the wait is no storm of its own"
    s3_proxy.rule()
    assert {meta.key: store.get(meta.key) for meta in store.list("packs")} == bodies


@pytest.mark.parametrize("status", [429, 503])
def test_the_wait_that_the_store_asks_for_is_kept_by_everybody(s3: Make, s3_proxy: FaultProxy, status: int) -> None:
    store = patient(s3(endpoint=s3_proxy.endpoint))
    s3_proxy.rule(Rule(status=status, code="SlowDown", headers={"Retry-After": "1"}, times=6))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: store.put(f"packs/{n}", b"x"), range(8)))
    seen = [each.at for each in s3_proxy.seen]
    asked = next(each.at for each in s3_proxy.seen if each.verb == "HEAD")
    early = [at for at in seen if asked + 0.2 < at < asked + 0.95]  # what was under way when it asked had left
    assert early == []
    assert len(s3_proxy.acknowledged()) == 8
    assert max(seen) - asked < 6


def test_a_longer_wait_than_may_be_tried_is_told_and_nothing_is_sent(s3: Make, s3_proxy: FaultProxy) -> None:
    store = patient(s3(endpoint=s3_proxy.endpoint), budget_s=5)
    s3_proxy.rule(Rule(status=503, code="SlowDown", headers={"Retry-After": "100"}))
    start = CLOCK.monotonic()
    with pytest.raises(StoreUnavailable):
        store.put("a", b"x")
    s3_proxy.forget()
    with pytest.raises(StoreUnavailable, match=r"left alone for (100|99) s"):
        store.put("a", b"x")
    assert CLOCK.monotonic() - start < 4
    assert s3_proxy.seen == []
    with pytest.raises(StoreUnavailable):
        store.with_budget(1).put("beat", b"x")  # a heartbeat is tried once
    assert [each.verb for each in s3_proxy.seen if each.verb == "PUT"] == ["PUT"]
    s3_proxy.rule()
    store.press_on()
    store.put("a", b"x")  # a machine in its last seconds does not wait


@pytest.mark.parametrize("off_s", [1200.0, -3600.0])
def test_A30_a_wrong_clock_is_told_with_its_error(s3: Make, s3_proxy: FaultProxy, off_s: float) -> None:
    date = format_datetime(CLOCK.wall() - timedelta(seconds=off_s), usegmt=True)
    s3_proxy.rule(Rule(status=403, code="RequestTimeTooSkewed", headers={"Date": date}))
    with pytest.raises(StoreDenied) as caught:
        s3(endpoint=s3_proxy.endpoint).put("a", b"x")
    found = re.search(r"clock is ([+-]\d+) s off", caught.value.message)
    assert found, caught.value.message
    assert abs(float(found[1]) - off_s) <= 2
    assert "clock" in (caught.value.hint or "")


def test_A30_each_try_is_signed_anew(s3: Make, s3_proxy: FaultProxy) -> None:
    """Refused for its age, a request is signed again when it is sent again, and nothing acknowledged is repeated."""
    store = patient(s3(endpoint=s3_proxy.endpoint))
    s3_proxy.rule(Rule(verb="PUT", status=403, code="RequestTimeTooSkewed", skip=3, times=5))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda n: store.put(f"packs/{n}", os.urandom(50_000)), range(10)))
    assert s3_proxy.acknowledged("/packs/") == {key: 1 for key in s3_proxy.acknowledged("/packs/")}
    assert len(s3_proxy.acknowledged("/packs/")) == 10


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Seaweed]:
    """A server of one's own, to kill."""
    with seaweed(tmp_path / "seaweed") as server:
        yield server


@pytest.mark.slow
def test_what_was_acknowledged_survives_the_servers_death(mortal: Seaweed) -> None:
    store = S3Store("spotwarp", "p", env=mortal.env(), clock=CLOCK)
    acknowledged: list[tuple[str, bytes]] = []
    enough = threading.Event()

    def write(writer: int) -> None:
        for n in range(10_000):
            key, body = f"packs/{writer}-{n:04d}", os.urandom(5000 + n)
            try:
                store.put_new(key, body)
            except StoreUnavailable:
                return
            acknowledged.append((key, body))
            if len(acknowledged) > 100:
                enough.set()

    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, writer) for writer in range(4)]
        assert enough.wait(60)
        mortal.kill()
        for writer in writers:
            writer.result(timeout=60)
    with pytest.raises(StoreUnavailable):
        store.get(acknowledged[0][0])
    mortal.start()
    again = patient(store)
    assert all(again.get(key) == body for key, body in acknowledged)


@pytest.mark.slow
def test_a_put_waits_out_a_restart(mortal: Seaweed) -> None:
    store = patient(S3Store("spotwarp", "p", env=mortal.env(), clock=CLOCK), budget_s=60)
    store.put("before", b"1")
    mortal.kill()
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(store.put, "after", b"2")
        mortal.start()
        pending.result(timeout=60)
    assert store.get("after") == b"2"
    assert store.get("before") == b"1"


# ------------------------------------------------------------------------------------------ settings


def test_A25_an_endpoint_by_address_stays_path_style(s3: Make, s3_proxy: FaultProxy) -> None:
    s3(endpoint=s3_proxy.endpoint).put("a", b"1")
    assert all(seen.path.startswith("/spotwarp/") for seen in s3_proxy.seen)


def test_a_plain_http_endpoint_elsewhere_is_refused(s3: Make) -> None:
    with pytest.raises(UsageError):
        s3(endpoint="http://storage.example.org")


def test_a_server_that_does_not_speak_tls_is_said_to(seaweed_server: Seaweed) -> None:
    plain = seaweed_server.env()
    env = {**plain, "AWS_ENDPOINT_URL": plain["AWS_ENDPOINT_URL"].replace("http://", "https://")}
    with pytest.raises(StoreUnavailable, match="does not speak TLS") as caught:
        S3Store("spotwarp", "p", env=env, clock=CLOCK).get("a")
    assert "http://" in (caught.value.hint or "")
