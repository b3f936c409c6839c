"""What an S3 server's refusal, or its silence, means for the caller.

Pure: the client library's text in, one of our errors out. The library folds different answers into one type (409 and
412 are both "already exists", any 404 is "not found"), so the HTTP status and the S3 code in its text decide. No body
of an answer gets into a message: it may quote what was signed.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from spotwarp.errors import (
    AlreadyExists,
    BucketMissing,
    CredentialsExpired,
    ObjectMissing,
    StoreConflict,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnsupported,
)

EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
"""Codes that say: the same request with newer credentials."""

REPLACED: Final = frozenset({"InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"})
"""Codes of a key that is not known: perhaps it was replaced, and its source has the new one."""

SKEWED: Final = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
"""Codes that say: your clock is wrong, or the request was signed too long ago."""

_KEYS = "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN or AWS_PROFILE."
_RIGHTS = "Give this key the rights to get, list and put below the prefix."
_NETWORK = "Check the network and AWS_ENDPOINT_URL."
_REGION = "Set AWS_REGION to the bucket's region, and AWS_ENDPOINT_URL to its server."
_EXPIRED = "Write new credentials into the AWS profile's file (~/.aws/credentials): they are picked up from there."
_LOST_ON_THE_WAY = "It will be sent again."

_Meaning = tuple[type[StoreError], str | None]

_BY_CODE: Final[dict[str, _Meaning]] = {
    "NoSuchBucket": (BucketMissing, "Create the bucket, or correct the URL."),
    "PermanentRedirect": (BucketMissing, _REGION),
    "AuthorizationHeaderMalformed": (BucketMissing, _REGION),
    "InvalidAccessKeyId": (StoreDenied, _KEYS),
    "SignatureDoesNotMatch": (StoreDenied, _KEYS),
    "InvalidToken": (StoreDenied, _KEYS),
    **dict.fromkeys(EXPIRED, (CredentialsExpired, _EXPIRED)),
    **dict.fromkeys(SKEWED, (StoreUnavailable, "Set this machine's clock (NTP).")),
    "QuotaExceeded": (StoreFull, "Raise the quota, or delete objects."),
    "XMinioStorageFull": (StoreFull, "Make room on the server."),
    "NotImplemented": (StoreUnsupported, None),
    "RequestTimeout": (StoreUnavailable, _LOST_ON_THE_WAY),
    "BadDigest": (StoreUnavailable, _LOST_ON_THE_WAY),
    "InvalidDigest": (StoreUnavailable, _LOST_ON_THE_WAY),
    "IncompleteBody": (StoreUnavailable, _LOST_ON_THE_WAY),
    "XAmzContentSHA256Mismatch": (StoreUnavailable, _LOST_ON_THE_WAY),
}

_BY_STATUS: Final[dict[int, _Meaning]] = {
    401: (StoreDenied, _KEYS),
    403: (StoreDenied, _RIGHTS),
    404: (StoreUnavailable, "That does not look like S3. " + _NETWORK),
    405: (StoreUnsupported, None),
    408: (StoreUnavailable, None),
    409: (StoreConflict, None),
    412: (StoreUnavailable, None),
    425: (StoreUnavailable, None),
    429: (StoreUnavailable, None),
    501: (StoreUnsupported, None),
    507: (StoreFull, "Raise the quota, or delete objects."),
}

_STATUS = re.compile(r"Server returned non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_SILENCE: Final[tuple[tuple[str, str, str], ...]] = (
    ("InvalidCertificate", "its certificate is not trusted", "Set AWS_CA_BUNDLE to the right authority's file."),
    ("dns error", "its name cannot be resolved", _NETWORK),
    ("ConnectionRefused", "it refuses connections", _NETWORK),
    ("kind: Timeout", "it did not answer in time", _NETWORK),
    ("kind: Connect", "it cannot be reached", _NETWORK),
    ("response body", "the connection broke in the middle of its answer", _NETWORK),
    ("invalid list response", "its listing cannot be read", _NETWORK),
)


def status_of(text: str) -> int | None:
    """The HTTP status that the library's text reports."""
    found = _STATUS.search(text)
    return int(found[1]) if found else None


def code_of(text: str) -> str:
    """The S3 error code in the answer, or ""."""
    found = _CODE.search(text)
    return found[1] if found else ""


def lacks_credentials(text: str) -> bool:
    """The library found no key and asked the machine's own metadata service, in vain."""
    return re.search(r"https?://(169\.254\.|\[fd00:ec2)", text) is not None


def meaning(text: str, *, verb: str, key: str, url: str) -> StoreError:
    """The error that the library's `text` means for `verb` ("put", "put_new", "get", "head", "list", "delete")."""
    status, code = status_of(text), code_of(text)
    what = f"{url}: cannot {verb.replace('_', ' ')} {key or 'everything'}".rstrip()
    if status is None:
        return _silence(text, what)
    if status == 404 and verb in ("get", "head", "delete") and code in _absent_codes(verb):
        return ObjectMissing(f"{key} is not in {url}")
    if status == 412 and verb == "put_new":
        return AlreadyExists(f"{key} exists already in {url}")
    kind, hint = _BY_CODE.get(code) or _BY_STATUS.get(status) or _otherwise(status)
    reason = f"{code or 'HTTP'} ({status})"
    return kind(f"{what}: {reason}{clock_off(text) if code in SKEWED else ''}", hint=hint)


def _absent_codes(verb: str) -> tuple[str, ...]:
    """A 404 without one of these comes from something that is not the store, and must not pass for an absence.

    The answer to HEAD has no body and so no code; its caller has asked by GET before it comes here.
    """
    return ("NoSuchKey", "NotFound", "") if verb == "head" else ("NoSuchKey", "NotFound")


def _otherwise(status: int) -> _Meaning:
    if status >= 500:
        return StoreUnavailable, None
    return StoreError, "See the store's documentation for this code."


def _silence(text: str, what: str) -> StoreError:
    if "redirect without LOCATION" in text:
        return BucketMissing(f"{what}: the bucket is in another region or on another server", hint=_REGION)
    for sign, reason, hint in _SILENCE:
        if sign in text:
            return StoreUnavailable(f"{what}: {reason}", hint=hint)
    return StoreUnavailable(f"{what}: no usable answer", hint=_NETWORK)


def clock_off(text: str) -> str:
    """By how much the clocks differ, in words, where the answer says so."""
    found = [re.search(rf"<{name}>([0-9TZ:.-]+)</{name}>", text) for name in ("RequestTime", "ServerTime")]
    try:
        ours, server = (datetime.fromisoformat(each[1]) for each in found if each is not None)
        return in_words((ours - server).total_seconds())
    except (ValueError, TypeError):  # one is missing, unreadable, or without a zone
        return ""


def in_words(off_s: float) -> str:
    """How far this machine's clock is ahead of the server's (seconds), for the end of a sentence."""
    return f", this machine's clock is {off_s:+.0f} s off"
