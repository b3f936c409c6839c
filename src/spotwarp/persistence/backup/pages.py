"""Which pages of a file have changed: fingerprints of what is in the store, kept on this machine.

A large file that is rewritten in places (a database, a memory-mapped array) would be stored again by the chunk. The
fingerprints of the pages of a chunk are filed under the chunk's digest, so they are never wrong, only absent: then the
chunk is stored whole. One file in `.spotwarp/cache/pages` for each such file of the workspace; losing them costs bytes
and nothing else.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from spotwarp.clock import Rng
from spotwarp.errors import SpotWarpError
from spotwarp.persistence import codec
from spotwarp.persistence.codec.numbers import SEED
from spotwarp.persistence.envelope import Kind, digest, seal, unseal

_MOST_OF_A_FILE: Final = 64 << 20
"""Bytes of fingerprints of one file, which is 16 GiB of it; a larger one's chunks are stored whole."""
_MOST_FILES: Final = 10_000
_MOST: Final = 1 << 30
"""Bytes of all fingerprints."""


class _Kept(msgspec.Struct, array_like=True, frozen=True):
    path: bytes
    seed: bytes
    chunks: dict[bytes, bytes]
    """Fingerprints by the chunk's digest."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Kept)


class Pages:
    """The directory of them. May be shared by threads."""

    def __init__(self, directory: Path, rng: Rng) -> None:
        """`directory` need not exist; `rng` makes seeds that nobody can guess."""
        self._directory, self._rng = directory, rng
        self._sizes: dict[str, int] = {}
        with suppress(OSError):
            for found in os.scandir(directory):
                self._sizes[found.name] = found.stat().st_size
        self._all = sum(self._sizes.values())

    def of(self, path: bytes) -> FilePages:
        """What is kept of the file `path`."""
        return FilePages(self, path)

    def load(self, path: bytes) -> tuple[bytes, dict[bytes, bytes]]:
        """The seed, and fingerprints by digest; a new seed and nothing for what is damaged or not there."""
        name = _name(path)
        if name in self._sizes:
            with suppress(OSError, SpotWarpError, msgspec.DecodeError):
                data = (self._directory / name).read_bytes()
                kept = _decoder.decode(unseal(data, Kind.PAGES, "page fingerprints"))
                if kept.path == path and len(kept.seed) == SEED:
                    return kept.seed, kept.chunks
        return bytes.fromhex(self._rng.token(SEED)), {}

    def save(self, path: bytes, seed: bytes, chunks: dict[bytes, bytes]) -> None:
        """Keep `chunks` of the file `path`, unless that is too much; a full disk is no error."""
        name = _name(path)
        size = sum(map(len, chunks.values()))
        others = self._all - self._sizes.get(name, 0)
        many = name not in self._sizes and len(self._sizes) >= _MOST_FILES
        if not chunks or many or size > _MOST_OF_A_FILE or others + size > _MOST:
            self._remove(name)
            return
        temporary = self._directory / f"{name}.new"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(seal(Kind.PAGES, _encoder.encode(_Kept(path, seed, chunks))))
            temporary.replace(self._directory / name)
            self._sizes[name], self._all = size, others + size
        except OSError:
            with suppress(OSError):
                temporary.unlink()

    def keep_only(self, paths: Iterable[bytes]) -> None:
        """Forget all files but `paths`."""
        wanted = {_name(path) for path in paths} if self._sizes else set()
        for name in [name for name in self._sizes if name not in wanted]:
            self._remove(name)

    def _remove(self, name: str) -> None:
        self._all -= self._sizes.pop(name, 0)
        with suppress(OSError):
            (self._directory / name).unlink()


class FilePages:
    """The fingerprints of one file: those of before, and those of what is read now. May be shared by threads."""

    def __init__(self, pages: Pages, path: bytes) -> None:
        self._pages, self._path = pages, path
        self._lock = threading.Lock()
        self._before: dict[bytes, bytes] | None = None
        self._seed = b""
        self._now: dict[int, tuple[bytes, bytes]] = {}
        """By offset: a chunk's digest and its fingerprints."""
        self._size = 0
        self._full = False
        """There are too many: they are not kept, and no more are noted."""

    def known(self, name: bytes) -> bytes | None:
        """The fingerprints of the chunk with the digest `name`."""
        return self._known().get(name)

    def saw(self, offset: int, name: bytes, data: memoryview) -> None:
        """The chunk `name` lies at `offset` now."""
        prints = self.known(name) or codec.fingerprints(data, self._seed)
        self._note(offset, name, prints)

    def seen(self, offset: int) -> bytes | None:
        """The fingerprints of what lies at `offset` now."""
        found = self._now.get(offset)
        return found[1] if found is not None else None

    def patched(self, offset: int, base: bytes) -> None:
        """The chunk at `offset` is stored as a patch of the chunk `base`, which later ones are compared with, too."""
        if (prints := self.known(base)) is not None:
            self._note(offset, base, prints)

    def settled(self) -> None:
        """All of the file was read."""
        chunks = dict(self._now.values()) if not self._full else {}
        if chunks != self._known():
            self._pages.save(self._path, self._seed, chunks)

    def _known(self) -> dict[bytes, bytes]:
        with self._lock:
            if self._before is None:
                self._seed, self._before = self._pages.load(self._path)
            return self._before

    def _note(self, offset: int, name: bytes, prints: bytes) -> None:
        with self._lock:
            _, before = self._now.pop(offset, (b"", b""))  # of an earlier pass
            self._size -= len(before)
            if self._full or self._size + len(prints) > _MOST_OF_A_FILE:
                self._full = True
                return
            self._size += len(prints)
            self._now[offset] = name, prints


def _name(path: bytes) -> str:
    return digest(path).hex()
