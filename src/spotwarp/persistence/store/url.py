"""A remote path as people write it, and the store behind it.

Owns the grammar of `--remote-path`: every spelling of a place is one `Location`, nonsense is refused before anything
is written. It must never echo what may be a secret, and never touch the store itself.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote, urlsplit

from spotwarp.clock import Clock, Rng
from spotwarp.errors import UsageError
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.store.local import LocalStore
from spotwarp.persistence.store.retrying import RetryingStore

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_EXAMPLES = "Write s3://bucket/prefix, or a directory: /path/to/dir or file:///path/to/dir."
_MAX_PREFIX_BYTES = 512  # S3 allows 1024 for a key; what SpotWarp appends stays well under the other half


@dataclass(frozen=True, slots=True)
class Location:
    """One place: a bucket and a prefix in it (no slash at either end, maybe empty), or an absolute directory."""

    scheme: Literal["s3", "file"]
    bucket: str
    path: str

    def __str__(self) -> str:
        """The one spelling of this place; no secrets are in it."""
        if self.scheme == "file":
            return f"file://{quote(self.path)}"
        return f"s3://{self.bucket}/{self.path}".rstrip("/")


def parse_url(text: str, *, cwd: Path | None = None) -> Location:
    """The place that `text` names; a relative directory is taken from `cwd` (None: the process's).

    All spellings of slashes are one place: `s3://b/p`, `s3://b/p/`, `s3://b//p`, `s3://b/./p`. Raises `UsageError`.
    """
    text = text.strip()
    if not text:
        raise UsageError("the remote path is empty", hint=_EXAMPLES)
    if not text.isprintable():
        raise UsageError("the remote path has a control character in it", hint=_EXAMPLES)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _directory(text, cwd)
    if scheme == "s3":
        return _bucket(rest)
    if scheme == "file":
        return _file_url(text)
    raise UsageError(
        f"{scheme}:// is not a kind of store that SpotWarp knows",
        hint=f"{_EXAMPLES} Other clouds' S3 gateways work with s3:// and AWS_ENDPOINT_URL.",
    )


def open_store(
    url: str | Location,
    *,
    clock: Clock,
    rng: Rng,
    env: Mapping[str, str] = os.environ,
    cancel: threading.Event | None = None,
) -> RetryingStore:
    """The store at `url`, retrying what may be retried; `cancel`, once set, ends every wait between tries.

    Nothing is asked of the store yet. Raises `UsageError` for a URL or for settings in `env` that cannot be used.
    """
    location = parse_url(url) if isinstance(url, str) else url
    return RetryingStore(_bare(location, clock, rng, env), clock=clock, rng=rng, cancel=cancel)


def _bare(location: Location, clock: Clock, rng: Rng, env: Mapping[str, str]) -> Store:
    if location.scheme == "file":
        return LocalStore(Path(location.path), clock=clock, rng=rng)
    from spotwarp.persistence.store.remote import S3Store  # obstore costs 50 ms; a local store need not pay

    return S3Store(location.bucket, location.path, env=env, clock=clock)


def _bucket(rest: str) -> Location:
    bucket, _, prefix = rest.partition("/")
    if "@" in bucket or ":" in bucket:
        raise UsageError(
            "the S3 URL has more than a bucket's name before its first slash",
            hint="Keep keys out of the URL (set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE), "
            "and name the server in AWS_ENDPOINT_URL.",
        )
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise UsageError(f"{bucket!r} is not a bucket's name", hint=_EXAMPLES)
    parts = [part for part in prefix.split("/") if part not in ("", ".")]
    if ".." in parts or "\\" in prefix:
        raise UsageError("a prefix in a bucket cannot hold '..' or a backslash", hint=_EXAMPLES)
    path = "/".join(parts)
    if len(path.encode()) > _MAX_PREFIX_BYTES:
        raise UsageError(f"the prefix is longer than {_MAX_PREFIX_BYTES} bytes", hint="Choose a shorter one.")
    return Location("s3", bucket, path)


def _file_url(text: str) -> Location:
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost"):
        raise UsageError(
            f"file://{parts.netloc}… names another machine",
            hint="A directory takes three slashes: file:///path/to/dir.",
        )
    if parts.query or parts.fragment:
        raise UsageError("a file URL has no '?' or '#'", hint="Write them as %3F and %23, or give the plain path.")
    path = unquote(parts.path)
    if not path.isprintable():
        raise UsageError("the remote path has a control character in it", hint=_EXAMPLES)
    return _absolute(Path(path))


def _directory(text: str, cwd: Path | None) -> Location:
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text):
        raise UsageError(f"{text!r} is neither a URL nor a plain path", hint=f"{_EXAMPLES} A name with ':' takes './'.")
    path = Path(text).expanduser()
    return _absolute(path if path.is_absolute() else (cwd or Path.cwd()) / path)


def _absolute(path: Path) -> Location:
    clean = os.path.normpath(path)
    clean = "/" + clean.lstrip("/")  # POSIX lets "//x" mean something else than "/x"; nobody who types it does
    if clean == "/":
        raise UsageError("the file system's root cannot be a store", hint=_EXAMPLES)
    return Location("file", "", clean)
