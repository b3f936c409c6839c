"""What people write as a remote path, and what is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwarp.clock import SystemClock, SystemRng
from spotwarp.errors import UsageError
from spotwarp.persistence.store.url import open_store, parse_url


@pytest.mark.parametrize(
    "text",
    ["s3://bkt/p", "s3://bkt/p/", "s3://bkt//p", "s3://bkt/p//", "s3://bkt/./p", "s3://bkt/p/.", "  s3://bkt/p\n"],
)
def test_A23_slashes_do_not_matter_in_a_bucket(text: str) -> None:
    assert str(parse_url(text)) == "s3://bkt/p"


@pytest.mark.parametrize("text", ["s3://bkt", "s3://bkt/", "s3://bkt//", "s3://bkt/./"])
def test_A23_no_prefix_is_one_place_too(text: str) -> None:
    location = parse_url(text)
    assert (location.bucket, location.path, str(location)) == ("bkt", "", "s3://bkt")


@pytest.mark.parametrize(
    "text",
    ["/w/p", "/w/p/", "//w/p", "/w//p", "/w/./p", "/w/q/../p", "p", "p/", "./p", "p//"],
)
def test_A23_slashes_do_not_matter_in_a_path(text: str) -> None:
    assert str(parse_url(text, cwd=Path("/w"))) == "file:///w/p"


@pytest.mark.parametrize("text", ["file:///w/p", "file:///w/p/", "file://localhost/w/p", "file:///w//p"])
def test_A23_slashes_do_not_matter_in_a_directory(text: str) -> None:
    location = parse_url(text, cwd=Path("/w"))
    assert (location.scheme, location.path, str(location)) == ("file", "/w/p", "file:///w/p")


def test_what_is_printed_is_read_as_the_same_place() -> None:
    for text in ("s3://bkt/a b/c+d%20e/é", "s3://my.bucket-1", "/tmp/with space/100%/#1?/ü"):
        location = parse_url(text)
        assert parse_url(str(location)) == location


def test_home_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert parse_url("~/store").path == "/home/me/store"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "s3://",
        "s3:///p",
        "s3://b",
        "s3://b_/p",
        "s3://Bad_Bucket/p",
        "s3://Bucket/p",
        "s3://-bkt/p",
        "s3://bk..t/p",
        "s3://bkt/../other",
        "s3://bkt/a/..",
        "s3://bkt/a\\b",
        "s3://bkt/a\nb",
        "s3://bkt/" + "x" * 600,
        "s3:bkt/p",
        "s3:/bkt/p",
        "gs://Bkt/p",
        "gs://bkt/../p",
        "gcs://bkt/p",
        "az://Bkt/p",
        "az://b--t/p",
        "az://bk.t/p",
        "az://-bkt/p",
        "az://" + "x" * 64,
        "azure://bkt/p",
        "abfss://bkt/p",
        "abfss://bkt@s3.amazonaws.com/p",
        "https://account.blob.core.windows.net/",
        "https://account.blob.core.windows.net/bkt/../p",
        "https://key@account.blob.core.windows.net/bkt",
        "https://account.blob.core.windows.net.example.org/bkt/p",
        "https://s3.amazonaws.com/bkt",
        "file://host/p",
        "file:relative",
        "file:///p?x",
        "file:///p#x",
        "file:///a%00b",
        "/",
        "//",
        "/..",
        "file:///",
    ],
)
def test_nonsense_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(text, cwd=Path("/w"))
    assert caught.value.hint


@pytest.mark.parametrize("text", ["s3://Bad_Bucket/w1", "gs://Bad/w1", "az://bad_one/w1"])
def test_the_rule_for_a_buckets_name_is_said(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(text)
    assert "lower-case letters" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("gs://my_bucket.example.org/p//q/", "gs://my_bucket.example.org/p/q"),
        ("gs://bkt", "gs://bkt"),
        ("az://my-container//p/", "az://my-container/p"),
        ("az://bkt/", "az://bkt"),
        ("abfss://bkt@acct1.dfs.core.windows.net//p/", "https://acct1.blob.core.windows.net/bkt/p"),
        ("abfss://bkt@Acct1.dfs.core.windows.net", "https://acct1.blob.core.windows.net/bkt"),
        ("https://acct1.blob.core.windows.net/bkt/p/./q", "https://acct1.blob.core.windows.net/bkt/p/q"),
        ("https://acct1.blob.core.windows.net//bkt", "https://acct1.blob.core.windows.net/bkt"),
    ],
)
def test_A23_other_clouds_have_one_spelling_too(text: str, place: str) -> None:
    location = parse_url(text)
    assert str(location) == place
    assert parse_url(place) == location


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIAEXAMPLE:hunter2@bkt/p",
        "gs://me:hunter2@bkt/p",
        "az://acct:hunter2@bkt/p",
        "https://acct1.blob.core.windows.net/bkt/p?sv=2021-12-02&sig=hunter2",
        "abfss://hunter2:bkt@acct1.dfs.core.windows.net/p",
    ],
)
def test_a_key_in_the_url_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(text)
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


def test_open_store_of_a_directory_asks_nothing_of_it(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "new"), clock=SystemClock(), rng=SystemRng(), env={})
    assert store.url == f"file://{tmp_path}/new"
    assert not (tmp_path / "new").exists()
    store.put_new("config", b"1")
    assert store.get("config") == b"1"


def test_A42_the_hub_is_no_remote() -> None:
    with pytest.raises(UsageError, match="hf://") as caught:
        parse_url("hf://datasets/me/run")
    assert "s3://" in (caught.value.hint or "")
