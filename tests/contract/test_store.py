"""What every store promises, asked of every store."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from spotwarp.clock import SystemClock, SystemRng
from spotwarp.errors import AlreadyExists, CorruptObject, ObjectMissing, StoreUnavailable
from spotwarp.persistence.store.api import Store
from spotwarp.persistence.store.probe import probe

MIB = 1024 * 1024


def test_what_was_put_is_got_back_whole(store: Store) -> None:
    for size in (0, 1, 4095, 128 * 1024, 3 * MIB):
        body = os.urandom(size)
        store.put(f"runs/main/{size}", body)
        assert store.get(f"runs/main/{size}") == body
        assert store.head(f"runs/main/{size}").size == size


@pytest.mark.slow
def test_a_large_object_from_any_kind_of_buffer(store: Store) -> None:
    body = os.urandom(20 * MIB)
    store.put("packs/bytes", memoryview(body)[1:])
    assert store.get("packs/bytes") == body[1:]
    store.put("packs/bytes", bytearray(body))
    assert store.get("packs/bytes") == body
    store.put_new("packs/new", memoryview(bytearray(body)))
    assert store.get("packs/new") == body
    assert store.get_range("packs/new", 7 * MIB + 3, 5 * MIB) == body[7 * MIB + 3 : 12 * MIB + 3]


def test_put_overwrites_with_something_shorter(store: Store) -> None:
    store.put("hint", b"0000000042")
    store.put("hint", b"7")
    assert store.get("hint") == b"7"


def test_put_new_creates_once_and_leaves_the_first(store: Store) -> None:
    store.put_new("log/0000000001", b"first")
    with pytest.raises(AlreadyExists):
        store.put_new("log/0000000001", b"second")
    with pytest.raises(AlreadyExists):
        store.put_new("log/0000000001", b"first")
    assert store.get("log/0000000001") == b"first"


def test_put_new_finds_what_put_made_and_creates_after_a_delete(store: Store) -> None:
    store.put("config", b"a")
    with pytest.raises(AlreadyExists):
        store.put_new("config", b"b")
    store.delete("config")
    store.put_new("config", b"c")
    assert store.get("config") == b"c"


def test_of_sixteen_creators_only_one_can_win_and_the_object_is_its(store: Store) -> None:
    for round_ in range(3):
        barrier = threading.Barrier(16)
        key = f"log/{round_:010d}"

        def create(racer: int, key: str = key, barrier: threading.Barrier = barrier) -> int | None:
            barrier.wait(30)
            try:
                store.put_new(key, b"racer %d." % racer * 50)
            except (AlreadyExists, StoreUnavailable):  # a server may let losers wait until they give up
                return None
            return racer

        with ThreadPoolExecutor(16) as pool:
            told = [winner for winner in pool.map(create, range(16)) if winner is not None]
        [winner] = [racer for racer in range(16) if store.get(key) == b"racer %d." % racer * 50]
        assert told in ([winner], []), "somebody else was told that it had won"


def test_readers_never_see_half_an_overwrite(store: Store) -> None:
    bodies = [bytes([n]) * (200_000 + n) for n in range(4)]
    store.put("beats/a", bodies[0])
    stop = threading.Event()
    seen: list[bytes] = []

    def read() -> None:
        while not stop.is_set():
            seen.append(store.get("beats/a"))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(10):
        for body in bodies:
            store.put("beats/a", body)
    stop.set()
    reader.join(30)
    assert not reader.is_alive()
    assert seen
    assert all(body in bodies for body in seen)


def test_many_puts_at_once_all_arrive(store: Store) -> None:
    bodies = {f"packs/{n:02d}": os.urandom(MIB + n) for n in range(16)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda item: store.put(*item), bodies.items()))
    assert [(meta.key, meta.size) for meta in store.list("packs")] == [(k, len(v)) for k, v in bodies.items()]
    assert all(store.get(key) == body for key, body in bodies.items())


def test_a_range_is_exact_or_an_error(store: Store) -> None:
    store.put("packs/p", bytes(range(100)))
    assert store.get_range("packs/p", 0, 100) == bytes(range(100))
    assert store.get_range("packs/p", 99, 1) == b"c"
    assert store.get_range("packs/p", 100, 0) == b""
    assert store.get_range("packs/p", 5, 0) == b""
    for start, length in ((0, 101), (99, 2), (100, 1), (500, 1), (101, 0)):
        with pytest.raises(CorruptObject):
            store.get_range("packs/p", start, length)


def test_what_is_absent_is_missing(store: Store) -> None:
    store.put("runs/main/log/0000000001", b"x")
    for key in ("nothing", "runs", "runs/main/log", "runs/main/log/0000000002", "runs/main/log/0000000001/deeper"):
        with pytest.raises(ObjectMissing):
            store.get(key)
        with pytest.raises(ObjectMissing):
            store.get_range(key, 0, 1)
        with pytest.raises(ObjectMissing):
            store.head(key)
        store.delete(key)
    assert store.get("runs/main/log/0000000001") == b"x"


def test_an_empty_store_lists_nothing(store: Store) -> None:
    assert list(store.list("")) == []
    assert list(store.list("runs/main")) == []


def test_delete_removes_and_is_content_with_absence(store: Store) -> None:
    store.put("a/b", b"1")
    store.delete("a/b")
    store.delete("a/b")
    with pytest.raises(ObjectMissing):
        store.get("a/b")
    assert list(store.list("")) == []


def test_list_is_in_key_order_and_within_the_prefix_only(store: Store) -> None:
    keys = [
        "runs/a/log/1",
        "runs/a/log/2",
        "runs/a-b/log/1",
        "runs/a.b/x",
        "runs/a0",
        "runs/ab/x",
        "runs/A/x",
        "config",
    ]
    for key in reversed(keys):
        store.put(key, key.encode())
    assert [meta.key for meta in store.list("")] == sorted(keys)
    assert [meta.key for meta in store.list("runs/a")] == ["runs/a/log/1", "runs/a/log/2"]
    assert [meta.key for meta in store.list("runs")] == sorted(keys)[1:]
    assert list(store.list("runs/a0")) == []
    assert list(store.list("run")) == []


@pytest.mark.slow
def test_more_than_a_page_of_keys_is_listed_whole(store: Store) -> None:
    keys = [f"runs/main/packs/{n:06d}" for n in range(2345)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b"x"), keys))
    assert [meta.key for meta in store.list("runs/main/packs")] == keys


def test_the_stores_time_is_aware_and_now(store: Store) -> None:
    store.put("config", b"x")
    meta = store.head("config")
    assert abs(meta.modified - datetime.now(UTC)) < timedelta(minutes=5)
    assert next(store.list("")).modified.tzinfo is not None


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a/./b", "../a", "a/..", "é", "a\nb", "a\\b"])
def test_what_is_no_key_is_refused_by_every_verb(store: Store, key: str) -> None:
    verbs = [
        lambda: store.put(key, b""),
        lambda: store.put_new(key, b""),
        lambda: store.get(key),
        lambda: store.get_range(key, 0, 1),
        lambda: store.head(key),
        lambda: store.delete(key),
    ]
    for verb in verbs:
        with pytest.raises(ValueError, match="not a key"):
            verb()


def test_the_probe_finds_every_promise_kept_and_leaves_nothing(store: Store) -> None:
    result = probe(store, clock=SystemClock(), rng=SystemRng())
    result.require()
    assert result.create_if_absent == "atomic"
    assert result.deletable
    assert result.put_rate_bytes_s > 0
    assert result.details == ()
    assert list(store.list("")) == []
