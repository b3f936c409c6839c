"""A bucket somewhere else: the seven verbs over obstore, the same for every kind of bucket.

Owns the translation of the library's errors into ours, the check of every received length, and the time each request
may take. What differs between the kinds is in `s3.py`, `gcs.py` and `azure.py`. It never retries (`retrying.py` does,
or the caller), never uses multipart uploads (what a killed one leaves behind is invisible and billed), and never puts
a secret into a message.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import obstore
from obstore.exceptions import BaseError

from spotwarp.clock import Clock
from spotwarp.errors import CorruptObject, ObjectMissing, StoreDenied, StoreError, StoreUnavailable
from spotwarp.persistence.store.api import Buffer, ObjectMeta, checked_key
from spotwarp.persistence.store.dialects import Dialect
from spotwarp.persistence.store.headers import REFUSED, Said, ask
from spotwarp.persistence.store.refusal import (
    beyond_the_end,
    clock_off_s,
    code_of,
    is_skewed,
    lacks_credentials,
    meaning,
    skewed,
    status_of,
)

if TYPE_CHECKING:
    from obstore.store import AzureStore, ClientConfig, GCSStore, S3Store

    Client = S3Store | GCSStore | AzureStore

SMALL_BYTES = 128 * 1024
SMALL_S = 5.0
CONNECT_S = 5.0
STALL_S = 15.0
BASE_S = 60.0
SLOWEST_BYTES_S = 128 * 1024
UNKNOWN_BYTES = 64 * 1024 * 1024
ASK_EVERY_S = 1.0

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


class RemoteStore(ABC):
    """The bucket and prefix that `url` names. Nothing is asked of the server before the first verb."""

    _ca_bundle: Path | None = None
    """The certificates to trust beside the system's."""

    def __init__(self, url: str, dialect: Dialect, clock: Clock) -> None:
        self._url = url
        self._dialect = dialect
        self._clock = clock
        self._lock = threading.Lock()
        self._clients: dict[Patience, Client] = {}
        self._answered = False
        self._asking = threading.Lock()
        self._asked = float("-inf")

    @property
    def url(self) -> str:
        """See `Store`."""
        return self._url

    @abstractmethod
    def _connect(self, options: ClientConfig) -> Client:
        """A client that never retries. Raises the library's `BaseError` or a `StoreError`."""

    def _renewed(self, began: float) -> bool:
        """A request that began at `began` (monotonic) was refused for its key: True when there is another key now."""
        return False

    def put(self, key: str, data: Buffer) -> None:
        """See `Store`. One request; the payload is signed, so the server refuses what was damaged on its way."""
        self._put(key, data, "put")

    def put_new(self, key: str, data: Buffer) -> None:
        """See `Store`. One request that the server obeys only if there is no such object."""
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
                if beyond_the_end(str(error)) and self.head(key).size < start + length:
                    raise self._too_short(key, start, length) from error
                raise
        if size < start + length:
            raise self._too_short(key, start, length)
        if len(data) != length:
            raise StoreUnavailable(f"only {len(data)} of {length} bytes of {key} arrived from {self.url}")
        return data

    def head(self, key: str) -> ObjectMeta:
        """See `Store`."""
        with self._translated("head", key):
            try:
                meta = obstore.head(self._client(Patience(SMALL_S)), checked_key(key))
            except (BaseError, FileNotFoundError) as error:
                self._say_why(key, error)
                raise
        return ObjectMeta(key, meta["size"], meta["last_modified"])

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """See `Store`. Sorted here: not every server's order is the order of the keys."""
        within = checked_key(prefix) if prefix else None
        with self._translated("list", prefix):
            pages = obstore.list(self._client(patience_to_receive(None)), within, chunk_size=1000)
            found = [ObjectMeta(meta["path"], meta["size"], meta["last_modified"]) for page in pages for meta in page]
        return iter(sorted(found, key=lambda meta: meta.key))

    def delete(self, key: str) -> None:
        """See `Store`. One object a request: a bulk form is missing in some servers and hides refusals in others."""
        try:
            with self._translated("delete", key):
                try:
                    obstore.delete(self._client(Patience(SMALL_S)), checked_key(key))
                except (BaseError, FileNotFoundError) as error:
                    if status_of(str(error)) == 404:
                        self._say_why(key, error)
                    raise
        except ObjectMissing:
            return

    def _say_why(self, key: str, refused: Exception) -> None:
        """A refusal without a code says little (an answer to HEAD has no body); the one to a GET of a byte has one.

        Raises it, or returns if there is none any more or none was needed.
        """
        if code_of(str(refused)) or not 400 <= (status_of(str(refused)) or 0) < 500:
            return
        with self._translated("get", key):
            try:
                obstore.get(self._client(Patience(SMALL_S)), key, options={"range": (0, 1)})
            except BaseError as error:
                if not beyond_the_end(str(error)):  # an object of no bytes, made since
                    raise

    def _too_short(self, key: str, start: int, length: int) -> CorruptObject:
        return CorruptObject(f"{key} in {self.url} is too short for {start}+{length} bytes")

    def _client(self, patience: Patience) -> Client:
        with self._lock:
            if patience not in self._clients:
                self._clients[patience] = self._new_client(patience)
            return self._clients[patience]

    def _new_client(self, patience: Patience) -> Client:
        options: ClientConfig = {
            "connect_timeout": timedelta(seconds=CONNECT_S),
            "timeout": timedelta(seconds=patience.total_s),
        }
        if patience.stall_s is not None:
            options["read_timeout"] = timedelta(seconds=patience.stall_s)
        return self._connect(options)

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
        if code_of(text) in self._dialect.expired and self._renewed(began):
            with self._lock:
                self._clients.clear()  # each holds the old key
            return StoreUnavailable(f"{self.url}: the credentials had expired and were read again")
        if lacks_credentials(text):
            if self._answered:
                return StoreUnavailable(f"{self.url}: the machine's role could not be renewed just now")
            return StoreDenied(
                f"{self.url}: no credentials were found, and this machine has no role of its own",
                hint=self._dialect.no_keys,
            )
        refused = meaning(text, verb=verb, key=key, url=self.url, dialect=self._dialect)
        if status_of(text) in REFUSED and isinstance(refused, StoreUnavailable):
            refused.retry_after_s = self._said(key).retry_after_s
        elif (
            is_skewed(text, self._dialect) and clock_off_s(text) is None and (date := self._said(key).date) is not None
        ):
            return skewed(refused.message, (self._clock.wall() - date).total_seconds())
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
            url = self._signed(self._client(Patience(SMALL_S)), key or "config")
            return ask(url, now=self._clock.wall(), ca_bundle=self._ca_bundle)
        except BaseError:  # no credentials to sign with
            return Said()
        finally:
            self._asking.release()

    def _signed(self, client: Client, key: str) -> str:
        """An address for one HEAD of `key`. Raises the library's `BaseError` where it cannot be signed."""
        return obstore.sign(client, "HEAD", key, timedelta(seconds=60))
