"""Who can open a repository, and how that changes: never nobody, whatever dies or races."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
import pytest

from spotwarp.errors import CorruptObject, StoreUnavailable, UnsupportedFormat, UsageError, WrongKey
from spotwarp.persistence import layout
from spotwarp.persistence.encryption import keyring as module
from spotwarp.persistence.encryption.keyring import MOST_SLOTS, Keyring, KeySet, Opened, newest, open_keys
from spotwarp.persistence.encryption.secret import Secret, secret
from spotwarp.persistence.encryption.slots import Slot, Work, unwrap, wrap
from spotwarp.persistence.envelope import Kind, seal
from spotwarp.persistence.repository import create, open_repository, read_identity
from spotwarp.persistence.store.api import Store
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.stores import Crash, Fault, FaultyStore, MemoryStore, deny_delete

LIGHT = Work(n=2)
FIRST, SECOND, THIRD = (secret(f"passphrase {n}") for n in (1, 2, 3))
FILE = secret("spotwarp-key-" + "ab" * 32)
OTHER_FILE = secret("spotwarp-key-" + "cd" * 32)


def ring(store: Store, seed: int = 0) -> Keyring:
    return Keyring(store, clock=VirtualClock(), rng=SeededRng(seed), work=LIGHT)


def begun(store: Store, *more: Secret) -> Opened:
    opened = ring(store).begin("id", FIRST)
    for n, one in enumerate(more, 1):
        ring(store, n).add(opened, one)
    return opened


def opens(store: Store, one: Secret) -> bool:
    try:
        return len(open_keys(store, one).key) == 32
    except WrongKey:
        return False


def test_every_key_opens_the_same_repository() -> None:
    store = MemoryStore()
    opened = begun(store, SECOND, FILE)
    assert {open_keys(store, one).key for one in (FIRST, SECOND, FILE)} == {opened.key}
    assert not opens(store, THIRD)
    assert not opens(store, OTHER_FILE)
    assert [slot.kind for slot in ring(store).slots()] == ["passphrase", "passphrase", "file"]


def test_wrong_and_missing_keys_are_told_and_nothing_is_written() -> None:
    store = MemoryStore()
    begun(store)
    before = store.contents()
    for one, words in ((None, "no key is given"), (SECOND, "does not open"), (FILE, "does not open")):
        with pytest.raises(WrongKey, match=words) as refused:
            open_keys(store, one)
        assert refused.value.exit_code == 12
        assert "SPOTWARP_KEY" in str(refused.value.hint)
        assert "passphrase 2" not in refused.value.message
    assert store.contents() == before


def test_a_removed_key_opens_no_longer_and_its_form_is_gone() -> None:
    store = MemoryStore()
    opened = begun(store, SECOND)
    (gone,) = [slot for slot in ring(store).slots() if slot.id != opened.slot]
    ring(store).remove(opened, gone.id)
    assert opens(store, FIRST)
    assert not opens(store, SECOND)
    assert not any(gone.box.encode() in data for data in store.contents().values())


def test_the_key_in_use_is_never_removed() -> None:
    store = MemoryStore()
    opened = begun(store, SECOND)
    with pytest.raises(UsageError, match="the key in use"):
        ring(store).remove(opened, opened.slot)
    with pytest.raises(UsageError, match="no key 'nonsense'"):
        ring(store).remove(opened, "nonsense")
    assert opens(store, FIRST)
    assert opens(store, SECOND)


def test_a_rotated_key_is_replaced_in_one_step() -> None:
    calls = FaultyStore(store := MemoryStore())
    opened = begun(calls, SECOND)
    before = calls.count("put put_new")
    ring(calls, 9).rotate(opened, THIRD)
    assert calls.count("put put_new") == before + 1
    assert [opens(store, one) for one in (FIRST, SECOND, THIRD)] == [False, True, True]


def test_there_are_not_endlessly_many() -> None:
    store = MemoryStore()
    opened = begun(store, *(secret(f"spotwarp-key-{n:064x}") for n in range(MOST_SLOTS - 1)))
    with pytest.raises(UsageError, match="16 keys already"):
        ring(store, 99).add(opened, SECOND)


def test_a_secret_has_one_slot() -> None:
    store = MemoryStore()
    opened = begun(store, FILE)
    before = store.contents()
    for one in (FIRST, FILE):
        for change in (ring(store, 9).add, ring(store, 9).rotate):
            with pytest.raises(UsageError, match="opens the repository already"):
                change(opened, one)
    assert store.contents() == before


def test_a_removal_that_died_before_the_old_set_was_deleted_is_finished_later() -> None:
    def again(store: Store, opened: Opened, id: str) -> None:
        with pytest.raises(UsageError, match="no key"):
            ring(store).remove(opened, id)

    for finish in (
        lambda store, opened, id: ring(store).clean(),
        again,
        lambda store, opened, id: ring(store, 8).add(opened, THIRD),
    ):
        store = MemoryStore()
        opened = begun(store, SECOND)
        (gone,) = (slot for slot in ring(store).slots() if slot.id != opened.slot)
        with pytest.raises(Crash):
            ring(FaultyStore(store, Fault("delete", crash=True))).remove(opened, gone.id)
        assert any(gone.box.encode() in data for data in store.contents().values())
        finish(store, opened, gone.id)
        assert not any(gone.box.encode() in data for data in store.contents().values())


def test_sets_that_may_not_be_deleted_are_told() -> None:
    store = MemoryStore()
    begun(FaultyStore(store, deny_delete()), SECOND)
    assert ring(FaultyStore(store, deny_delete())).clean()
    assert ring(store).clean() == ""
    assert len(store.contents()) == 1


Change = Callable[[Store, Opened], object]
CHANGES: dict[str, tuple[Change, tuple[Secret, ...]]] = {
    "add": (lambda store, opened: ring(store, 7).add(opened, THIRD), (FIRST, SECOND)),
    "remove": (
        lambda store, opened: ring(store, 7).remove(
            opened, next(s.id for s in ring(store).slots() if s.id != opened.slot)
        ),
        (FIRST,),
    ),
    "rotate": (lambda store, opened: ring(store, 7).rotate(opened, THIRD), (SECOND,)),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("after", [False, True])
def test_a_death_at_any_step_leaves_a_repository_that_opens(name: str, after: bool) -> None:
    change, stay = CHANGES[name]
    for at in range(1, 30):
        opened = begun(store := MemoryStore(), SECOND)
        dying = FaultyStore(store, Fault(at=at, crash=not after, crash_after=after))
        try:
            change(dying, opened)
        except Crash:
            pass
        else:
            assert at > 3, "it died nowhere"
            break
        assert all(opens(store, one) for one in stay)
        assert opens(store, FIRST) or opens(store, THIRD)
        usable = next(one for one in (FIRST, THIRD) if opens(store, one))
        ring(store, 8).add(open_keys(store, usable), FILE)
        assert opens(store, FILE)
    else:
        pytest.fail("it never came to its end")


@pytest.mark.parametrize("name", CHANGES)
def test_a_lost_answer_changes_nothing(name: str) -> None:
    change, stay = CHANGES[name]
    opened = begun(store := MemoryStore(), SECOND)
    change(FaultyStore(store, Fault("put_new", lost_reply=True)), opened)
    assert all(opens(store, one) for one in stay)
    assert opens(store, THIRD) == (name != "remove")
    assert len(store.contents()) == 1


def between(store: Store, act: Callable[[], object]) -> FaultyStore:
    """`store`, in which somebody else acts right before the first create."""
    return FaultyStore(store, Fault("put_new", hook=act))


@pytest.mark.parametrize("mine", CHANGES)
@pytest.mark.parametrize("theirs", CHANGES)
def test_of_two_at_once_both_count_and_nobody_is_locked_out(mine: str, theirs: str) -> None:
    store = MemoryStore()
    opened = begun(store, SECOND)
    other = open_keys(store, SECOND)  # whose key is another one: to remove what is not its own is to remove ours
    act: dict[str, Callable[[], object]] = {
        "add": lambda: ring(store, 21).add(other, FILE),
        "remove": lambda: ring(store, 22).remove(other, opened.slot),
        "rotate": lambda: ring(store, 23).rotate(other, FILE),
    }
    if theirs == "remove":  # it is our own key that is gone meanwhile
        with pytest.raises(WrongKey, match="removed meanwhile"):
            CHANGES[mine][0](between(store, act[theirs]), opened)
    else:
        CHANGES[mine][0](between(store, act[theirs]), opened)
    assert opens(store, FILE) or opens(store, SECOND)
    if theirs == "add":
        assert opens(store, FILE)
    if mine == "add" and theirs != "remove":
        assert opens(store, THIRD)


def test_two_adds_in_threads_both_count() -> None:
    store = MemoryStore()
    opened = begun(store)
    ready = threading.Barrier(4)

    def add(n: int) -> None:
        ready.wait()
        ring(store, 50 + n).add(opened, secret(f"of thread {n}"))

    threads = [threading.Thread(target=add, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(opens(store, secret(f"of thread {n}")) for n in range(4))
    assert opens(store, FIRST)


def test_a_change_decided_on_an_old_set_does_not_count() -> None:
    """Another has replaced the set twice meanwhile and deleted the old ones, so that the old number is free again."""
    store = MemoryStore()
    opened = begun(store)

    def elsewhere() -> None:
        ring(store, 31).add(opened, SECOND)
        ring(store, 32).add(opened, FILE)

    ring(between(store, elsewhere), 33).add(opened, THIRD)
    assert all(opens(store, one) for one in (FIRST, SECOND, FILE, THIRD))


# --- init


def make(store: Store, one: Secret | None, *, seed: int = 0, encrypt: bool = True) -> str:
    repository, _ = create(store, clock=VirtualClock(), rng=SeededRng(seed), secret=one, encrypt=encrypt)
    return repository.identity.id


@pytest.mark.parametrize("after", [False, True])
def test_an_init_that_dies_is_finished_by_the_next(after: bool) -> None:
    deaths = 0
    for at in range(1, 8):
        store = MemoryStore()
        try:
            identity = make(FaultyStore(store, Fault(at=at, crash=not after, crash_after=after)), FILE)
        except Crash:
            deaths += 1
            identity = make(store, FILE, seed=1)
        assert open_repository(store, FILE).identity.id == identity
    assert deaths >= 3


def test_an_init_that_another_key_has_begun_is_told() -> None:
    begun(store := MemoryStore())
    with pytest.raises(WrongKey, match="another key has begun"):
        make(store, FILE)
    assert list(store.contents()) == [layout.keys_key(1)]


def test_two_inits_with_one_key_make_one_repository() -> None:
    store = MemoryStore()
    found = make(between(store, lambda: make(store, FILE, seed=1)), FILE)
    assert found == open_repository(store, FILE).identity.id


def test_an_encrypted_repository_takes_its_key_only() -> None:
    make(store := MemoryStore(), FILE)
    before = store.contents()
    for one in (None, OTHER_FILE, secret("a passphrase")):
        with pytest.raises(WrongKey):
            open_repository(store, one)
        for encrypt in (False, True):
            with pytest.raises((WrongKey, ValueError)):
                make(store, one, encrypt=encrypt)
    assert store.contents() == before
    assert read_identity(store)[1]


def test_a_plain_repository_takes_no_key_and_is_not_made_by_mistake() -> None:
    with pytest.raises(UsageError, match="is it to be encrypted"):
        make(store := MemoryStore(), FILE, encrypt=False)
    assert store.contents() == {}
    make(store, None, encrypt=False)
    with pytest.raises(WrongKey, match="is not encrypted, though a key is given"):
        open_repository(store, FILE)
    with pytest.raises(WrongKey):
        make(store, FILE)
    assert not open_repository(store).encrypted


def test_no_plain_repository_is_made_where_there_are_keys() -> None:
    begun(store := MemoryStore())
    with pytest.raises(WrongKey, match="there are keys"):
        make(store, None, encrypt=False)
    assert list(store.contents()) == [layout.keys_key(1)]


# --- a store that lies


def test_keys_of_another_repository_are_refused() -> None:
    make(mine := MemoryStore(), FILE)
    make(theirs := MemoryStore(), FILE, seed=1)
    mine.put(layout.keys_key(1), theirs.get(layout.keys_key(1)))
    with pytest.raises(CorruptObject, match="another repository's"):
        open_repository(mine, FILE)
    keys = msgspec.json.decode(theirs.get(layout.keys_key(1))[8:-16], type=KeySet)
    forged = msgspec.structs.replace(keys, repository=read_identity(mine)[0].id)
    mine.put(layout.keys_key(1), seal(Kind.KEYS, msgspec.json.encode(forged)))
    with pytest.raises(WrongKey):
        open_repository(mine, FILE)


def test_keys_that_are_gone_damaged_or_newer_are_told() -> None:
    make(store := MemoryStore(), FILE)
    key = layout.keys_key(1)
    good = store.get(key)
    for bad, error in (
        (good[:-1], CorruptObject),
        (seal(Kind.KEYS, b"[]"), CorruptObject),
        (seal(Kind.KEYS, b'{"v":1,"repository":"","slots":[]}'), CorruptObject),
        (seal(Kind.KEYS, b'{"v":2,"repository":"","slots":[]}'), UnsupportedFormat),
        (seal(Kind.CONFIG, b"{}"), CorruptObject),
    ):
        store.put(key, bad)
        with pytest.raises(error):
            open_repository(store, FILE)
    store.delete(key)
    with pytest.raises(CorruptObject, match="are gone"):
        open_repository(store, FILE)


@pytest.mark.parametrize(
    "change",
    [
        {"id": "\x1b[2J"},
        {"id": ""},
        {"created": "\x1b]0;owned\x07"},
        {"created": "yesterday"},
        {"kind": "passphrase\n* 1"},
    ],
)
def test_what_is_shown_of_a_slot_is_what_it_must_be(change: dict[str, str]) -> None:
    begun(store := MemoryStore())
    _, keys = newest(store)
    forged = msgspec.structs.replace(keys, slots=(msgspec.structs.replace(keys.slots[0], **change),))
    store.put(layout.keys_key(1), seal(Kind.KEYS, msgspec.json.encode(forged)))
    with pytest.raises(CorruptObject, match="an id, kind or date"):
        ring(store).slots()


def test_no_more_than_a_bound_of_work_is_done_for_a_set() -> None:
    begun(store := MemoryStore())
    _, keys = newest(store)
    heavy = msgspec.structs.replace(keys.slots[0], n=1 << 18, r=8, p=1)
    for count, light in ((8, 0), (9, 0), (9, 1)):
        slots = (heavy,) * count + (msgspec.structs.replace(heavy, n=-(1 << 40)),) * light
        forged = msgspec.structs.replace(keys, slots=slots)
        store.put(layout.keys_key(1), seal(Kind.KEYS, msgspec.json.encode(forged)))
        if count == 8:
            assert len(ring(store).slots()) == count
        else:
            with pytest.raises(CorruptObject, match="more work"):
                open_keys(store, FIRST)


@pytest.mark.parametrize(("n", "r", "p"), [(1 << 40, 8, 1), (2, 1 << 40, 1), (2, 8, 1 << 40), (3, 8, 1), (-2, 8, 1)])
def test_no_more_than_a_bound_of_work_is_done_for_a_slot(n: int, r: int, p: int) -> None:
    slot = Slot("a", "passphrase", "00" * 32, "00" * 60, n, r, p)
    assert unwrap(slot, FIRST, "id") is None


def test_a_slot_is_bound_to_what_it_says() -> None:
    slot = wrap(bytes(32), FIRST, repository="id", id="a", created="", work=LIGHT)
    assert unwrap(slot, FIRST, "id") == bytes(32)
    assert unwrap(slot, FIRST, "other") is None
    for change in ({"id": "b"}, {"n": 4}, {"p": 2}, {"salt": "00" * 32}, {"salt": "xyz"}, {"box": ""}, {"kind": "new"}):
        assert unwrap(msgspec.structs.replace(slot, **change), FIRST, "id") is None


def test_sets_that_cannot_be_deleted_do_no_harm() -> None:
    store = MemoryStore()
    opened = begun(FaultyStore(store, deny_delete()), SECOND, FILE)
    assert len(store.contents()) == 3
    assert newest(store)[0] == 3
    ring(store, 77).rotate(opened, THIRD)
    assert list(store.contents()) == [layout.keys_key(4)]


def test_a_store_that_never_settles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TRIES", 3)
    opened = begun(store := MemoryStore())
    down = FaultyStore(store, Fault("put_new", times=None, error=StoreUnavailable("no answer")))
    with pytest.raises(StoreUnavailable, match="no answer"):
        ring(down, 5).add(opened, SECOND)
    assert not opens(store, SECOND)
