"""What a run costs, from a listing, heartbeats and a price list; and which list a store has."""

from __future__ import annotations

import msgspec
import pytest

from spotwarp.persistence import layout
from spotwarp.persistence.cost import Cost, Restore, Stored, a_day, estimate, requests, stored, told
from spotwarp.persistence.envelope import Kind, seal
from spotwarp.persistence.runlog.lease import Beat
from spotwarp.persistence.store.metered import Used
from spotwarp.persistence.store.prices import AWS, AZURE, B2, DIRECTORY, GOOGLE, R2, WASABI, PriceList, listed
from spotwarp.testing.stores import MemoryStore
from spotwarp.values import Prices

GIB = 1 << 30


@pytest.mark.parametrize(
    ("scheme", "endpoint", "name"),
    [
        ("file", "", DIRECTORY.name),
        ("s3", "https://s3.eu-west-1.amazonaws.com", AWS.name),
        ("s3", "https://abc.r2.cloudflarestorage.com", R2.name),
        ("s3", "https://s3.us-west-004.backblazeb2.com", B2.name),
        ("s3", "https://s3.wasabisys.com", WASABI.name),
        ("s3", "https://storage.googleapis.com", GOOGLE.name),
        ("gs", "https://storage.googleapis.com", GOOGLE.name),
        ("az", "https://account.blob.core.windows.net", AZURE.name),
        ("s3", "http://127.0.0.1:8333", "127.0.0.1"),
        ("s3", "https://amazonaws.com.example.org", "amazonaws.com.example.org"),
    ],
)
def test_a_store_is_known_by_its_address(scheme: str, endpoint: str, name: str) -> None:
    assert listed(scheme, endpoint).name == name


def test_the_bill_is_amounts_times_prices() -> None:
    used = Used(puts=10_000, gets=100_000, lists=1000, deletes=10**9)
    found = estimate(AWS, Stored(packs=900 * GIB, log=100 * GIB), used, None, Restore(100 * GIB, 12_800))
    assert found.month == pytest.approx(23.0)
    assert found.requests == pytest.approx(0.05 + 0.04 + 0.005)
    assert found.day is None
    assert found.restore == pytest.approx(9.0 + 0.00512)


def test_nothing_is_guessed_where_no_price_is_known_and_the_user_may_say_it() -> None:
    unknown = listed("s3", "https://minio.example.org")
    amounts = Stored(packs=10**12), Used(puts=1000, gets=1000), None, Restore(10**12, 1000)
    assert estimate(unknown, *amounts) == Cost(None, None, None, None)
    assert "prices:" in unknown.note
    mine = unknown.amended(Prices(storage=0.01, egress=0.0))
    found = estimate(mine, *amounts)
    assert (found.month, found.requests, found.restore) == (pytest.approx(10.0), None, None)
    whole = unknown.amended(Prices(storage=0.01, put=0.005, get=0.001, egress=0.02))
    assert estimate(whole, *amounts).restore == pytest.approx(20.001)


def test_what_the_user_says_wins_over_the_list() -> None:
    assert AWS.amended(Prices()) is AWS
    amended = AWS.amended(Prices(egress=0.0))
    assert (amended.storage, amended.egress) == (AWS.storage, 0.0)


def test_what_lies_there_is_told_apart_by_its_place_and_the_requests_by_their_life() -> None:
    store = MemoryStore()
    store.put(layout.pack_key("main", "1-" + "0" * 32), bytes(1000))
    store.put(layout.manifest_key("main", "1-" + "0" * 32), bytes(100))
    store.put(layout.log_key("main", 1), bytes(10))
    for life, puts in (("a" * 16, 3), ("b" * 16, 4)):
        beat = Beat(v=0, life=life, count=1, facts={"puts": puts, "gets": 1, "got": 5, "error": "", "lists": None})
        store.put(layout.beat_key("main", life), seal(Kind.BEAT, msgspec.json.encode(beat)))
    store.put(layout.beat_key("main", "c" * 16), b"damaged")
    objects = list(store.list(layout.run_prefix("main")))
    found = stored(objects, "main")
    assert (found.packs, found.manifests, found.log, found.objects) == (1000, 100, 10, 6)
    assert found.bytes == sum(meta.size for meta in objects)
    assert requests(store, "main", objects) == Used(puts=7, gets=2, got=10)


def test_a_day_is_told_by_the_pace_of_a_life_that_was_long_enough() -> None:
    beat = Beat(v=0, life="a", count=9, wall="2030-01-01T01:00:00+00:00", facts={"puts": 100, "gets": 50})
    assert a_day(beat, "2030-01-01T00:00:00+00:00") == Used(puts=2400, gets=1200)
    assert a_day(beat, "2030-01-01T00:59:30+00:00") is None
    assert a_day(beat, "") is None
    assert a_day(beat, "2030-01-01T00:00:00") is None, "a wall time without a zone proves nothing"
    assert a_day(None, "2030-01-01T00:00:00+00:00") is None
    assert told(None) == Used()


def test_no_price_list_lacks_a_price() -> None:
    for prices in (AWS, GOOGLE, AZURE, R2, B2, WASABI, DIRECTORY):
        assert isinstance(prices, PriceList)
        assert None not in (prices.storage, prices.put, prices.get, prices.listing, prices.egress)
