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
from typing import Final, Literal, cast
from urllib.parse import quote, unquote, urlsplit

from spotwarp.clock import Clock, Rng
from spotwarp.errors import UsageError
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.store.local import LocalStore
from spotwarp.persistence.store.metered import MeteredStore
from spotwarp.persistence.store.retrying import RetryingStore

Scheme = Literal["s3", "gs", "az", "file"]

_BUCKET: Final[dict[str, re.Pattern[str]]] = {
    "s3": re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
    "gs": re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
    "az": re.compile(r"(?=.{3,63}$)[a-z0-9]+(-[a-z0-9]+)*"),
}
_NAMING: Final = {
    "s3": "It has 3 to 63 lower-case letters, digits, '-' and single '.', and begins and ends with a letter or digit.",
    "gs": "It has 3 to 222 lower-case letters, digits, '-', '_' and single '.', and begins and ends with a letter or "
    "digit.",
    "az": "It has 3 to 63 lower-case letters, digits and single '-', and begins and ends with a letter or digit.",
}
_ALIASES: Final = {"gcs": "gs", "azure": "az", "s3a": "s3"}
_EXAMPLES = (
    "Write s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, or a directory: /path/to/dir or "
    "file:///path/to/dir."
)
_SETTINGS: Final = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE), and name the server in AWS_ENDPOINT_URL.",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS).",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY).",
}
_AZURE_HOST: Final = re.compile(r"([a-z0-9]{3,24})\.(?:blob|dfs)\.core\.windows\.net")
_MAX_PREFIX_BYTES = 512  # all three allow 1024 for a key; what SpotWarp appends stays well under the other half


@dataclass(frozen=True, slots=True)
class Location:
    """One place: a bucket and a prefix in it (no slash at either end, maybe empty), or an absolute directory.

    `account` is the storage account of an Azure container, "" when the variables are to say it.
    """

    scheme: Scheme
    bucket: str
    path: str
    account: str = ""

    def __str__(self) -> str:
        """The one spelling of this place; no secrets are in it."""
        if self.scheme == "file":
            return f"file://{quote(self.path)}"
        if self.account:
            return f"https://{self.account}.blob.core.windows.net/{self.bucket}/{self.path}".rstrip("/")
        return f"{self.scheme}://{self.bucket}/{self.path}".rstrip("/")


def parse_url(text: str, *, cwd: Path | None = None) -> Location:
    """The place that `text` names; a relative directory is taken from `cwd` (None: the process's).

    All spellings of slashes are one place: `s3://b/p`, `s3://b/p/`, `s3://b//p`, `s3://b/./p`. So are Azure's ways to
    name an account: `abfss://c@account.dfs.core.windows.net/p`, `https://account.blob.core.windows.net/c/p`. Raises
    `UsageError`.
    """
    text = text.strip()
    if not text:
        raise UsageError("the remote path is empty", hint=_EXAMPLES)
    if not text.isprintable():
        raise UsageError("the remote path has a control character in it", hint=_EXAMPLES)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _directory(text, cwd)
    if scheme in _BUCKET:
        return _bucket(cast(Scheme, scheme), rest)
    if scheme == "file":
        return _file_url(text)
    if scheme in ("abfss", "https") and (found := _azure_url(scheme, rest)) is not None:
        return found
    hint = f"{_EXAMPLES} Other clouds' S3 gateways work with s3:// and AWS_ENDPOINT_URL."
    if scheme in _ALIASES:
        hint = f"Write {_ALIASES[scheme]}:// for it."
    raise UsageError(f"{scheme}:// is not a kind of store that SpotWarp knows", hint=hint)


def open_store(
    url: str | Location,
    *,
    clock: Clock,
    rng: Rng,
    env: Mapping[str, str] = os.environ,
    cancel: threading.Event | None = None,
    bandwidth: float | None = None,
) -> RetryingStore:
    """The store at `url`, counted, retrying what may be retried; `cancel`, once set, ends every wait between tries.
    `bandwidth` is the most bytes a second of bulk, each way.

    Nothing is asked of the store yet. Raises `UsageError` for a URL or for settings in `env` that cannot be used.
    """
    location = parse_url(url) if isinstance(url, str) else url
    bare = MeteredStore(bare_store(location, clock=clock, rng=rng, env=env), clock)
    return RetryingStore(bare, clock=clock, rng=rng, cancel=cancel, bandwidth=bandwidth)


def bare_store(location: Location, *, clock: Clock, rng: Rng, env: Mapping[str, str]) -> Store:
    """The store at `location`, which tries everything once. Raises `UsageError` as `open_store`."""
    if location.scheme == "file":
        return LocalStore(Path(location.path), clock=clock, rng=rng)
    # obstore costs 50 ms; a local store need not pay
    if location.scheme == "gs":
        from spotwarp.persistence.store.gcs import GcsStore

        return GcsStore(location.bucket, location.path, env=env, clock=clock)
    if location.scheme == "az":
        from spotwarp.persistence.store.azure import AzureStore

        return AzureStore(location.bucket, location.path, env=env, clock=clock, account=location.account)
    from spotwarp.persistence.store.s3 import S3Store

    return S3Store(location.bucket, location.path, env=env, clock=clock)


def effective(location: Location, env: Mapping[str, str]) -> dict[str, str]:
    """What `location` and the settings in `env` come to: the address that is talked to, and how. No secrets.

    Another machine that is to reach the same place must come to the same. Raises `UsageError` as `open_store`.
    """
    if location.scheme == "s3":
        from spotwarp.persistence.store.aws import endpoint_for

        found = endpoint_for(location.bucket, env)
        style = "virtual host" if found.virtual_hosted else "path"
        return {"endpoint": found.url, "region": found.region, "addressing": style}
    if location.scheme == "gs":
        from spotwarp.persistence.store.gcs import google_access

        return {"endpoint": google_access(env).base_url}
    if location.scheme == "az":
        from spotwarp.persistence.store.azure import azure_access

        access = azure_access(env, location.account)
        return {"endpoint": access.endpoint, "account": access.account}
    return {}


def _azure_url(scheme: str, rest: str) -> Location | None:
    """An Azure container by its account's own address; None for another server's."""
    head, _, tail = rest.partition("/")
    container, at, host = head.rpartition("@")
    found = _AZURE_HOST.fullmatch(host.lower())
    if found is None or (at != "@") != (scheme == "https"):
        return None
    if "?" in tail:
        raise UsageError("the Azure URL has a query", hint="Put a SAS token into AZURE_STORAGE_SAS_TOKEN.")
    return _bucket("az", f"{container}/{tail}" if at else tail.lstrip("/"), found[1])


def _bucket(scheme: Scheme, rest: str, account: str = "") -> Location:
    bucket, _, prefix = rest.partition("/")
    if "@" in bucket or ":" in bucket:
        raise UsageError(
            "the URL has more than a bucket's name before its first slash",
            hint=f"Keep keys out of the URL ({_SETTINGS[scheme]}",
        )
    if not _BUCKET[scheme].fullmatch(bucket) or ".." in bucket:
        kind = "container" if scheme == "az" else "bucket"
        raise UsageError(f"{bucket!r} is not a {kind}'s name", hint=_NAMING[scheme] if bucket else _EXAMPLES)
    parts = [part for part in prefix.split("/") if part not in ("", ".")]
    if ".." in parts or "\\" in prefix:
        raise UsageError("a prefix in a bucket cannot hold '..' or a backslash", hint=_EXAMPLES)
    path = "/".join(parts)
    if len(path.encode()) > _MAX_PREFIX_BYTES:
        raise UsageError(f"the prefix is longer than {_MAX_PREFIX_BYTES} bytes", hint="Choose a shorter one.")
    return Location(scheme, bucket, path, account)


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
