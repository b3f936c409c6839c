"""What is read from a bucket or from `.spotwarp/`, fed hostile input: typed errors, bounded time and memory."""

from __future__ import annotations

import contextlib
import json
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from spotwarp import config
from spotwarp.errors import CorruptObject, SpotWarpError
from spotwarp.execution import localstate
from spotwarp.execution.occupancy import lock
from spotwarp.persistence import codec, layout, manifest, pack, telemetry
from spotwarp.persistence.encryption.secret import secret
from spotwarp.persistence.envelope import Kind, seal, unseal
from spotwarp.persistence.excludes import Excludes
from spotwarp.persistence.manifest import Blob, CheckpointFact, Entry, Extent, FileFact, Manifest, PackRef, Skipped
from spotwarp.persistence.repository import Repository, create, open_repository
from spotwarp.persistence.runlog import entry, lease
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.persistence.scan import scan
from spotwarp.persistence.statcache import Record, StatCache
from spotwarp.testing.backups import Backups
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.hostile import JSON_SPECIALS, MSGPACK_SPECIALS, bounded, mangled
from spotwarp.testing.stores import MemoryStore

ROUNDS = 300
DIGEST = bytes(range(16))
NUMBERS = (-1, 0, 1, 2, 8, 28, 2**63 - 1, 2**63, 2**64 - 1)
TEXTS = (b"", b"a0", b"a1", b"b0", b"b1", bytes([0] * 16), bytes([1] * 16))
MANIFEST = Manifest(
    0,
    "main",
    1,
    (PackRef("main", "1-" + "0" * 32, 100),),
    (Blob(0, 8, 20, 1, 30, DIGEST),),
    (Entry(b"a", 1, 0o755, 5, 0), Entry(b"a/b", 0, 0o644, 7, 30, (Extent(0, 30, 0, 0),), b"", DIGEST)),
    (CheckpointFact(b"a", "torn", 3),),
    (Skipped(b"x", "a FIFO"),),
    (FileFact(b"a/b", "torch", 2, "being rewritten"),),
)


def survives(read: Callable[[], object], *, seconds: float = 2.0, memory: int = 64 << 20) -> None:
    """`read` gives something or says in our own words why not."""
    with bounded(seconds=seconds, memory=memory), contextlib.suppress(SpotWarpError):
        read()


def pieces() -> tuple[bytes, bytes, bytes]:
    """Of the manifest above, as it is coded: its head, the one segment of entries; and the head's own content."""
    body = unseal(manifest.encode(MANIFEST), Kind.MANIFEST, "it")
    (length,) = struct.unpack_from("<I", body)
    head = body[4 : 4 + length]
    return head, body[4 + length :], zstandard.ZstdDecompressor().decompress(head)


def assembled(head: bytes, segment: bytes) -> bytes:
    return seal(Kind.MANIFEST, struct.pack("<I", len(head)) + head + segment)


def read_whole(data: bytes) -> None:
    """Decode it and every entry in it, as a reader must."""
    found = manifest.decode(data, "it")
    for one in found.entries:
        assert one.path is not None


def test_frames_of_any_content() -> None:
    for data in mangled(seal(Kind.ENTRY, b'{"kind":"claim"}'), 1, ROUNDS):
        survives(lambda data=data: unseal(data, Kind.ENTRY, "it"))  # type: ignore[misc]


def test_manifests_of_any_content() -> None:
    head, segment, raw = pieces()
    compress, rows = zstandard.ZstdCompressor().compress, zstandard.ZstdDecompressor().decompress(segment)
    read_whole(assembled(head, segment))
    heads = [*map(compress, (*MSGPACK_SPECIALS, *mangled(raw, 2, ROUNDS))), *mangled(head, 3, ROUNDS)]
    segments = [*map(compress, (*MSGPACK_SPECIALS, *mangled(rows, 4, ROUNDS))), *mangled(segment, 5, ROUNDS)]
    whole = unseal(assembled(head, segment), Kind.MANIFEST, "it")
    cases = [assembled(one, segment) for one in heads]
    for one in segments:  # with a head that fits
        fitting = msgspec.msgpack.decode(raw)
        fitting[5][0][2] = len(one)
        cases.append(assembled(compress(msgspec.msgpack.encode(fitting)), one))
    cases += [seal(Kind.MANIFEST, one) for one in mangled(whole, 6, ROUNDS)]
    for data in cases:
        survives(lambda data=data: read_whole(data))  # type: ignore[misc]


@pytest.mark.slow
def test_a_manifest_that_unpacks_to_gigabytes_is_refused_unread() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 30))
    assert len(bomb) < 1 << 20
    _, segment, raw = pieces()
    fitting = msgspec.msgpack.decode(raw)
    fitting[5][0][2] = len(bomb)
    second = zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(fitting))
    for data in (assembled(bomb, segment), assembled(second, bomb)):
        with bounded(memory=16 << 20), pytest.raises(CorruptObject):
            read_whole(data)


def test_what_is_read_of_a_manifest_can_be_restored_or_is_refused(tmp_path: Path) -> None:
    """Whatever passes the decoder must not make a restore do anything but fail in words."""
    backups = Backups(tmp_path)
    _, segment, raw = pieces()
    compress = zstandard.ZstdCompressor().compress
    for number, data in enumerate(mangled(raw, 4, 60)):
        try:
            backups.base = manifest.decode(assembled(compress(data), segment), "it")
        except SpotWarpError:
            continue
        into = tmp_path / f"r{number}"
        survives(lambda into=into: backups.restored(into))  # type: ignore[misc]
    assert all(re.match(r"r\d+", path.name) for path in tmp_path.iterdir())


def two_parts(rng: random.Random) -> bytes:
    """A manifest of two segments that name the same three blobs, the last coded with the first; some of it untrue."""
    ref = ["main", "1-" + "0" * 32, 100]
    parts: list[list[list[list[Any]]]] = []
    for path in (b"a", b"b"):
        blobs: list[list[Any]] = [[0, 8 + 20 * n, 20, 0, 20, bytes([n] * 16), -1] for n in range(3)]
        blobs[2][3], blobs[2][6] = 3, 0
        parts.append([[ref], blobs, [[path + b"%d" % n, 0, 0o644, 5, 20, [[0, 20, n, 0]]] for n in range(3)]])
    for _ in range(rng.randrange(4)):
        row = rng.choice(rng.choice(rng.choice(parts)[1:]))
        field = rng.choice([n for n, one in enumerate(row) if isinstance(one, (int, bytes))])
        row[field] = rng.choice(NUMBERS if isinstance(row[field], int) else TEXTS)
    coded = [zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(part)) for part in parts]
    places = [[part[2][0][0], len(part[2]), len(data)] for part, data in zip(parts, coded, strict=True)]
    head = zstandard.ZstdCompressor().compress(msgspec.msgpack.encode([0, "main", 1, [ref], places, [], []]))
    return assembled(head, b"".join(coded))


def test_parts_of_a_manifest_that_contradict_each_other(tmp_path: Path) -> None:
    """What passes the decoder is one thing: paths ascend, every blob is what all parts say, no base has a base."""
    rng, backups, passed = random.Random(14), Backups(tmp_path), 0
    for number in range(ROUNDS):
        try:
            found = manifest.decode(two_parts(rng), "it")
        except SpotWarpError:
            continue
        passed += 1
        paths = [one.path for one in found.entries]
        assert paths == sorted(set(paths))
        assert len({(blob.pack, blob.offset) for blob in found.blobs}) == len(found.blobs)
        assert all(blob.base < 0 or found.blobs[blob.base].base < 0 for blob in found.blobs)
        for one in found.entries:
            assert all(x.inner + x.length <= found.blobs[x.blob].raw for x in one.extents)
        if number % 10 == 0:
            backups.base = found
            survives(lambda into=tmp_path / f"r{number}": backups.restored(into))  # type: ignore[misc]
    assert 0 < passed < ROUNDS


def test_packs_of_any_content() -> None:
    rows = [pack.PackedBlob(DIGEST, 8, 5, 0, 5), pack.PackedBlob(DIGEST, 13, 3, 1, 9)]

    def whole(trailer: bytes) -> bytes:
        return seal(Kind.PACK, b"")[:8] + b"hello123" + trailer + pack.footer(trailer)

    trailer = msgspec.msgpack.encode(rows)
    assert len(pack.parse_pack(whole(trailer), "it")) == 2
    cases = [whole(t) for t in (*MSGPACK_SPECIALS, *mangled(trailer, 5, ROUNDS))]
    for data in (*cases, *mangled(whole(trailer), 6, ROUNDS)):
        survives(lambda data=data: pack.parse_pack(data, "it"))  # type: ignore[misc]
        store = MemoryStore()
        store.put("k", data)
        survives(lambda store=store, data=data: pack.read_trailer(store, "k", len(data)))  # type: ignore[misc]


def test_keys_and_sealed_objects_of_any_content() -> None:
    key = secret("spotwarp-key-" + "ab" * 32)
    create(store := MemoryStore(), clock=VirtualClock(), rng=SeededRng(), secret=key, encrypt=True)
    config, keys = store.get(layout.CONFIG), layout.keys_key(1)
    body = unseal(store.get(keys), Kind.KEYS, keys)
    cases = [seal(Kind.KEYS, text) for text in (*JSON_SPECIALS, *mangled(body, 11, ROUNDS))]
    for data in (*cases, *mangled(store.get(keys), 12, ROUNDS)):
        hostile = MemoryStore()
        hostile.put(layout.CONFIG, config)
        hostile.put(keys, data)
        survives(lambda hostile=hostile: open_repository(hostile, key))  # type: ignore[misc]
    sealed = open_repository(store, key).store
    for data in mangled(store.get(layout.BALLAST)[:200], 13, ROUNDS):
        store.put(layout.BALLAST, data)
        with pytest.raises(SpotWarpError):
            sealed.get(layout.BALLAST)


@pytest.mark.slow
def test_blobs_of_any_content() -> None:
    compress = zstandard.ZstdCompressor().compress
    good = compress(b"hello" * 100)
    cases = [
        compress(bytes(1 << 30)),
        compress(b"a") * 2,
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 28)),
    ]
    for data in (*cases, *mangled(good, 7, ROUNDS)):
        survives(lambda data=data: codec.decode(codec.ZSTD, data, 500), memory=16 << 20)  # type: ignore[misc]
    survives(lambda: codec.decode(codec.RAW, b"1", 2))
    survives(lambda: codec.decode(99, b"1", 1))


def entries() -> list[bytes]:
    state = {"generation": 1, "claim": 1, "life": "ab", "machine": "m", "retained": [3], "pins": {"c": 3}}
    common = {"v": 0, "n": 4, "nonce": "ab.1", "by": "ab", "wall": "2026-01-01T00:00:00+00:00", "state": state}
    own = [
        {
            "kind": "claim",
            "generation": 1,
            "machine": "m",
            "cause": "first",
            "base": 0,
            "lease_s": 20.0,
            "command": ["a"],
            "env": ["B"],
        },
        {"kind": "snapshot", "generation": 1, "manifest": "1-0", "address": "00", "base": 3, "cls": "none"},
        {"kind": "phase", "generation": 1, "phase": "preempted", "seconds": 5.0},
        {"kind": "forget", "snapshots": [1]},
        {"kind": "complete", "generation": 1, "snapshot": 3, "exit": 0},
    ]
    return [json.dumps({**common, **one}).encode() for one in own]


def test_log_entries_of_any_content() -> None:
    for seed, body in enumerate(entries()):
        assert entry.decode(seal(Kind.ENTRY, body), 4, "it").n == 4
        for data in mangled(body, seed, ROUNDS // 3):
            survives(lambda data=data: entry.decode(seal(Kind.ENTRY, data), 4, "it"))  # type: ignore[misc]
    for data in JSON_SPECIALS:
        survives(lambda data=data: entry.decode(seal(Kind.ENTRY, data), 4, "it"))  # type: ignore[misc]
        deep = b'{"kind":"claim","v":0,"n":4,"extra":' + data + b"}"
        survives(lambda deep=deep: entry.decode(seal(Kind.ENTRY, deep), 4, "it"))  # type: ignore[misc]


@pytest.mark.parametrize("what", ["heartbeat", "telemetry", "config", "hint"])
def test_small_objects_of_any_content(what: str) -> None:
    bodies = {
        "heartbeat": b'{"v":0,"life":"ab","count":3,"wall":"2026-01-01T00:00:00","phase":"training","facts":{"a":1}}',
        "telemetry": b'{"v":0,"generation":1,"samples":[{"wall":"2026-01-01T00:00:00+00:00","step":1,"loss":2.5}]}',
        "config": b'{"format":0,"id":"00000000000000000000000000000000","created":"2026-01-01T00:00:00+00:00"}',
        "hint": b"12",
    }
    kinds = {"heartbeat": Kind.BEAT, "telemetry": Kind.TELEMETRY, "config": Kind.CONFIG, "hint": Kind.HINT}
    for data in (*JSON_SPECIALS, b"9" * 4000, b"-3", *mangled(bodies[what], 8, ROUNDS)):
        store = MemoryStore()
        sealed = seal(kinds[what], data)
        store.put(layout.beat_key("main", "ab"), sealed)
        store.put(layout.telemetry_key("main", 1, 1), sealed)
        store.put(layout.CONFIG, sealed)
        store.put(layout.hint_key("main"), sealed)
        readers: dict[str, Callable[[], object]] = {
            "heartbeat": lambda store=store: lease.read_beat(store, "main", "ab"),  # type: ignore[misc]
            "telemetry": lambda store=store: telemetry.read_latest(store, "main"),  # type: ignore[misc]
            "config": lambda store=store: open_repository(store),  # type: ignore[misc]
            "hint": lambda store=store: log_of(filled(store)).head(),  # type: ignore[misc]
        }
        survives(readers[what])


def log_of(store: MemoryStore) -> RunLog:
    return Repository(store, None).log("main", life="ab", clock=VirtualClock(), rng=SeededRng())  # type: ignore[arg-type]


def filled(store: MemoryStore) -> MemoryStore:
    store.put(layout.CONFIG, seal(Kind.CONFIG, b'{"format":0,"id":"00000000000000000000000000000000","created":"x"}'))
    return store


STATE = {
    "state": (localstate.Origin, b'{"repository":"r","run":"main","snapshot":3,"pending":"","boot":"b"}'),
    "restoring": (localstate.Restoring, b'{"run":"m","repository":"r","snapshot":3,"step":"clearing","clear":["a"]}'),
    "distrust": (localstate.Distrust, b'{"repository":"r","run":"m","snapshots":[1],"packs":["p"]}'),
    "rate": (localstate.Rate, b'{"bytes_s":5.5}'),
}


@pytest.mark.parametrize("what", sorted(STATE))
def test_local_state_of_any_content_is_as_good_as_none(tmp_path: Path, what: str) -> None:
    kind, body = STATE[what]
    path = tmp_path / "state"
    for data in (*JSON_SPECIALS, *mangled(body, 9, ROUNDS)):
        path.write_bytes(data)
        survives(lambda: localstate.load(path, kind))


def test_a_stat_cache_of_any_content_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1")
    seen = scan(tmp_path, Excludes(())).entries
    cache = StatCache([Record(b"f", 1, 2, 3, 4, 5, 6, DIGEST)])
    path = tmp_path / "cache" / "stat"
    assert cache.save(path, tmp_path)
    body = unseal(path.read_bytes(), Kind.STATCACHE, "it")
    (length,) = struct.unpack_from("<I", body)
    heads = [struct.pack("<I", len(head)) + head + body[4 + length :] for head in MSGPACK_SPECIALS]
    for data in (*heads, *mangled(body, 10, ROUNDS)):
        path.write_bytes(seal(Kind.STATCACHE, data))
        with bounded(seconds=2, memory=64 << 20):
            found = StatCache.load(path, tmp_path)
            for one in seen:
                found.record(one)  # there is one segment here: what was not refused can be read


@pytest.mark.slow
def test_config_files_of_any_content(tmp_path: Path) -> None:
    own = tmp_path / ".spotwarp"
    own.mkdir()
    body = b"remote: s3://bucket/path\nrun: main\ninterval: 5s\nexclude:\n  - venv/\n  - '*.tmp'\n"
    (own / "config.yaml").write_bytes(body)
    bomb = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n" % ((98 + n, 98 + n) + (97 + n,) * 9) for n in range(12)
    )
    for data in (
        *JSON_SPECIALS,
        bomb,
        bomb + b"exclude: *m\n",
        b"? " * 2000,
        b"- " * 2000,
        b"run: !!python/object:os.system x",
        *mangled(body, 11, 20),
    ):
        (own / "config.yaml").write_bytes(data)
        survives(lambda: config.load(tmp_path, env={}), seconds=10)


def test_what_the_lock_says_of_its_holder_may_be_anything(tmp_path: Path) -> None:
    (tmp_path / ".spotwarp").mkdir()
    for data in (*JSON_SPECIALS, *mangled(b'{"pid": 3, "what": "run", "since": "x"}', 12, 60)):
        (tmp_path / ".spotwarp" / "lock").write_bytes(data)

        def take() -> None:
            with lock.hold(tmp_path, what="run", since="x"):
                pass

        survives(take)
