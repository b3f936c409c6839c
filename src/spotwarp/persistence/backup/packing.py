"""From contents to acknowledged packs, in bounded memory.

There is a fixed number of bytes for pack buffers. A worker fills one, hands it to the upload threads, and waits for the
next free one: when the store is slower than the disk, reading waits for it. How many are put at a time is found out
(`lanes`). The first failed upload ends everything; at the cut
(`cutoff`) what is not acknowledged is given up. Nothing but packs is ever put here, each under a name of its own that
is used once (P1).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Final

from spotwarp.clock import Rng
from spotwarp.errors import Interrupted
from spotwarp.persistence import codec
from spotwarp.persistence.backup.coding import FileCoding
from spotwarp.persistence.backup.concurrency import MOST
from spotwarp.persistence.backup.cutoff import Cutoff, TimeUp
from spotwarp.persistence.backup.lanes import Lanes
from spotwarp.persistence.backup.live import BigContent, pread_into
from spotwarp.persistence.backup.plan import BUNDLE, REST
from spotwarp.persistence.content import HOLE
from spotwarp.persistence.cuts import CHUNK
from spotwarp.persistence.encryption.sealed import box_for
from spotwarp.persistence.envelope import digest
from spotwarp.persistence.index import Index
from spotwarp.persistence.layout import new_object_id, pack_key
from spotwarp.persistence.pack import PackBuilder
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.store.retrying import Patient

_TELLING: Final = 1 << 20
"""So many bytes say how fast the link is; what fewer take is the time of a request, not of its bytes."""
_POLL_SECONDS: Final = 0.2
"""How soon a worker that waits for a slow store sees that it shall stop."""


class Uploads:
    """The pack buffers and the threads that put full ones."""

    def __init__(
        self,
        store: Store,
        index: Index,
        rng: Rng,
        *,
        run: str,
        generation: int,
        lanes: Lanes,
        cancel: threading.Event | None,
        cutoff: Cutoff,
    ) -> None:
        self._store, self._index, self._rng = store, index, rng
        self._cutoff, self._clock = cutoff, cutoff.clock
        self._run, self._generation = run, generation
        self._lanes = lanes
        self._cancel = cancel
        self._failed = threading.Event()
        self._futures: list[Future[None]] = []
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor
        self._limited = isinstance(store, Patient) and store.limited
        """What was sent so far then tells of the limit, not of the link; before a cut there is no limit."""
        self._began: float | None = None
        self._under_way = 0
        self._closed = False
        self.stored_bytes = 0
        self.acknowledged: set[int] = set()
        """The numbers of the packs that the store has acknowledged."""

    @contextmanager
    def open(self) -> Iterator[None]:
        """While it lasts packs can be put; it ends when all are acknowledged or the cut has come, and raises the first
        error of any.

        After an error those that wait are dropped, those under way waited for; a cut or `cancel` waits for nothing.
        """
        self._pool = ThreadPoolExecutor(MOST, thread_name_prefix="spotwarp-put")
        try:
            yield
            self._await_all()
        except BaseException:
            self._failed.set()
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._await_ends()
            raise
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _await_all(self) -> None:
        """Until every pack is acknowledged, or the cut has come. Raises the first error of any."""
        for future in self._futures:
            while not self._cutoff.passed():
                try:
                    future.result(timeout=_POLL_SECONDS)
                    break
                except TimeoutError:
                    if future.done():
                        raise
                    self.check()

    def _await_ends(self) -> None:
        """Until no upload is under way, or it is time to leave."""
        for future in self._futures:
            while not (future.done() or self._cancelled() or self._cutoff.passed()):
                wait((future,), timeout=_POLL_SECONDS)

    def take(self) -> tuple[PackBuilder, int]:
        """An empty pack and its number in the index, as soon as a buffer is free. Raises the first upload's error."""
        while True:
            self.check_time()
            if (builder := self._lanes.take(_POLL_SECONDS)) is None:
                continue
            with self._lock:
                name = new_object_id(self._generation, self._rng)
                number = self._index.new_pack(self._run, name)
            builder.reset(box_for(self._store, pack_key(self._run, name)))
            return builder, number

    def put(self, builder: PackBuilder, number: int) -> None:
        """Have the full pack put; its buffer is free again afterwards."""
        with self._lock:
            self._futures.append(self._pool.submit(self._put, builder, number))

    def check(self) -> None:
        """Raise what ended the uploads, if something did: an upload's error, or `Interrupted`.

        What becomes of an upload that was given up at the cut is of no interest.
        """
        refuse_stopped(self._cancel)
        if self._failed.is_set() and not self._closed:
            self._raise()

    def check_time(self) -> None:
        """As `check`; raises `TimeUp` when the cut has come."""
        self.check()
        if self._cutoff.passed():
            raise TimeUp

    @property
    def hurried(self) -> bool:
        """Whether a cut will come."""
        return self._cutoff.left() is not None

    def _cancelled(self) -> bool:
        return self._cancel is not None and self._cancel.is_set()

    def _over(self) -> bool:
        """Whether no pack need be put any more: another upload failed, or the cut has come."""
        return self._failed.is_set() or self._closed or self._cancelled()

    def _put(self, builder: PackBuilder, number: int) -> None:
        if self._over():
            return
        try:
            with builder.seal() as data, self._lanes.turn(data.nbytes, self._over, _POLL_SECONDS):
                if not self._over() and self._begin(data.nbytes):
                    ref = self._index.sealed(number, data.nbytes)
                    self._store.put(pack_key(self._run, ref.id), data)
                    self._end(number, data.nbytes)
        except BaseException:
            self._failed.set()
            raise
        self._lanes.give(builder)

    def _begin(self, size: int) -> bool:
        """Whether a pack of `size` bytes can be through before the cut; what cannot would only be in the way."""
        with self._lock:
            now = self._clock.monotonic()
            self._began = now if self._began is None else self._began
            told = self.stored_bytes >= _TELLING and now > self._began and not self._limited
            rate = self.stored_bytes / (now - self._began) if told else None
            if not self._cutoff.fits(self._under_way + size, rate):
                return False
            self._under_way += size
            return True

    def _end(self, number: int, size: int) -> None:
        with self._lock:
            self._under_way -= size
            self.stored_bytes += size
            self.acknowledged.add(number)

    def _raise(self) -> None:
        with self._lock:
            futures = list(self._futures)
        for future in futures:
            if future.done() and not future.cancelled():
                future.result()


def refuse_stopped(cancel: threading.Event | None) -> None:
    """Raise `Interrupted` once `cancel` is set."""
    if cancel is not None and cancel.is_set():
        raise Interrupted("the backup was stopped before its snapshot was complete; nothing was recorded")


class Packer:
    """One worker's pack in the making, and its bundle of small files. Not to be shared between threads."""

    def __init__(self, uploads: Uploads, index: Index, *, level: int) -> None:
        """`level` is zstd's, for bundles."""
        self._uploads, self._index = uploads, index
        self._level = level
        self._group = REST
        self._pack: tuple[PackBuilder, int] | None = None
        self._bundle = bytearray()
        self._inside: list[tuple[bytes, int]] = []
        self._scratch = bytearray()

    def enter(self, group: bytes) -> None:
        """What follows belongs to `group`: it begins a pack of its own."""
        if group != self._group:
            self.flush()
            self._group = group

    def small(self, content: bytes) -> bytes:
        """Take a small file's content; gives its digests."""
        if not content:
            return b""
        name = digest(content)
        if self._index.claim(name):
            self._inside.append((name, len(self._bundle)))
            self._bundle += content
            if len(self._bundle) >= BUNDLE:
                self._flush_bundle()
        return name

    def piece(self, big: BigContent, piece: int, coding: FileCoding) -> tuple[bytes, int]:
        """Read and take a piece of a big file; gives its digest (or `HOLE`) and how many bytes there were."""
        self._flush_bundle()  # small files are asked for first: they do not wait for the bulk
        length = big.cuts.length(piece)
        if coding.plain(big.cuts, piece):
            # Read straight into the pack: what is stored as it is, is never copied.
            builder, number = self._room(length)
            with builder.space(length) as space:
                got = pread_into(big.fd, space, big.cuts.starts[piece])
                with space[:got] as data:
                    name = digest(data) if got else HOLE
            if got and self._index.claim(name):
                self._index.add(number, builder.keep(name, codec.RAW, got, got), ((name, 0),))
            return name, got
        if len(self._scratch) < length:
            self._scratch = bytearray(max(length, CHUNK))
        with memoryview(self._scratch)[:length] as space:
            got = pread_into(big.fd, space, big.cuts.starts[piece])
            with space[:got] as data:
                name = digest(data) if got else HOLE
                if got:
                    self._coded(big, piece, coding, name, data)
        return name, got

    def _coded(self, big: BigContent, piece: int, coding: FileCoding, name: bytes, data: memoryview) -> None:
        # Zeros that were written stay data: a restored hole would make a whole checkpoint look torn.
        new = self._index.claim(name)
        coding.saw(big.cuts, piece, name, data)
        if not new:
            return
        coded = coding.encode(big.cuts, piece, data)
        builder, number = self._room(sum(memoryview(part).nbytes for part in coded.data))
        row = builder.add(name, coded.codec, data.nbytes, *coded.data, base=coded.base_digest)
        self._index.add(number, row, ((name, 0),), base=coded.base)

    def flush(self) -> None:
        """Hand over what there is."""
        self._flush_bundle()
        if self._pack is not None and self._pack[0].rows:
            self._put()

    def _flush_bundle(self) -> None:
        if not self._bundle:
            return
        name = digest(self._bundle)
        how, coded = codec.encode(self._bundle, level=self._level)
        builder, number = self._room(sum(memoryview(part).nbytes for part in coded))
        self._index.add(number, builder.add(name, how, len(self._bundle), *coded), self._inside)
        self._bundle = bytearray()
        self._inside = []

    def _room(self, length: int) -> tuple[PackBuilder, int]:
        """A pack with room for `length` bytes."""
        if self._pack is not None and not self._pack[0].fits(length):
            self._put()
        if self._pack is None:
            self._pack = self._uploads.take()
        return self._pack

    def _put(self) -> None:
        """Hand over the pack."""
        if self._pack is not None:
            self._uploads.put(*self._pack)
        self._pack = None
