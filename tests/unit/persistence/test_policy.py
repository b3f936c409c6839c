"""Which coding is worth its processor time, for which link, which machine and which save."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwarp.persistence.backup.policy import MODES, Measured, Speed, choose

GB = 10**9
LINK = {"up_bytes_s": 100e6, "cores": 2.0, "changed_bytes": 10 * GB, "interval_s": 600.0}


@pytest.mark.parametrize(
    ("seen", "mode", "words"),
    [
        (Measured(local=True), "raw", "directory"),
        (Measured(), "planes", "no upload was measured"),
        (Measured(up_bytes_s=100e6), "planes", "not yet known"),
        # 10 GB at 100 MB/s: 80 s by planes.
        (Measured(**LINK), "planes", "within the time between saves"),
        (replace(Measured(**LINK), interval_s=60.0), "delta", "longer than the time between saves"),
        (replace(Measured(**LINK), notice_s=15.0), "delta", "longer than what a notice leaves"),
        (replace(Measured(**LINK), notice_s=None, interval_s=None), "planes", "a save"),
        # 10 Gbit/s and two cores: planes feed 1.2 GB/s, and of 0.8 for each byte.
        (replace(Measured(**LINK), up_bytes_s=2.5e9), "raw", "faster than 2 cores can code"),
        (replace(Measured(**LINK), up_bytes_s=2.5e9, cores=8.0), "planes", "within"),
        # A fraction of a core cannot feed even this link by planes.
        (replace(Measured(**LINK), cores=0.1), "raw", "faster than 0.1 cores can code"),
        # Delta is coded too slowly on this machine to be any faster.
        (replace(Measured(**LINK), interval_s=10.0, speeds={"delta": Speed(20e6, 0.1)}), "planes", "not faster"),
        # What cannot be made smaller is not worth the try.
        (replace(Measured(**LINK), speeds={"planes": Speed(600e6, 1.0)}), "raw", "faster than"),
    ],
)
def test_the_mode_follows_from_what_was_measured(seen: Measured, mode: str, words: str) -> None:
    found = choose(seen)
    assert (found.mode, words in found.why) == (mode, True), found


@pytest.mark.parametrize("mode", MODES)
def test_what_the_user_says_counts(mode: str) -> None:
    assert choose(Measured(local=True), told=mode).mode == mode  # type: ignore[arg-type]


measured = st.builds(
    Measured,
    up_bytes_s=st.one_of(st.none(), st.floats(1e4, 1e11)),
    cores=st.floats(0.05, 128),
    changed_bytes=st.integers(0, 1 << 45),
    interval_s=st.one_of(st.none(), st.floats(1, 86400)),
    notice_s=st.one_of(st.none(), st.floats(1, 600)),
    local=st.booleans(),
    speeds=st.dictionaries(
        st.sampled_from(MODES), st.builds(Speed, st.floats(1e6, 1e10), st.floats(0.01, 1.01)), max_size=3
    ),
)


@given(measured, st.sampled_from([None, *MODES]))
def test_there_is_always_a_mode_and_a_reason_and_it_is_stable(seen: Measured, before: str | None) -> None:
    first = choose(seen, before=before)  # type: ignore[arg-type]
    assert first.why
    assert choose(seen, before=first.mode).mode == first.mode, "what was chosen stays while nothing changes"


@given(measured)
def test_work_is_only_done_where_it_saves_time(seen: Measured) -> None:
    found = choose(seen).mode
    if seen.local or not seen.up_bytes_s:
        return
    for cheaper in MODES[: MODES.index(found)]:
        assert seen.seconds(found) <= seen.seconds(cheaper)


@given(measured, st.floats(1.0, 100.0))
def test_a_faster_link_never_asks_for_more_work(seen: Measured, times: float) -> None:
    seen = replace(seen, speeds={})  # where what does more takes longer
    if seen.up_bytes_s and not seen.local:
        now, then = choose(seen).mode, choose(replace(seen, up_bytes_s=seen.up_bytes_s * times)).mode
        assert MODES.index(then) <= MODES.index(now)
