"""Details of the translation that no server here produces by itself."""

from __future__ import annotations

import pytest

from spotwarp.errors import BucketMissing, ObjectMissing, StoreDenied, StoreUnavailable
from spotwarp.persistence.store.refusal import lacks_credentials, meaning


def answer(status: int, body: str) -> str:
    return f"Error performing GET http://h/b/k in 1ms - Server returned non-2xx status code: {status} Nope: {body}"


def said(text: str, verb: str = "get") -> Exception:
    return meaning(text, verb=verb, key="k", url="s3://b")


def test_a_wrong_clock_is_said_with_the_difference() -> None:
    body = (
        "<Error><Code>RequestTimeTooSkewed</Code><RequestTime>20260102T032005Z</RequestTime>"
        "<ServerTime>2026-01-02T03:00:05Z</ServerTime></Error>"
    )
    error = said(answer(403, body))
    assert isinstance(error, StoreDenied)
    assert "+1200 s" in error.message
    assert "clock" in (error.hint or "")


@pytest.mark.parametrize(
    "times",
    ["", "<RequestTime>20260102T032005Z</RequestTime>", "<RequestTime>-</RequestTime><ServerTime>T</ServerTime>"],
)
def test_a_wrong_clock_without_readable_times(times: str) -> None:
    assert " off" not in str(said(answer(403, f"<Code>RequestTimeTooSkewed</Code>{times}")))


def test_only_the_stores_own_word_makes_an_object_absent() -> None:
    assert isinstance(said(answer(404, "<Code>NoSuchKey</Code>")), ObjectMissing)
    for body in ("", "<html>captive portal</html>", "<Code>NoSuchRoute</Code>"):
        assert isinstance(said(answer(404, body)), StoreUnavailable)
        assert isinstance(said(answer(404, body), "put"), StoreUnavailable)
        assert isinstance(said(answer(404, body), "delete"), StoreUnavailable)


def test_a_redirect_names_the_region() -> None:
    error = said("Error performing GET - Received redirect without LOCATION, this normally indicates …")
    assert isinstance(error, BucketMissing)
    assert "AWS_REGION" in (error.hint or "")


def test_what_was_signed_is_never_repeated() -> None:
    body = "<Code>SignatureDoesNotMatch</Code><StringToSign>hunter2</StringToSign>"
    assert "hunter2" not in str(said(answer(403, body)))
    assert "hunter2" not in str(said("Generic S3 error: hunter2"))


def test_the_metadata_service_is_recognised() -> None:
    assert lacks_credentials("Error performing PUT http://169.254.169.254/latest/api/token in 1ms")
    assert lacks_credentials("Error performing GET http://169.254.170.2/creds")
    assert not lacks_credentials("Error performing GET http://10.169.254.1/b/k")
