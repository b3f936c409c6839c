"""What is shown of a run, from facts alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spotwarp.persistence.runlog.entry import Claim, Complete, Failed, Phase, Released, Snapshot, State
from spotwarp.persistence.runlog.lease import Beat
from spotwarp.persistence.telemetry import Sample, Segment
from spotwarp.persistence.view import RunView, view

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


CLAIM = Claim(
    n=1,
    wall=ago(600),
    generation=1,
    machine="m-1",
    cause="first",
    base=0,
    lease_s=20,
    host="node",
    pid=7,
    command=("run",),
)
RESUMABLE = Snapshot(
    n=2,
    wall=ago(90),
    generation=1,
    manifest="",
    address="",
    base=0,
    cls="resumable",
    checkpoint="out/s7",
    step=7,
    loss=0.7,
)
LAST = Snapshot(n=3, wall=ago(30), generation=1, manifest="", address="", base=2, cls="none")
LIVE = State(
    generation=1, claim=1, life="a", machine="m-1", snapshot=3, snapshot_generation=1, resumable=2, retained=(2, 3)
)
BEAT = Beat(v=0, life="a", count=3, wall=ago(2), phase="training", facts={"at_risk_s": 30.0, "at_risk_bytes": 99})


def seen(state: State = LIVE, beat: Beat | None = BEAT, telemetry: Any = (), more: Any = (), **rest: Any) -> RunView:
    return view("main", state, [CLAIM, RESUMABLE, LAST, *more], telemetry, beat, NOW, **rest)


def test_a_run_that_was_never_claimed() -> None:
    shown = view("main", State(), [], [], None, NOW)

    assert (shown.state, shown.generation, shown.holder, shown.command) == ("new", 0, "", ())
    assert (shown.at_risk_s, shown.at_risk_bytes, shown.last_snapshot, shown.exit) == (0.0, 0, None, None)


def test_a_run_at_work() -> None:
    shown = seen()

    assert (shown.state, shown.holder, shown.since) == ("training", "node (process 7)", ago(600))
    assert (shown.last_snapshot, shown.last_snapshot_time, shown.last_snapshot_age_s) == (3, ago(30), 30)
    assert (shown.resumable_snapshot, shown.resumable_checkpoint, shown.resumable_step) == (2, "out/s7", 7)
    assert (shown.retained, shown.command, shown.readonly) == (2, ("run",), "")


def test_work_at_risk_grows_with_the_age_of_the_beat() -> None:
    shown = seen()

    assert (shown.beat_age_s, shown.at_risk_s, shown.at_risk_bytes) == (2, 32, 99)


def test_nothing_at_risk_stays_nothing() -> None:
    assert seen(beat=Beat(v=0, life="a", count=1, wall=ago(2), facts={"at_risk_s": 0.0})).at_risk_s == 0


def test_what_a_beat_does_not_tell_is_not_known() -> None:
    shown = seen(beat=Beat(v=0, life="a", count=1, wall=ago(2), facts={"at_risk_s": "much", "at_risk_bytes": None}))

    assert (shown.state, shown.at_risk_s, shown.at_risk_bytes) == ("claimed", None, None)


@pytest.mark.parametrize(("age", "state"), [(39, "training"), (41, "silent")])
def test_a_beat_older_than_two_leases_is_silence(age: float, state: str) -> None:
    assert seen(beat=Beat(v=0, life="a", count=1, wall=ago(age), phase="training")).state == state


def test_no_beat_or_one_without_a_time_is_silence() -> None:
    assert seen(beat=None).state == "silent"
    assert seen(beat=Beat(v=0, life="a", count=1, wall="?", phase="training")).state == "silent"


def test_a_clock_that_runs_ahead_gives_no_negative_age() -> None:
    assert seen(beat=Beat(v=0, life="a", count=1, wall=ago(-100))).beat_age_s == 0


def test_a_missing_claim_is_lived_with() -> None:
    shown = view("main", LIVE, [LAST], [], BEAT, NOW)

    assert (shown.state, shown.holder, shown.since, shown.resumable_snapshot) == ("training", "", "", None)


def test_a_sealed_run_has_nobody_and_nothing_at_risk() -> None:
    sealed = Phase(n=4, generation=1, phase="stopped", snapshot=3, exit=3)
    state = State(generation=1, claim=1, seal="stopped", snapshot=3, retained=(3,))
    shown = seen(state, more=[sealed, Released(n=5)])

    assert (shown.state, shown.holder, shown.exit) == ("stopped", "", 3)
    assert (shown.at_risk_s, shown.at_risk_bytes, shown.beat_age_s) == (0.0, 0, None)


@pytest.mark.parametrize(
    ("entry", "word", "code"),
    [
        (Complete(n=4, generation=1, snapshot=3), "complete", 0),
        (Failed(n=4, generation=1, snapshot=3, exit=9), "failed", 9),
    ],
)
def test_an_ended_run(entry: Any, word: str, code: int) -> None:
    shown = seen(State(generation=1, claim=1, terminal=word), more=[entry])

    assert (shown.state, shown.exit) == (word, code)


def test_a_run_that_goes_on_has_no_exit_code_of_its_past() -> None:
    assert seen(more=[Phase(n=4, generation=1, phase="stopped", exit=3)]).exit is None


def test_a_holder_in_trouble_says_so() -> None:
    beat = Beat(v=0, life="a", count=1, wall=ago(1), facts={"error": "403", "error_since": "noon"})
    shown = seen(beat=beat)

    assert (shown.errors, shown.errors_since) == ("403", "noon")
    assert seen().errors == ""


def test_the_newest_known_loss_and_step() -> None:
    segments = [
        Segment(0, 1, (Sample("", step=8, loss=0.8), Sample("", step=9))),
        Segment(0, 1, (Sample(""),)),
    ]
    assert (seen(telemetry=segments).step, seen(telemetry=segments).loss) == (9, 0.8)
    assert (seen().step, seen().loss) == (None, None)
    assert view("main", State(snapshot=2), [RESUMABLE], [], None, NOW).loss == 0.7
    assert view("main", State(snapshot=2), [RESUMABLE], [], None, NOW).step == 7


def test_a_log_that_is_only_partly_understood_is_shown_as_such() -> None:
    assert seen(readonly="entry 9 is newer").readonly == "entry 9 is newer"
