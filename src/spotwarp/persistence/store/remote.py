"""A bucket behind the S3 protocol: AWS and everything that speaks like it.

The one home of obstore. Owns the translation of the library's errors into ours, the check of every received length,
and the time each request may take. It never retries (`retrying.py` does, or the caller), never uses multipart uploads
(what a killed one leaves behind is invisible and billed), and never puts a secret into a message.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store as Client

from spotwarp.clock import Clock
from spotwarp.errors import CorruptObject, ObjectMissing, StoreDenied, StoreError, StoreUnavailable
from spotwarp.persistence.store.api import Buffer, ObjectMeta, checked_key
from spotwarp.persistence.store.aws import Endpoint, endpoint_for
from spotwarp.persistence.store.headers import REFUSED, Said, ask
from spotwarp.persistence.store.keys import Keys
from spotwarp.persistence.store.refusal import (
    EXPIRED,
    REPLACED,
    SKEWED,
    clock_off,
    code_of,
    in_words,
    lacks_credentials,
    meaning,
    status_of,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Credential

SMALL_BYTES = 128 * 1024
SMALL_S = 5.0
CONNECT_S = 5.0
STALL_S = 15.0
BASE_S = 60.0
SLOWEST_BYTES_S = 128 * 1024
UNKNOWN_BYTES = 64 * 1024 * 1024
ASK_EVERY_S = 1.0
EARLY_S = 300.0  # the library takes a key for expired five minutes before its end

Verb = Literal["put", "put_new", "get", "head", "list", "delete"]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a request may take in all, and how long it may stand still (None: as long as in all); seconds."""

    total_s: float
    stall_s: float | None = None


def patience_to_send(size: int) -> Patience:
    """For a body of `size` bytes. No stall limit: the library's clock for it does not see bytes that leave."""
    return Patience(SMALL_S if size <= SMALL_BYTES else BASE_S + _round_up(size) / SLOWEST_BYTES_S)


def patience_to_receive(size: int | None) -> Patience:
    """For an answer of `size` bytes (None: unknown)."""
    if size is None:
        return Patience(BASE_S + UNKNOWN_BYTES / SLOWEST_BYTES_S, SMALL_S)
    return Patience(SMALL_S) if size <= SMALL_BYTES else Patience(BASE_S + _round_up(size) / SLOWEST_BYTES_S, STALL_S)


def _round_up(size: int) -> int:
    """To a power of two, so that there are few different patiences, each of which costs a client."""
    return 1 << (size - 1).bit_length()


class S3Store:
    """`bucket`, below `prefix` (no slash at either end, maybe empty), as `env` says to reach it.

    Raises `UsageError` for settings that cannot be used. Nothing is asked of the server before the first verb.
    """

    def __init__(self, bucket: str, prefix: str, *, env: Mapping[str, str], clock: Clock) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._env = env
        self._clock = clock
        self._endpoint = endpoint_for(bucket, env)
        self._keys = Keys(env, clock)
        self._lock = threading.Lock()
        self._clients: dict[Patience, Client] = {}
        self._answered = False
        self._asking = threading.Lock()
        self._asked = float("-inf")

    @property
    def url(self) -> str:
        """See `Store`."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def endpoint(self) -> Endpoint:
        """What was made of the settings."""
        return self._endpoint

    def put(self, key: str, data: Buffer) -> None:
        """See `Store`. One request; the payload is signed, so the server refuses what was damaged on its way."""
        self._put(key, data, "put")

    def put_new(self, key: str, data: Buffer) -> None:
        """See `Store`. One request with `If-None-Match: *`."""
        self._put(key, data, "put_new")

    def _put(self, key: str, data: Buffer, verb: Literal["put", "put_new"]) -> None:
        client = self._client(patience_to_send(memoryview(data).nbytes))
        mode: Literal["create", "overwrite"] = "create" if verb == "put_new" else "overwrite"
        with self._translated(verb, key):
            obstore.put(client, checked_key(key), data, mode=mode, use_multipart=False)

    def get(self, key: str) -> bytes:
        """See `Store`."""
        with self._translated("get", key):
            reply = obstore.get(self._client(patience_to_receive(None)), checked_key(key))
            announced = reply.meta["size"]
            data = reply.bytes().to_bytes()
        if len(data) != announced:
            raise StoreUnavailable(f"only {len(data)} of the {announced} bytes of {key} arrived from {self.url}")
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `Store`."""
        if length == 0:  # HTTP cannot ask for no bytes
            meta = self.head(key)
            if start > meta.size:
                raise self._too_short(key, start, length)
            return b""
        client = self._client(patience_to_receive(length))
        with self._translated("get", key):
            try:
                reply = obstore.get(client, checked_key(key), options={"range": (start, start + length)})
                size, data = reply.meta["size"], reply.bytes().to_bytes()
            except BaseError as error:
                if status_of(str(error)) == 416:
                    raise self._too_short(key, start, length) from error
                raise
        if size < start + length:
            raise self._too_short(key, start, length)
        if len(data) != length:
            raise StoreUnavailable(f"only {len(data)} of {length} bytes of {key} arrived from {self.url}")
        return data

    def head(self, key: str) -> ObjectMeta:
        """See `Store`."""
        began = self._clock.monotonic()
        try:
            meta = obstore.head(self._client(Patience(SMALL_S)), checked_key(key))
        except (BaseError, FileNotFoundError) as error:
            if 400 <= (status_of(str(error)) or 0) < 500:
                self._say_why(key)
            raise self._translate(error, "head", key, began) from error
        return ObjectMeta(key, meta["size"], meta["last_modified"])

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """See `Store`. Sorted here: not every server's order is the order of the keys."""
        within = checked_key(prefix) if prefix else None
        with self._translated("list", prefix):
            pages = obstore.list(self._client(patience_to_receive(None)), within, chunk_size=1000)
            found = [ObjectMeta(meta["path"], meta["size"], meta["last_modified"]) for page in pages for meta in page]
        return iter(sorted(found, key=lambda meta: meta.key))

    def delete(self, key: str) -> None:
        """See `Store`. One plain DELETE: the bulk form is missing in some servers and hides refusals in others."""
        try:
            with self._translated("delete", key):
                obstore.delete(self._client(Patience(SMALL_S)), checked_key(key))
        except ObjectMissing:
            return

    def _say_why(self, key: str) -> None:
        """A refused HEAD has no body and so no reason; a GET of one byte has. Raises it, or returns if none is left."""
        with self._translated("get", key):
            try:
                obstore.get(self._client(Patience(SMALL_S)), key, options={"range": (0, 1)})
            except BaseError as error:
                if status_of(str(error)) != 416:  # an object of no bytes, made since
                    raise

    def _too_short(self, key: str, start: int, length: int) -> CorruptObject:
        return CorruptObject(f"{key} in {self.url} is too short for {start}+{length} bytes")

    def _client(self, patience: Patience) -> Client:
        with self._lock:
            if patience not in self._clients:
                self._clients[patience] = self._connect(patience)
            return self._clients[patience]

    def _connect(self, patience: Patience) -> Client:
        endpoint = self._endpoint
        options: ClientConfig = {
            "connect_timeout": timedelta(seconds=CONNECT_S),
            "timeout": timedelta(seconds=patience.total_s),
            "allow_http": endpoint.allow_http,
        }
        if patience.stall_s is not None:
            options["read_timeout"] = timedelta(seconds=patience.stall_s)
        if endpoint.ca_bundle is not None:
            try:
                options["root_certificate"] = endpoint.ca_bundle.read_bytes()
            except OSError as error:
                raise StoreDenied(
                    f"cannot read {endpoint.ca_bundle}: {error.strerror}", hint="Correct AWS_CA_BUNDLE."
                ) from error
        config: S3Config = {
            # This name, for it wins over whatever the library finds in the process's own environment.
            "aws_endpoint_url_s3": endpoint.url,
            "region": endpoint.region,
            "virtual_hosted_style_request": endpoint.virtual_hosted,
            "conditional_put": "etag",
            "disable_bulk_delete": True,
        }
        try:
            return Client(
                self._bucket,
                prefix=self._prefix or None,
                config=config,
                client_options=options,
                retry_config={"max_retries": 0},
                credential_provider=self._provide if self._keys.known else None,
            )
        except BaseError as error:
            raise StoreDenied(
                f"{self.url}: the client cannot be set up, most likely for the certificates",
                hint="Check the file that AWS_CA_BUNDLE names.",
            ) from error

    def _provide(self) -> S3Credential:
        """The key for the library, which asks again when it takes it for expired."""
        key, good_for_s = self._keys.current()
        if key is None:  # this provider is only given to the library when there is a key
            raise StoreDenied("there is no AWS key", hint="Set AWS_ACCESS_KEY_ID.")
        expiry = None if good_for_s is None else self._clock.wall() + timedelta(seconds=EARLY_S + good_for_s)
        return {
            "access_key_id": key.access_key,
            "secret_access_key": key.secret_key,
            "token": key.token,
            "expires_at": expiry,
        }

    @contextmanager
    def _translated(self, verb: Verb, key: str) -> Iterator[None]:
        began = self._clock.monotonic()
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            raise self._translate(error, verb, key, began) from error
        self._answered = True

    def _translate(self, error: Exception, verb: Verb, key: str, began: float) -> StoreError:
        text = str(error)
        if code_of(text) in EXPIRED | REPLACED and self._keys.renew(began):
            with self._lock:
                self._clients.clear()  # each holds the old key
            return StoreUnavailable(f"{self.url}: the credentials had expired and were read again")
        if lacks_credentials(text):
            if self._answered:
                return StoreUnavailable(f"{self.url}: the machine's role could not be renewed just now")
            return StoreDenied(
                f"{self.url}: no credentials were found, and this machine has no role of its own",
                hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
            )
        refused = meaning(text, verb=verb, key=key, url=self.url)
        if status_of(text) in REFUSED and isinstance(refused, StoreUnavailable):
            refused.retry_after_s = self._said(key).retry_after_s
        elif code_of(text) in SKEWED and not clock_off(text) and (date := self._said(key).date) is not None:
            off = in_words((self._clock.wall() - date).total_seconds())
            return StoreUnavailable(refused.message + off, hint=refused.hint)
        return refused

    def _said(self, key: str) -> Said:
        """What the server's headers say now. Asked at most once in `ASK_EVERY_S`, whoever has been refused."""
        if not self._asking.acquire(blocking=False):
            return Said()
        try:
            now = self._clock.monotonic()
            if now - self._asked < ASK_EVERY_S:
                return Said()
            self._asked = now
            client = self._client(Patience(SMALL_S))
            url = obstore.sign(client, "HEAD", key or "config", timedelta(seconds=60))
            return ask(url, now=self._clock.wall(), ca_bundle=self._endpoint.ca_bundle)
        except BaseError:  # no credentials to sign with
            return Said()
        finally:
            self._asking.release()
