"""The end of a run, path by path: what is ordered, in which order, and which exit code says so."""

from __future__ import annotations

import pytest

from spotwarp.execution.supervisor import (
    Action,
    CancelSync,
    CheckpointCompleted,
    ChildExited,
    EndTree,
    Event,
    Exit,
    FencedOff,
    FinalSync,
    Hint,
    IntervalDue,
    Notice,
    Policy,
    Say,
    Seal,
    Sig,
    Signalled,
    SignalTree,
    Started,
    StartSync,
    State,
    SyncFinished,
    Tick,
    TreeGone,
    WriteNotice,
    step,
)


class Play:
    """Feeds events and keeps the actions, without what is only said."""

    def __init__(self, policy: Policy | None = None, *, started: bool = True) -> None:
        self.state = State(policy or Policy())
        self.said: list[str] = []
        if started:
            assert self(Started(0)) == []

    def __call__(self, *events: Event) -> list[Action]:
        done: list[Action] = []
        for event in events:
            self.state, actions = step(self.state, event)
            done += [action for action in actions if not isinstance(action, Say)]
            self.said += [action.text for action in actions if isinstance(action, Say)]
        return done


def codes(actions: list[Action]) -> list[object]:
    """Actions with the words of the exit left out."""
    return [action.code if isinstance(action, Exit) else action for action in actions]


def ok(now: float) -> SyncFinished:
    return SyncFinished(ok=True, now=now)


def failed(now: float) -> SyncFinished:
    return SyncFinished(ok=False, now=now)


TERM = Signalled(Sig.TERM, 100)
INT = Signalled(Sig.INT, 100)


# --- A command that ends by itself


@pytest.mark.parametrize(
    ("code", "kind"), [(0, "complete"), (1, "stopped"), (3, "stopped"), (255, "stopped"), (137, "stopped")]
)
def test_the_commands_own_code_comes_through_once_everything_is_stored(code: int, kind: str) -> None:
    play = Play()
    assert play(ChildExited(code, "ended", 10)) == []
    assert play(TreeGone(10)) == [FinalSync(None)]
    assert codes(play(ok(11))) == [Seal(kind, code), code]  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [0, 1, 137])
def test_a_failed_final_sync_is_no_success_and_names_the_end_of_the_command(code: int) -> None:
    play = Play()
    play(ChildExited(code, "was killed by SIGKILL (9)", 10), TreeGone(10))
    (end,) = play(failed(11))
    assert isinstance(end, Exit)
    assert end.code == 125
    assert "SIGKILL" in end.reason


def test_what_the_command_left_running_may_linger_and_is_then_ended() -> None:
    play = Play(Policy(linger_s=10, kill_after_s=5))
    assert play(ChildExited(0, "exited with 0", 100), Tick(109)) == []
    assert play(Tick(110)) == [EndTree(5)]
    assert play(Tick(111), Tick(200)) == []
    assert play(TreeGone(200)) == [FinalSync(None)]


def test_an_empty_tree_may_be_seen_before_the_leaders_end() -> None:
    play = Play()
    assert play(TreeGone(10)) == []
    assert play(ChildExited(0, "exited with 0", 10)) == [FinalSync(None)]


def test_what_could_not_be_killed_is_named() -> None:
    play = Play()
    play(ChildExited(0, "exited with 0", 10), TreeGone(10, ("python",)))
    assert "python" in play.said[-1]


# --- Syncs beside the command


def test_there_is_one_sync_at_a_time_and_a_checkpoint_during_one_leads_to_another() -> None:
    play = Play()
    assert play(CheckpointCompleted(1)) == [StartSync("checkpoint")]
    assert play(IntervalDue(2), CheckpointCompleted(3), CheckpointCompleted(4)) == []
    assert play(ok(5)) == [StartSync("checkpoint")]
    assert play(ok(6)) == []
    assert play(IntervalDue(7)) == [StartSync("interval")]
    assert play(IntervalDue(8)) == []
    assert play(failed(9)) == []  # training goes on (I10)
    assert play(ok(9)) == []  # nothing was running


def test_the_final_sync_waits_for_the_sync_before_it() -> None:
    play = Play()
    play(IntervalDue(1), ChildExited(0, "exited with 0", 10))
    assert play(TreeGone(10)) == []
    assert play(failed(20)) == [FinalSync(None)]
    assert codes(play(ok(21))) == [Seal("complete", 0), 0]


# --- Preemption


@pytest.mark.parametrize("code", [0, 1, 143])
def test_sigterm_is_a_preemption_whatever_the_command_says(code: int) -> None:
    play = Play(Policy(grace_s=30, sync_share=0.5))
    assert play(TERM) == [WriteNotice(15, "SIGTERM"), SignalTree(Sig.TERM)]
    assert play(ChildExited(code, "ended", 101), Tick(114)) == []  # bash is gone, the trainer behind it saves
    assert play(TreeGone(114)) == [FinalSync(130)]
    assert codes(play(ok(120))) == [Seal("preempted", code), 75]


def test_a_command_that_uses_up_its_time_is_ended_so_that_the_final_sync_has_its_own() -> None:
    play = Play(Policy(sync_share=0.5, kill_after_s=5))
    assert play(Notice(20, "test", 100)) == [WriteNotice(10, "test"), SignalTree(Sig.TERM)]
    assert play(Tick(109.9)) == []
    assert play(Tick(110)) == [EndTree(2)]  # a fifth of what is left
    assert play(TreeGone(112)) == [FinalSync(120)]
    assert codes(play(ok(119))) == [Seal("preempted", None), 75]


def test_the_final_syncs_share_is_bounded() -> None:
    play = Play(Policy(sync_share=0.5, sync_max_s=60))
    assert play(Notice(900, "test", 0))[0] == WriteNotice(840, "test")


def test_a_preempted_run_whose_final_sync_failed_or_is_late_says_so() -> None:
    play = Play()
    play(TERM, TreeGone(101))
    assert codes(play(failed(102))) == [125]
    play = Play(Policy(grace_s=30, overrun_s=5))
    play(TERM, TreeGone(101))
    assert play(Tick(134.9)) == []
    assert codes(play(Tick(135))) == [125]
    assert play(ok(136)) == []


def test_a_tree_that_outlives_the_deadline_is_killed_before_leaving() -> None:
    play = Play()
    play(TERM)
    assert codes(play(Tick(200))) == [EndTree(0), 125]


def test_a_checkpoint_saved_because_of_the_notice_is_stored_at_once() -> None:
    play = Play()
    play(Notice(60, "test", 0))
    assert play(IntervalDue(1)) == []
    assert play(CheckpointCompleted(2)) == [StartSync("checkpoint")]
    assert play(TreeGone(3)) == []  # that sync carries what matters: it is not cancelled
    assert play(ok(4)) == [FinalSync(60)]


def test_a_routine_sync_makes_way_for_the_final_one() -> None:
    play = Play()
    assert play(IntervalDue(0), Notice(60, "test", 1), TreeGone(3)) == [
        StartSync("interval"),
        WriteNotice(30, "test"),
        SignalTree(Sig.TERM),
        CancelSync(),
    ]
    assert play(failed(4)) == [FinalSync(61)]


def test_the_notice_may_be_told_by_another_signal_or_by_the_file_alone() -> None:
    assert play_notice(Policy(preempt_signal=10)) == [WriteNotice(30, "test"), SignalTree(10)]
    assert play_notice(Policy(preempt_signal=None)) == [WriteNotice(30, "test")]


def play_notice(policy: Policy) -> list[Action]:
    return Play(policy)(Notice(60, "test", 0))


def test_a_second_notice_shortens_and_never_lengthens() -> None:
    play = Play(Policy(grace_s=30))
    play(Notice(120, "test", 0))
    assert play(Notice(600, "test", 0)) == [WriteNotice(60, "test")]
    assert play(Signalled(Sig.TERM, 10)) == [WriteNotice(15, "SIGTERM")]  # told once is enough
    assert play(Tick(25)) == [EndTree(3)]
    assert play(TreeGone(26)) == [FinalSync(40)]


@pytest.mark.parametrize(
    ("grace_s", "share", "save_s"), [(5, 0.5, 2.5), (30, 0.5, 15), (120, 0.5, 60), (120, 0.25, 90), (600, 0.5, 480)]
)
def test_what_is_left_is_split_and_the_numbers_are_told_and_logged(grace_s: float, share: float, save_s: float) -> None:
    """The final sync's share ends at two minutes: more helps it no longer."""
    play = Play(Policy(grace_s=grace_s, grace_by="RunPod", sync_share=share))
    notice, *_ = play(TERM)
    assert notice == WriteNotice(save_s, "SIGTERM")
    split = f"{grace_s:.1f} s left: {save_s:.1f} s for the command to save, {grace_s - save_s:.1f} s for the final sync"
    assert isinstance(notice, WriteNotice)
    assert notice.detail == f"SIGTERM: RunPod; {split}"
    assert play.said == [f"preemption (SIGTERM: RunPod): {split}"]
    assert play(Tick(100 + save_s - 0.1)) == []
    (ending,) = play(Tick(100 + save_s))
    assert isinstance(ending, EndTree)
    assert ending.term_grace_s <= (grace_s - save_s) / 5
    assert play(TreeGone(101 + save_s)) == [FinalSync(100 + grace_s)]


def test_a_hint_stores_beside_the_command_and_never_during_the_end() -> None:
    play = Play()
    assert play(Hint(1)) == [StartSync("hint")]
    assert play(Hint(2), ok(3)) == [StartSync("checkpoint")]  # what changed since
    assert play(ok(4)) == []
    play(TERM)
    assert play(Hint(101)) == []


def test_sigterm_again_ends_the_command_now_and_a_third_time_everything() -> None:
    play = Play(Policy(grace_s=30, kill_after_s=5))
    play(TERM)
    assert play(TERM) == [EndTree(5)]
    assert play(TreeGone(101)) == [FinalSync(130)]
    assert codes(play(TERM)) == [125]
    play = Play()
    play(TERM, TERM)
    assert play(TERM) == [EndTree(0)]
    assert codes(play(TreeGone(101))) == [125]
    play = Play()
    play(TERM, TERM, TERM)
    assert codes(play(TERM)) == [EndTree(0), 125]


def test_what_a_command_left_running_is_preempted_by_a_notice() -> None:
    """It may be the work itself, started in the background."""
    play = Play()
    play(ChildExited(0, "exited with 0", 10))
    assert play(Notice(20, "test", 12)) == [WriteNotice(10, "test"), SignalTree(Sig.TERM)]
    assert play(Tick(20)) == [EndTree(2.4)]
    assert play(TreeGone(20)) == [FinalSync(32)]
    assert codes(play(ok(21))) == [Seal("preempted", 0), 75]


def test_a_command_that_had_ended_before_the_notice_is_complete() -> None:
    play = Play()
    play(ChildExited(0, "exited with 0", 10))
    play(Notice(20, "test", 12))
    assert play(TreeGone(13)) == [FinalSync(32)]  # what it left ended by itself
    assert codes(play(ok(14))) == [Seal("complete", 0), 0]


def test_what_had_to_be_ended_is_not_complete() -> None:
    play = Play()
    play(ChildExited(0, "exited with 0", 10))
    assert EndTree(5.0) in play(Tick(21))
    assert play(TreeGone(22)) == [FinalSync(None)]
    assert codes(play(ok(23))) == [Seal("stopped", 0), 125]


def test_a_notice_during_the_final_sync_gives_it_a_deadline() -> None:
    play = Play(Policy(overrun_s=5))
    play(IntervalDue(0), ChildExited(0, "exited with 0", 10), TreeGone(10))
    assert play(Notice(20, "test", 10)) == [CancelSync()]
    assert play(failed(11)) == [FinalSync(30)]
    assert play(Notice(60, "test", 12)) == []
    assert codes(play(Tick(35))) == [125]


# --- A stop by the user


def test_ctrl_c_is_a_stop_with_everything_stored() -> None:
    play = Play(Policy(grace_s=30, kill_after_s=5))
    assert play(INT) == [SignalTree(Sig.INT)]
    assert play(ChildExited(130, "exited with 130", 101), Tick(129)) == []
    assert play(Tick(130)) == [EndTree(5)]
    assert play(TreeGone(131)) == [FinalSync(None)]
    assert codes(play(ok(132))) == [Seal("stopped", 130), 130]


def test_a_stop_whose_final_sync_failed_is_no_clean_stop() -> None:
    play = Play()
    play(INT, TreeGone(101))
    assert codes(play(failed(102))) == [125]


def test_ctrl_c_twice_is_now_and_says_what_is_lost() -> None:
    play = Play()
    play(INT)
    assert play(INT) == [EndTree(0)]
    (end,) = play(TreeGone(101))
    assert isinstance(end, Exit)
    assert end.code == 130
    assert "not stored" in end.reason


def test_ctrl_c_twice_during_the_final_sync_leaves_it() -> None:
    play = Play()
    play(ChildExited(0, "exited with 0", 10), TreeGone(10))
    assert play(INT) == []
    assert "again" in play.said[-1]
    assert codes(play(INT)) == [130]


def test_ctrl_c_three_times_does_not_wait_for_anything() -> None:
    play = Play()
    play(INT, INT)
    assert codes(play(INT)) == [EndTree(0), 130]


def test_ctrl_c_after_a_notice_is_the_users_word() -> None:
    play = Play()
    play(Notice(60, "test", 100))
    assert play(INT) == [EndTree(5)]
    assert play(TreeGone(101)) == [FinalSync(160)]
    assert codes(play(ok(102))) == [Seal("stopped", None), 130]


def test_a_notice_after_ctrl_c_only_sets_the_deadline() -> None:
    play = Play(Policy(grace_s=30))
    play(INT)
    assert play(Notice(20, "test", 101)) == [WriteNotice(10, "test")]
    assert play(Tick(111)) == [EndTree(2)]
    assert play(TreeGone(112)) == [FinalSync(121)]
    assert codes(play(ok(113))) == [Seal("stopped", None), 130]


def test_ctrl_c_ends_what_a_finished_command_left() -> None:
    play = Play()
    play(ChildExited(0, "exited with 0", 99))
    assert play(INT) == [EndTree(5)]
    play(TreeGone(101))
    assert codes(play(ok(102))) == [Seal("complete", 0), 0]


# --- Fenced


def test_fenced_ends_the_command_and_stores_nothing() -> None:
    play = Play()
    assert play(IntervalDue(0), FencedOff("generation 3 has claimed the run", 1)) == [
        StartSync("interval"),
        EndTree(2),
    ]
    assert play(FencedOff("again", 1), failed(2), ChildExited(143, "killed", 2), INT) == []
    (end,) = play(TreeGone(3))
    assert isinstance(end, Exit)
    assert end.code == 125
    assert "fenced" in end.reason
    assert "generation 3" in end.reason


def test_fenced_during_the_final_sync_leaves_at_once() -> None:
    play = Play()
    play(TERM, TreeGone(101))
    (end,) = play(FencedOff("later", 102))
    assert isinstance(end, Exit)
    assert "fenced" in end.reason


# --- Before the start, and what means nothing


def test_what_came_before_the_start_takes_effect_with_it() -> None:
    play = Play(started=False)
    assert play(Tick(1), Notice(60, "test", 1), IntervalDue(2)) == []
    assert play(Started(3)) == [WriteNotice(30, "test"), SignalTree(Sig.TERM)]
    assert play(Started(4)) == []


@pytest.mark.parametrize("sig", [Sig.HUP, 10, 28])
def test_other_signals_stop_nothing(sig: int) -> None:
    play = Play()
    before = play.state
    assert play(Signalled(sig, 1)) == []
    assert play.state == before
