"""A bucket of Google Cloud Storage.

Owns the reading of Google's variables and credential files, and how a client is set up from them. Create-if-absent is
`x-goog-if-generation-match: 0`. A name may be rewritten only once a second there (more is answered with 429): rewrites
that come sooner wait here for their second, so that a heartbeat is a little late instead of refused, and its refusals
never slow the data down. It keeps no secret longer than the client needs it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from obstore.exceptions import BaseError
from obstore.store import GCSStore as Client

from spotwarp.clock import Clock
from spotwarp.errors import StoreDenied, UsageError
from spotwarp.persistence.store import dialects
from spotwarp.persistence.store.address import checked_address
from spotwarp.persistence.store.api import Buffer
from spotwarp.persistence.store.remote import RemoteStore

if TYPE_CHECKING:
    from obstore.store import ClientConfig, GCSConfig

REWRITE_S: Final = 1.05
ENDPOINT: Final = "https://storage.googleapis.com"
_ANONYMOUS: Final = json.dumps({"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""})
_LOGIN: Final = "application_default_credentials.json"


@dataclass(frozen=True, slots=True)
class GoogleAccess:
    """The base URL, and one of: a service account's key, the file of a login, or neither (the machine's own account).

    `anonymous`: an emulator, which nobody gave a key for.
    """

    base_url: str
    key: str | None = field(default=None, repr=False)
    login: Path | None = None
    login_text: str = field(default="", repr=False)
    anonymous: bool = False


def google_access(env: Mapping[str, str]) -> GoogleAccess:
    """What `env` and the file that it (or gcloud) names say. Raises `UsageError` for what cannot be used."""
    emulator = env.get("STORAGE_EMULATOR_HOST", "")
    base_url = emulator.rstrip("/") or ENDPOINT
    if emulator and "://" not in emulator:
        base_url = f"http://{base_url}"
    checked_address(
        base_url,
        what="STORAGE_EMULATOR_HOST",
        variables="STORAGE_EMULATOR_HOST",
        allow_http=env.get("GOOGLE_ALLOW_HTTP"),
        allow_http_by="GOOGLE_ALLOW_HTTP",
    )
    named = env.get("GOOGLE_APPLICATION_CREDENTIALS")
    home = Path(env.get("HOME") or Path.home())
    path = Path(named).expanduser() if named else Path(env.get("CLOUDSDK_CONFIG") or home / ".config/gcloud") / _LOGIN
    if not named and (emulator or not path.exists()):
        return GoogleAccess(base_url, anonymous=bool(emulator))
    text, kind = _credentials_file(path)
    if kind == "service_account":
        return GoogleAccess(base_url, key=text)
    if kind == "authorized_user":
        return GoogleAccess(base_url, login=path, login_text=text)
    raise UsageError(
        f"{path} holds credentials of the kind {kind!r}, which SpotWarp cannot use",
        hint="Use a service account's key, `gcloud auth application-default login`, or the machine's own account.",
    )


def _credentials_file(path: Path) -> tuple[str, str]:
    """Its text and the kind it says it is. No message repeats any of it but the kind."""
    try:
        text = path.read_text(encoding="utf-8")
        kind = json.loads(text)["type"]
    except OSError as error:
        raise UsageError(
            f"cannot read the Google credentials {path}: {error.strerror}",
            hint="Correct GOOGLE_APPLICATION_CREDENTIALS.",
        ) from error
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"{path} is no file of Google credentials", hint="Correct GOOGLE_APPLICATION_CREDENTIALS."
        ) from None
    return text, str(kind)[:40]


class GcsStore(RemoteStore):
    """`bucket`, below `prefix` (no slash at either end, maybe empty), as `env` says to reach it.

    Raises `UsageError` for settings that cannot be used. Nothing is asked of the server before the first verb.
    """

    def __init__(self, bucket: str, prefix: str, *, env: Mapping[str, str], clock: Clock) -> None:
        super().__init__(f"gs://{bucket}/{prefix}".rstrip("/"), dialects.GCS, clock)
        self._bucket = bucket
        self._prefix = prefix
        self._env = env
        self._access = google_access(env)
        self._rewrites = _Rewrites(clock)
        self._renewing = threading.Lock()
        self._renewed_at = float("-inf")

    def put(self, key: str, data: Buffer) -> None:
        """See `Store`; a rewrite within a second of the last one waits for its time."""
        self._rewrites.wait(key)
        try:
            super().put(key, data)
        finally:
            self._rewrites.written(key)

    def _connect(self, options: ClientConfig) -> Client:
        access = self._access
        options["allow_http"] = access.base_url.startswith("http:")
        config: GCSConfig = {"base_url": access.base_url}
        if access.anonymous:
            config["service_account_key"] = _ANONYMOUS
        elif access.key is not None:
            config["service_account_key"] = access.key
        elif access.login is not None:
            config["application_credentials"] = str(access.login)
        try:
            return Client(
                self._bucket,
                prefix=self._prefix or None,
                config=config,
                client_options=options,
                retry_config={"max_retries": 0},
            )
        except BaseError:  # its text quotes the key file
            raise StoreDenied(f"{self.url}: the Google credentials cannot be used", hint=dialects.GCS.no_keys) from None

    def _renewed(self, began: float) -> bool:
        with self._renewing:
            if self._renewed_at > began:
                return True  # another thread was refused first
            try:
                new = google_access(self._env)
            except UsageError:  # a file that is just being written
                return False
            if new == self._access:
                return False
            self._access, self._renewed_at = new, self._clock.monotonic()
            return True


class _Rewrites:
    """When each of the few names that are rewritten (heartbeats, hints) may be written next."""

    _MOST: Final = 1000

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._next: dict[str, float] = {}

    def wait(self, key: str) -> None:
        """Return when `key` may be written."""
        with self._lock:
            now = self._clock.monotonic()
            if len(self._next) > self._MOST:
                self._next = {name: at for name, at in self._next.items() if at > now}
            at = max(now, self._next.get(key, now))
            self._next[key] = at + REWRITE_S
        if at > now:
            self._clock.sleep(at - now)

    def written(self, key: str) -> None:
        """`key` was written, or tried to: only now is it known that the server's second cannot begin later."""
        with self._lock:
            self._next[key] = max(self._next.get(key, 0.0), self._clock.monotonic() + REWRITE_S)
