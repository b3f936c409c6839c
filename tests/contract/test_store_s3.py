"""The S3 store against a real server that is made to misbehave: recovered, or a typed error, and never short data."""

from __future__ import annotations

import os
import re
import socket
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
    BucketMissing,
    ObjectMissing,
    StoreConflict,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnsupported,
    UsageError,
)
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.store.probe import probe
from spotwarp.persistence.store.retrying import RetryingStore, RetryPolicy
from spotwarp.persistence.store.s3 import S3Store
from spotwarp.persistence.store.url import open_store
from spotwarp.retry import Backoff
from spotwarp.testing.faultproxy import FaultProxy, Rule
from spotwarp.testing.seaweed import READER, WRITER, Seaweed, seaweed

CLOCK, RNG = SystemClock(), SystemRng()
Make = Callable[..., S3Store]


def every_verb(store: Store) -> list[Callable[[], object]]:
    return [
        lambda: store.put("a", b"x"),
        lambda: store.put_new("b", b"x"),
        lambda: store.get("a"),
        lambda: store.get_range("a", 0, 1),
        lambda: store.head("a"),
        lambda: store.list("p"),
        lambda: store.delete("a"),
    ]


def patient(store: Store, budget_s: float = 30.0) -> RetryingStore:
    return RetryingStore(store, clock=CLOCK, rng=RNG, policy=RetryPolicy(budget_s, Backoff(first_s=0.005, cap_s=0.1)))


# ------------------------------------------------------------------------------------------ who may, and where


def test_a_wrong_secret_is_denied_by_every_verb(s3: Make) -> None:
    for verb in every_verb(s3(AWS_SECRET_ACCESS_KEY="wrong")):
        with pytest.raises(StoreDenied) as caught:
            verb()
        assert "AWS_SECRET_ACCESS_KEY" in (caught.value.hint or "")
        assert WRITER.secret_key not in str(caught.value)


def test_an_unknown_key_is_denied(s3: Make) -> None:
    with pytest.raises(StoreDenied):
        s3(AWS_ACCESS_KEY_ID="nobody").put("a", b"")


def test_a_missing_bucket_is_said_by_every_verb(s3: Make) -> None:
    for verb in every_verb(s3("no-such-bucket")):
        with pytest.raises(BucketMissing):
            verb()


def test_a_key_that_may_only_read_reads_and_is_denied_the_rest(s3: Make) -> None:
    s3().put("a", b"1")
    reader = s3(AWS_ACCESS_KEY_ID=READER.access_key, AWS_SECRET_ACCESS_KEY=READER.secret_key)
    assert reader.get("a") == b"1"
    for verb in (lambda: reader.put("a", b""), lambda: reader.put_new("b", b""), lambda: reader.delete("a")):
        with pytest.raises(StoreDenied):
            verb()
    with pytest.raises(StoreDenied, match="cannot write"):
        probe(reader, clock=CLOCK, rng=RNG)


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


def test_a_wrong_port_or_name_is_unavailable(s3: Make) -> None:
    with socket.socket() as held:  # bound, not listening: refuses
        held.bind(("127.0.0.1", 0))
        for verb in every_verb(s3(endpoint=f"http://127.0.0.1:{held.getsockname()[1]}")):
            with pytest.raises(StoreUnavailable, match="refuses connections"):
                verb()


def test_an_untrusted_bundle_of_certificates_is_named(s3: Make, tmp_path: Path) -> None:
    store = s3(endpoint="https://127.0.0.1:1", AWS_CA_BUNDLE=str(tmp_path / "missing.pem"))
    with pytest.raises(StoreDenied) as caught:
        store.get("a")
    assert "AWS_CA_BUNDLE" in (caught.value.hint or "")
    (tmp_path / "junk.pem").write_text("-----BEGIN CERTIFICATE-----\njunk\n-----END CERTIFICATE-----\n")
    with pytest.raises(StoreDenied) as caught:
        s3(endpoint="https://127.0.0.1:1", AWS_CA_BUNDLE=str(tmp_path / "junk.pem")).get("a")
    assert "AWS_CA_BUNDLE" in (caught.value.hint or "")


def test_a_prefix_is_kept_to_the_letter(seaweed_server: Seaweed) -> None:
    token = RNG.token(4)
    deep = S3Store("spotwarp", f"{token}/my proj/a+b=c%20d", env=seaweed_server.env(), clock=CLOCK)
    deep.put("runs/main/hint", b"1")
    assert [meta.key for meta in deep.list("runs")] == ["runs/main/hint"]
    bare = S3Store("spotwarp", token, env=seaweed_server.env(), clock=CLOCK)
    assert bare.get("my proj/a+b=c%20d/runs/main/hint") == b"1"


# ------------------------------------------------------------------------------------------ what answers mean


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (301, "PermanentRedirect", BucketMissing),
        (400, "AuthorizationHeaderMalformed", BucketMissing),
        (400, "InvalidArgument", StoreError),
        (400, "RequestTimeout", StoreUnavailable),
        (400, "BadDigest", StoreUnavailable),
        (401, "Unauthorized", StoreDenied),
        (403, "AccessDenied", StoreDenied),
        (403, "RequestTimeTooSkewed", StoreUnavailable),
        (404, "NoSuchBucket", BucketMissing),
        (404, "NotS3AtAll", StoreUnavailable),
        (409, "ConditionalRequestConflict", StoreConflict),
        (409, "OperationAborted", StoreConflict),
        (429, "TooManyRequests", StoreUnavailable),
        (500, "InternalError", StoreUnavailable),
        (501, "NotImplemented", StoreUnsupported),
        (503, "SlowDown", StoreUnavailable),
        (507, "QuotaExceeded", StoreFull),
    ],
)
def test_every_answer_has_its_error_whatever_the_verb(
    s3: Make, s3_proxy: FaultProxy, status: int, code: str, error: type[StoreError]
) -> None:
    store = s3(endpoint=s3_proxy.endpoint)
    s3_proxy.rule(Rule(status=status, code=code))
    for verb in every_verb(store):
        with pytest.raises(StoreError) as caught:
            verb()
        assert type(caught.value) is error
        assert "injected" not in str(caught.value)


def test_a_conflict_is_not_a_taken_name(s3: Make, s3_proxy: FaultProxy) -> None:
    store = s3(endpoint=s3_proxy.endpoint)
    s3_proxy.rule(Rule(verb="PUT", status=409, code="ConditionalRequestConflict", times=1))
    with pytest.raises(StoreConflict):
        store.put_new("a", b"1")
    with pytest.raises(ObjectMissing):
        store.get("a")
    store.put_new("a", b"1")


# ------------------------------------------------------------------------------------------ silence, and lies


def test_a_lost_reply_leaves_what_was_created(s3: Make, s3_proxy: FaultProxy) -> None:
    store = s3(endpoint=s3_proxy.endpoint)
    s3_proxy.rule(Rule(verb="PUT", lose_reply=True, times=1))
    with pytest.raises(StoreUnavailable):
        store.put_new("a", b"mine")
    assert store.get("a") == b"mine"
    with pytest.raises(AlreadyExists):
        store.put_new("a", b"again")
    assert sum(seen.verb == "PUT" for seen in s3_proxy.seen) == 2, "a create was repeated behind the caller's back"


def test_a_request_cut_on_its_way_leaves_nothing(s3: Make, s3_proxy: FaultProxy) -> None:
    store = s3(endpoint=s3_proxy.endpoint)
    s3_proxy.rule(Rule(verb="PUT", cut_request=1000, times=1))
    with pytest.raises(StoreUnavailable):
        store.put_new("a", b"x" * 300_000)
    with pytest.raises(ObjectMissing):
        store.get("a")
    assert list(store.list("")) == []


@pytest.mark.parametrize("kind", ["cut_reply", "shorten_reply"])
@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_a_truncated_answer_never_passes_for_the_object(s3: Make, s3_proxy: FaultProxy, kind: str, size: int) -> None:
    store = s3(endpoint=s3_proxy.endpoint)
    body = os.urandom(300_000)
    store.put("a", body)
    s3_proxy.rule(Rule(verb="GET", **{kind: size}))
    with pytest.raises(StoreUnavailable):
        store.get_range("a", 100, 200_000)
    with pytest.raises(StoreUnavailable):
        store.list("") if size < 100 else store.get_range("a", 0, 150_000)
    if kind == "cut_reply":
        with pytest.raises(StoreUnavailable):
            store.get("a")
    s3_proxy.rule(Rule(verb="GET", times=3, **{kind: size}))
    assert patient(store).get_range("a", 100, 200_000) == body[100:200_100]
    s3_proxy.rule(Rule(verb="GET", cut_reply=size, times=3))
    assert patient(store).get("a") == body


def test_a_hanging_server_is_given_up_on(s3: Make, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotwarp.persistence.store.remote.SMALL_S", 0.5)
    store = s3(endpoint=s3_proxy.endpoint)
    s3_proxy.rule(Rule(hang=True))
    start = CLOCK.monotonic()
    for verb in every_verb(store):
        with pytest.raises(StoreUnavailable):
            verb()
    assert CLOCK.monotonic() - start < 10


def test_the_probe_ends_at_its_deadline_and_names_the_setting(s3: Make, s3_proxy: FaultProxy) -> None:
    s3_proxy.rule(Rule(hang=True))
    start = CLOCK.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        probe(s3(endpoint=s3_proxy.endpoint), clock=CLOCK, rng=RNG, deadline_s=1.0)
    assert CLOCK.monotonic() - start < 4
    assert "AWS_ENDPOINT_URL" in (caught.value.hint or "")


def test_a_store_that_ignores_the_condition_is_refused(seaweed_server: Seaweed) -> None:
    class Ignoring(S3Store):
        put_new = S3Store.put  # the header is signed, so that only a client can leave it away

    prefix = RNG.token(8)
    result = probe(Ignoring("spotwarp", prefix, env=seaweed_server.env(), clock=CLOCK), clock=CLOCK, rng=RNG)
    assert result.create_if_absent == "ignored"
    with pytest.raises(StoreUnsupported, match="ignores create-if-absent"):
        result.require()


def test_a_store_that_refuses_the_condition_is_refused(s3: Make, s3_proxy: FaultProxy) -> None:
    s3_proxy.rule(Rule(verb="PUT", reject_header="if-none-match", status=501, code="NotImplemented"))
    result = probe(s3(endpoint=s3_proxy.endpoint), clock=CLOCK, rng=RNG)
    assert result.create_if_absent == "unsupported"
    with pytest.raises(StoreUnsupported, match="refuses create-if-absent"):
        result.require()


def test_A24_no_newfangled_checksum_header_is_sent(s3: Make, s3_proxy: FaultProxy) -> None:
    s3_proxy.rule(Rule(verb="PUT|POST", reject_header="x-amz-checksum-", status=501, code="NotImplemented"))
    store = s3(endpoint=s3_proxy.endpoint)
    store.put("a", b"1")
    store.put_new("b", b"1")


# ------------------------------------------------------------------------------------------ storms and deaths


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
    with pytest.raises(StoreUnavailable) as caught:
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


def test_A26_a_key_that_may_be_rewritten_only_now_and_then(s3: Make, s3_proxy: FaultProxy) -> None:
    store = patient(s3(endpoint=s3_proxy.endpoint))
    s3_proxy.rule(Rule(verb="PUT", min_gap_s=0.3, status=429, code="TooManyRequests"))
    for n in range(3):
        store.put("beats/a", b"%d" % n)
    assert store.get("beats/a") == b"2"
    assert len(s3_proxy.seen) > 4


def test_A31_the_stores_time_is_told_as_it_is(s3: Make, s3_proxy: FaultProxy) -> None:
    store = s3(endpoint=s3_proxy.endpoint)
    store.put("a", b"1")
    s3_proxy.rule(Rule(last_modified="Tue, 01 Jan 2030 00:00:00 GMT"))
    assert store.head("a").modified.year == 2030
    assert store.get("a") == b"1"


def test_setting_cancel_ends_the_waiting(s3: Make, s3_proxy: FaultProxy) -> None:
    cancel = threading.Event()
    store = RetryingStore(s3(endpoint=s3_proxy.endpoint), clock=CLOCK, rng=RNG, cancel=cancel)
    s3_proxy.rule(Rule(status=503, code="SlowDown"))
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(store.put, "a", b"1")
        assert s3_proxy.wait_seen(2)
        cancel.set()
        with pytest.raises(StoreUnavailable):
            pending.result(timeout=10)


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


@pytest.mark.parametrize("spelling", ["p", "p/", "/p", "p//", "./p", "p/."])
def test_A23_every_spelling_of_a_prefix_is_one_place(seaweed_server: Seaweed, s3_url: str, spelling: str) -> None:
    canonical = open_store(f"{s3_url}/p", clock=CLOCK, rng=RNG, env=seaweed_server.env())
    other = open_store(f"{s3_url}/{spelling}", clock=CLOCK, rng=RNG, env=seaweed_server.env())
    other.put("config", spelling.encode())
    assert canonical.get("config") == spelling.encode()
    assert canonical.url == other.url


def test_A25_an_endpoint_by_address_stays_path_style(s3: Make, s3_proxy: FaultProxy) -> None:
    s3(endpoint=s3_proxy.endpoint).put("a", b"1")
    assert all(seen.path.startswith("/spotwarp/") for seen in s3_proxy.seen)


def test_a_plain_http_endpoint_elsewhere_is_refused(s3: Make) -> None:
    with pytest.raises(UsageError):
        s3(endpoint="http://storage.example.org")
