"""What a server's refusal, or its silence, means for the caller.

Pure: the client library's text in, one of our errors out. The library folds different answers into one type (409 and
412 are both "already exists", any 404 is "not found"), so the HTTP status and the store's code in its text decide, by
the tables of `dialects.py`. No body of an answer gets into a message: it may quote what was signed.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from spotwarp.errors import AlreadyExists, BucketMissing, ObjectMissing, StoreDenied, StoreError, StoreUnavailable
from spotwarp.persistence.store.dialects import CLOCK, S3, Dialect, Meaning

_STATUS: Final = re.compile(r"Server returned non-2xx status code: (\d{3})|\(code: (\d{3})\)")
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_GIVER: Final = "token request"
_METADATA: Final = re.compile(r"https?://(169\.254\.|\[fd00:ec2|metadata\.google\.internal)|/computeMetadata/")
_SILENCE: Final[tuple[tuple[str, str, str | None], ...]] = (
    ("InvalidCertificate", "its certificate is not trusted", "Set AWS_CA_BUNDLE to the right authority's file."),
    ("InvalidContentType", "it does not speak TLS", "Is the address that is set for it (AWS_ENDPOINT_URL …) http://?"),
    ("dns error", "its name cannot be resolved", None),
    ("ConnectionRefused", "it refuses connections", None),
    ("kind: Timeout", "it did not answer in time", None),
    ("kind: Connect", "it cannot be reached", None),
    ("response body", "the connection broke in the middle of its answer", None),
    ("non-partial", "it gives the whole object where a part is asked for", "Is that an object store?"),
    ("invalid list response", "its listing cannot be read", None),
)


def status_of(text: str) -> int | None:
    """The HTTP status that the library's text reports."""
    found = _STATUS.search(text)
    return int(found[1] or found[2]) if found else None


def code_of(text: str) -> str:
    """The store's error code in the answer, or ""."""
    found = _CODE.search(text)
    return found[1] if found else ""


WRONG_CLOCK_S: Final = 300.0
"""Servers allow for fifteen minutes; a clock that is off by a third of that will not pass for long."""


def is_skewed(text: str, dialect: Dialect) -> bool:
    """The server finds this machine's clock wrong, or the request signed too long ago."""
    return 400 <= (status_of(text) or 0) < 500 and any(sign in text for sign in dialect.skewed)


def beyond_the_end(text: str) -> bool:
    """A range that the object seems to be too short for: the server says so, or the library from what it was told."""
    return status_of(text) == 416 or "StartTooLarge" in text or "ParseContentRange" in text


def lacks_credentials(text: str) -> bool:
    """The library found no key and asked the machine's own metadata service, in vain."""
    return _METADATA.search(text) is not None


def meaning(text: str, *, verb: str, key: str, url: str, dialect: Dialect = S3) -> StoreError:
    """The error that the library's `text` means for `verb` ("put", "put_new", "get", "head", "list", "delete")."""
    status, code = status_of(text), code_of(text)
    what = f"{url}: cannot {verb.replace('_', ' ')} {key or 'everything'}".rstrip()
    if _GIVER in text and status is not None and status < 500:
        return StoreDenied(f"{what}: the server that gives out tokens refuses ({status})", hint=dialect.keys)
    if status is None:
        return _silence(text, what, dialect)
    if status == 404 and verb in ("get", "head", "delete") and _absent(code, verb, dialect):
        return ObjectMissing(f"{key} is not in {url}")
    if verb == "put_new" and not dialect.taken.isdisjoint({(status, code), (status, "")}):
        return AlreadyExists(f"{key} exists already in {url}")
    reason = f"{code or 'HTTP'} ({status})"
    if is_skewed(text, dialect):
        return skewed(f"{what}: {reason}", clock_off_s(text))
    kind, hint = dialect.by_code.get(code) or dialect.by_status.get(status) or _otherwise(status)
    return kind(f"{what}: {reason}", hint=hint)


def _absent(code: str, verb: str, dialect: Dialect) -> bool:
    """A 404 without the right code comes from something that is not the store, and must not pass for an absence.

    The answer to HEAD has no body and so no code; its caller has asked by GET before it comes here.
    """
    return code in dialect.absent or (verb == "head" and not code)


def _otherwise(status: int) -> Meaning:
    if status >= 500:
        return StoreUnavailable, None
    return StoreError, "See the store's documentation for this code."


def _silence(text: str, what: str, dialect: Dialect) -> StoreError:
    if "redirect without LOCATION" in text:
        hint = dialect.by_code.get("PermanentRedirect", (BucketMissing, dialect.network))[1]
        return BucketMissing(f"{what}: the bucket is in another region or on another server", hint=hint)
    for sign, reason, hint in _SILENCE:
        if sign in text:
            return StoreUnavailable(f"{what}: {reason}", hint=hint or dialect.network)
    return StoreUnavailable(f"{what}: no usable answer", hint=dialect.network)


def clock_off_s(text: str) -> float | None:
    """How far this machine's clock is ahead of the server's (seconds), where the answer says so."""
    found = [re.search(rf"<{name}>([0-9TZ:.-]+)</{name}>", text) for name in ("RequestTime", "ServerTime")]
    try:
        ours, server = (datetime.fromisoformat(each[1]) for each in found if each is not None)
        return (ours - server).total_seconds()
    except (ValueError, TypeError):  # one is missing, unreadable, or without a zone
        return None


def skewed(words: str, off_s: float | None) -> StoreError:
    """What a refusal for the request's time means when this machine's clock is `off_s` ahead (None: unknown).

    A request that waited too long on its way is signed anew when it is sent again; a wrong clock stays wrong.
    """
    if off_s is None:
        return StoreUnavailable(words, hint=CLOCK)
    kind = StoreDenied if abs(off_s) > WRONG_CLOCK_S else StoreUnavailable
    return kind(f"{words}, this machine's clock is {off_s:+.0f} s off", hint=CLOCK)
