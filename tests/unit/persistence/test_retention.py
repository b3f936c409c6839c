"""Which snapshots a new one lets go."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from spotwarp.persistence.retention import Retention, forgets
from spotwarp.persistence.runlog.entry import Snapshot

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def snap(
    n: int, *, minutes: float = 0.0, cls: str = "none", step: int | None = None, wall: str | None = None
) -> Snapshot:
    when = (NOON + timedelta(minutes=minutes)).isoformat()
    path = f"step-{step}" if cls == "resumable" else ""
    return Snapshot(
        n=n,
        generation=1,
        manifest="",
        address="",
        base=0,
        cls=cls,
        step=step,
        checkpoint=path,
        wall=when if wall is None else wall,
    )


def let_go(old: list[Snapshot], new: Snapshot, *, resumable: int = 1, hourly: int = 0) -> tuple[int, ...]:
    return forgets(old, new, Retention(resumable=resumable, hourly=hourly))


def test_the_first_lets_nothing_go() -> None:
    assert let_go([], snap(1)) == ()


def test_without_checkpoints_the_newest_two_stay() -> None:
    """The new one is not read back yet when it lets others go."""
    assert let_go([snap(1), snap(2)], snap(3)) == (1,)


def test_the_newest_snapshot_of_each_of_the_last_checkpoints_stays() -> None:
    old = [snap(n, cls="resumable", step=step) for n, step in [(1, 10), (2, 20), (3, 20), (4, 30), (5, 30)]]

    assert let_go(old, snap(6, cls="resumable", step=30), resumable=2) == (1, 2, 4)
    assert let_go(old, snap(6, cls="resumable", step=40), resumable=2) == (1, 2, 3, 4)


def test_the_newest_resumable_one_stays_whatever_the_policy() -> None:
    old = [snap(1, cls="resumable", step=1), snap(2), snap(3)]

    assert let_go(old, snap(4), resumable=0) == (2,)


def test_weights_only_checkpoints_are_no_reason_to_keep() -> None:
    old = [snap(n, cls="weights-only", step=n) for n in (1, 2)]
    assert let_go(old, snap(3, cls="weights-only", step=3)) == (1,)


def test_one_an_hour_stays_for_some_hours() -> None:
    old = [snap(n, minutes=m) for n, m in [(1, -125), (2, -65), (3, -61), (4, -5), (5, 0)]]

    assert let_go(old, snap(6, minutes=1), hourly=2) == (1, 2)
    assert let_go(old, snap(6, minutes=1), hourly=24) == (2,)


def test_a_time_that_cannot_be_read_is_no_reason_to_let_go() -> None:
    assert let_go([snap(1, wall="yesterday"), snap(2), snap(3)], snap(4)) == (2,)
    assert let_go([snap(1), snap(2), snap(3)], snap(4, wall="soon")) == ()


def test_the_usual_policy() -> None:
    old = [snap(n, minutes=n, cls="resumable", step=n // 2) for n in range(1, 10)]

    assert forgets(old, snap(10, minutes=10, cls="resumable", step=5), Retention()) == (1, 2, 3, 4, 5, 6, 8)


@given(
    st.lists(
        st.tuples(st.sampled_from(["none", "weights-only", "resumable"]), st.integers(0, 4), st.integers(0, 5000))
    ),
    st.integers(0, 4),
    st.integers(0, 30),
)
def test_what_is_needed_always_stays(facts: list[tuple[str, int, int]], resumable: int, hourly: int) -> None:
    made = [snap(n, cls=cls, step=step, minutes=m) for n, (cls, step, m) in enumerate([*facts, ("none", 0, 0)], 1)]
    *old, new = made
    gone = let_go(old, new, resumable=resumable, hourly=hourly)

    assert set(gone) <= {s.n for s in old}
    last = [s.n for s in made if s.cls == "resumable"][-1:]
    assert not set(last) & set(gone)
    kept = [s for s in old if s.n not in gone]
    assert let_go(kept, new, resumable=resumable, hourly=hourly) == ()  # deciding twice changes nothing
