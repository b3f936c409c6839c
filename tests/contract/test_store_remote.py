"""Every kind of bucket, its server made to misbehave: recovered, or a typed error, and never short data."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

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
)
from spotwarp.persistence.store.probe import probe
from spotwarp.persistence.store.retrying import RetryingStore
from spotwarp.persistence.store.url import open_store
from spotwarp.testing.clouds import BUCKET, Cloud, every_verb, gcs_cloud, patient
from spotwarp.testing.faultproxy import FaultProxy, Rule
from spotwarp.testing.gcs import gcs_double

CLOCK, RNG = SystemClock(), SystemRng()


# ------------------------------------------------------------------------------------------ who may, and where


def test_a_wrong_key_is_denied_by_every_verb(cloud: Cloud) -> None:
    for verb in every_verb(cloud.store(None, cloud.wrong_key)):
        with pytest.raises(StoreDenied) as caught:
            verb()
        assert cloud.setting in (caught.value.hint or "")
        assert cloud.secret not in str(caught.value)


def test_a_missing_bucket_is_said_by_every_verb(cloud: Cloud) -> None:
    store = cloud.store(url=cloud.url.replace(BUCKET, "no-such-bucket"))
    for verb in every_verb(store):
        with pytest.raises(BucketMissing):
            verb()


def test_who_may_only_read_reads_and_is_denied_the_rest(cloud: Cloud) -> None:
    if cloud.reader is None:
        assert cloud.name == "ceph"
        return
    cloud.store().put("a", b"1")
    reader = cloud.store(None, cloud.reader)
    assert reader.get("a") == b"1"
    assert [meta.key for meta in reader.list("")] == ["a"]
    for verb in (lambda: reader.put("a", b""), lambda: reader.put_new("b", b""), lambda: reader.delete("a")):
        with pytest.raises(StoreDenied):
            verb()
    with pytest.raises(StoreDenied, match="cannot write"):
        probe(reader, clock=CLOCK, rng=RNG)


def test_a_wrong_port_is_unavailable(cloud: Cloud) -> None:
    with socket.socket() as held:  # bound, not listening: refuses
        held.bind(("127.0.0.1", 0))
        for verb in every_verb(cloud.store(f"http://127.0.0.1:{held.getsockname()[1]}")):
            with pytest.raises(StoreUnavailable, match="refuses connections"):
                verb()


def test_a_prefix_is_kept_to_the_letter(cloud: Cloud) -> None:
    deep = cloud.store(url=f"{cloud.url}/my proj/a+b=c%20d")
    deep.put("runs/main/hint", b"1")
    assert [meta.key for meta in deep.list("runs")] == ["runs/main/hint"]
    assert cloud.store().get("my proj/a+b=c%20d/runs/main/hint") == b"1"


@pytest.mark.parametrize("spelling", ["p", "p/", "/p", "p//", "./p", "p/."])
def test_A23_every_spelling_of_a_prefix_is_one_place(cloud: Cloud, spelling: str) -> None:
    canonical = open_store(f"{cloud.url}/p", clock=CLOCK, rng=RNG, env=cloud.env())
    other = open_store(f"{cloud.url}/{spelling}", clock=CLOCK, rng=RNG, env=cloud.env())
    other.put("config", spelling.encode())
    assert canonical.get("config") == spelling.encode()
    assert canonical.url == other.url


# ------------------------------------------------------------------------------------------ what answers mean

ANSWERS: dict[str, list[tuple[int, str, type[StoreError]]]] = {
    "s3": [
        (301, "PermanentRedirect", BucketMissing),
        (400, "AuthorizationHeaderMalformed", BucketMissing),
        (400, "InvalidArgument", StoreError),
        (400, "RequestTimeout", StoreUnavailable),
        (400, "BadDigest", StoreUnavailable),
        (401, "Unauthorized", StoreDenied),
        (403, "AccessDenied", StoreDenied),
        (403, "RequestTimeTooSkewed", StoreUnavailable),
        (404, "NoSuchBucket", BucketMissing),
        (409, "ConditionalRequestConflict", StoreConflict),
        (409, "OperationAborted", StoreConflict),
        (507, "QuotaExceeded", StoreFull),
    ],
    "gs": [
        (400, "BadDigest", StoreUnavailable),
        (400, "InvalidArgument", StoreError),
        (401, "AuthenticationRequired", StoreDenied),
        (403, "AccessDenied", StoreDenied),
        (403, "AccountProblem", StoreDenied),
        (403, "QuotaExceeded", StoreFull),
        (404, "NoSuchBucket", BucketMissing),
        (408, "RequestTimeout", StoreUnavailable),
        (409, "Conflict", StoreConflict),
    ],
    "az": [
        (400, "Md5Mismatch", StoreUnavailable),
        (400, "InvalidHeaderValue", StoreError),
        (401, "NoAuthenticationInformation", StoreDenied),
        (403, "AuthenticationFailed", StoreDenied),
        (403, "AuthorizationPermissionMismatch", StoreDenied),
        (403, "AccountIsDisabled", StoreDenied),
        (404, "ContainerNotFound", BucketMissing),
        (409, "ContainerBeingDeleted", BucketMissing),
        (409, "LeaseAlreadyPresent", StoreConflict),
        (412, "LeaseIdMissing", StoreUnavailable),
        (500, "OperationTimedOut", StoreUnavailable),
        (503, "ServerBusy", StoreUnavailable),
    ],
}
EVERYWHERE: list[tuple[int, str, type[StoreError]]] = [
    (404, "NotAStoreAtAll", StoreUnavailable),
    (429, "TooManyRequests", StoreUnavailable),
    (500, "InternalError", StoreUnavailable),
    (501, "NotImplemented", StoreUnsupported),
    (503, "SlowDown", StoreUnavailable),
]


def test_every_answer_has_its_error_whatever_the_verb(cloud: Cloud, proxy: FaultProxy) -> None:
    store = cloud.store(proxy.endpoint)
    for status, code, error in ANSWERS[cloud.scheme] + EVERYWHERE:
        proxy.rule(Rule(status=status, code=code))
        for number, verb in enumerate(every_verb(store)):
            with pytest.raises(StoreError) as caught:
                verb()
            assert type(caught.value) is error, (status, code, number, caught.value)
            assert "injected" not in str(caught.value)


def test_a_conflict_is_not_a_taken_name(cloud: Cloud, proxy: FaultProxy) -> None:
    store = cloud.store(proxy.endpoint)
    proxy.rule(Rule(verb="PUT", status=409, code="ConditionalRequestConflict", times=1))
    with pytest.raises(StoreConflict):
        store.put_new("a", b"1")
    with pytest.raises(ObjectMissing):
        store.get("a")
    store.put_new("a", b"1")


# ------------------------------------------------------------------------------------------ silence, and lies


def test_a_lost_reply_leaves_what_was_created(cloud: Cloud, proxy: FaultProxy) -> None:
    store = cloud.store(proxy.endpoint)
    proxy.rule(Rule(verb="PUT", lose_reply=True, times=1))
    with pytest.raises(StoreUnavailable):
        store.put_new("a", b"mine")
    assert store.get("a") == b"mine"
    with pytest.raises(AlreadyExists):
        store.put_new("a", b"again")
    assert sum(seen.verb == "PUT" for seen in proxy.seen) == 2, "a create was repeated behind the caller's back"


def test_a_request_cut_on_its_way_leaves_nothing(cloud: Cloud, proxy: FaultProxy) -> None:
    store = cloud.store(proxy.endpoint)
    proxy.rule(Rule(verb="PUT", cut_request=1000, times=1))
    with pytest.raises(StoreUnavailable):
        store.put_new("a", b"x" * 300_000)
    with pytest.raises(ObjectMissing):
        store.get("a")
    assert list(store.list("")) == []


@pytest.mark.parametrize("kind", ["cut_reply", "shorten_reply"])
@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_a_truncated_answer_never_passes_for_the_object(cloud: Cloud, proxy: FaultProxy, kind: str, size: int) -> None:
    store = cloud.store(proxy.endpoint)
    body = os.urandom(300_000)
    store.put("a", body)
    proxy.rule(Rule(verb="GET", **{kind: size}))
    with pytest.raises(StoreUnavailable):
        store.get_range("a", 100, 200_000)
    with pytest.raises(StoreUnavailable):
        store.list("") if size < 100 else store.get_range("a", 0, 150_000)
    if kind == "cut_reply":
        with pytest.raises(StoreUnavailable):
            store.get("a")
    proxy.rule(Rule(verb="GET", times=3, **{kind: size}))
    assert patient(store).get_range("a", 100, 200_000) == body[100:200_100]
    proxy.rule(Rule(verb="GET", cut_reply=size, times=3))
    assert patient(store).get("a") == body


@pytest.mark.slow
def test_a_hanging_server_is_given_up_on(cloud: Cloud, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotwarp.persistence.store.remote.SMALL_S", 0.5)
    store = cloud.store(proxy.endpoint)
    proxy.rule(Rule(hang=True))
    start = CLOCK.monotonic()
    for verb in every_verb(store):
        with pytest.raises(StoreUnavailable):
            verb()
    assert CLOCK.monotonic() - start < 10


def test_the_probe_ends_at_its_deadline_and_names_the_setting(cloud: Cloud, proxy: FaultProxy) -> None:
    proxy.rule(Rule(hang=True))
    start = CLOCK.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        probe(cloud.store(proxy.endpoint), clock=CLOCK, rng=RNG, deadline_s=1.0)
    assert CLOCK.monotonic() - start < 4
    endpoint = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST", "az": "AZURE_STORAGE_ENDPOINT"}
    assert endpoint[cloud.scheme] in (caught.value.hint or "")


def test_a_store_that_ignores_the_condition_is_refused(cloud: Cloud, proxy: FaultProxy) -> None:
    proxy.rule(Rule(verb="PUT", ignore_condition=True))
    result = probe(cloud.store(proxy.endpoint), clock=CLOCK, rng=RNG)
    assert result.create_if_absent == "ignored"
    with pytest.raises(StoreUnsupported, match="ignores create-if-absent"):
        result.require()


@pytest.mark.parametrize(("status", "code"), [(501, "NotImplemented"), (405, "MethodNotAllowed")])
def test_a_store_that_refuses_the_condition_is_refused(cloud: Cloud, proxy: FaultProxy, status: int, code: str) -> None:
    header = "x-goog-if-generation-match" if cloud.scheme == "gs" else "if-none-match"
    proxy.rule(Rule(verb="PUT", reject_header=header, status=status, code=code))
    result = probe(cloud.store(proxy.endpoint), clock=CLOCK, rng=RNG)
    assert result.create_if_absent == "unsupported"
    with pytest.raises(StoreUnsupported, match="refuses create-if-absent"):
        result.require()


@pytest.mark.parametrize(
    ("fault", "words"), [("ignores_conditions", "ignores create-if-absent"), ("folds_case", "upper from lower case")]
)
def test_A14_a_server_that_breaks_a_promise_is_refused(tmp_path: Path, fault: str, words: str) -> None:
    with gcs_double(BUCKET) as server:
        setattr(server, fault, True)
        result = probe(gcs_cloud(server, "p", tmp_path).store(), clock=CLOCK, rng=RNG)
    with pytest.raises(StoreUnsupported, match=words):
        result.require()


# ------------------------------------------------------------------------------------------ storms


def test_A26_a_key_that_may_be_rewritten_only_now_and_then(cloud: Cloud, proxy: FaultProxy) -> None:
    store = patient(cloud.store(proxy.endpoint))
    proxy.rule(Rule(verb="PUT", min_gap_s=0.3, status=429, code="TooManyRequests"))
    for n in range(3):
        store.put("beats/a", b"%d" % n)
    assert store.get("beats/a") == b"2"
    assert len(proxy.seen) > 4


def test_the_wait_that_a_store_asks_for_is_known(cloud: Cloud, proxy: FaultProxy) -> None:
    proxy.rule(Rule(status=503, code="SlowDown", headers={"Retry-After": "7"}))
    with pytest.raises(StoreUnavailable) as caught:
        cloud.store(proxy.endpoint).put("a", b"1")
    assert caught.value.retry_after_s == 7.0


def test_A31_the_stores_time_is_told_as_it_is(cloud: Cloud, proxy: FaultProxy) -> None:
    store = cloud.store(proxy.endpoint)
    store.put("a", b"1")
    proxy.rule(Rule(last_modified="Tue, 01 Jan 2030 00:00:00 GMT"))
    assert store.head("a").modified.year == 2030
    assert store.get("a") == b"1"


def test_setting_cancel_ends_the_waiting(cloud: Cloud, proxy: FaultProxy) -> None:
    cancel = threading.Event()
    store = RetryingStore(cloud.store(proxy.endpoint), clock=CLOCK, rng=RNG, cancel=cancel)
    proxy.rule(Rule(status=503, code="SlowDown"))
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(store.put, "a", b"1")
        assert proxy.wait_seen(2)
        cancel.set()
        with pytest.raises(StoreUnavailable):
            pending.result(timeout=10)


# ------------------------------------------------------------------------------------------ one request an object


@pytest.mark.slow
def test_A18_A28_A29_an_object_is_one_request_whatever_its_size(cloud: Cloud, proxy: FaultProxy) -> None:
    """No parts, no blocks: nothing can be left half uploaded, no count of parts can run out, and two uploads of one
    name cannot spoil each other."""
    store = cloud.store(proxy.endpoint)
    sizes = (1, 6 * 1024 * 1024, 40 * 1024 * 1024)
    for size in sizes:
        store.put_new(f"packs/{size}", bytes(size))
        store.put(f"packs/again-{size}", bytes(size))
    assert [(seen.verb, seen.length) for seen in proxy.seen] == [("PUT", size) for size in sizes for _ in range(2)]
    assert not [seen for seen in proxy.seen if "?" in seen.path and ("upload" in seen.path or "comp=" in seen.path)]


def test_listing_pages_are_complete_and_in_order(cloud: Cloud, proxy: FaultProxy) -> None:
    store = cloud.store(proxy.endpoint)
    keys = [f"packs/{n:04d}" for n in range(30)]
    for key in keys:
        store.put(key, b"x")
    found = [meta.key for meta in store.list("packs")]
    assert found == keys
    assert all(one < other for one, other in pairwise(found))
    assert all(BUCKET in unquote(seen.path) for seen in proxy.seen)
