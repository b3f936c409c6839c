"""After any sequence of events: the order of the end holds, and the end is reached."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

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
    step,
)

KINDS = [
    "term", "int", "hup", "notice", "checkpoint", "interval", "hint", "sync ok", "sync failed", "fenced", "exit 0",
    "exit 1", "gone", "tick",
]  # fmt: skip
MOVE = st.tuples(st.sampled_from(KINDS), st.floats(0, 40))
MOVES = st.lists(MOVE, max_size=4) | st.lists(MOVE, max_size=30)  # short ones end well, long ones meet everything
POLICIES = st.builds(
    Policy,
    grace_s=st.floats(0, 60),
    sync_share=st.floats(0, 1),
    linger_s=st.floats(0, 20),
    kill_after_s=st.floats(0, 10),
    preempt_signal=st.sampled_from([None, 10, 15]),
)


class World:
    """A doer that holds every action against the invariants, and reports only what can happen."""

    def __init__(self, policy: Policy) -> None:
        self.state = State(policy)
        self.now = 0.0
        self.leader = self.tree = True
        self.sync: str | None = None
        self.final_ok = False
        self.preempt_word = False  # a notice came while the command ran
        self.exits: list[int] = []
        self.seals: list[str] = []
        self.feed(Started(0.0))

    def feed(self, event: Event) -> list[Action]:
        self.state, actions = step(self.state, event)
        for action in actions:
            self.check(action)
        return list(actions)

    def check(self, action: Action) -> None:
        assert not self.exits, "an action after the exit"
        match action:
            case StartSync():
                assert self.sync is None
                assert self.tree
                self.sync = "routine"
            case FinalSync():
                assert self.sync is None
                assert not self.tree, "a final sync while the tree lives"
                self.sync = "final"
            case CancelSync():
                assert self.sync == "routine"
            case Seal(kind, code):
                assert self.final_ok, "a seal without a stored final snapshot"
                assert not self.seals
                assert kind != "complete" or code == 0
                self.seals.append(kind)
            case Exit(code):
                assert (code == 0) == (self.seals == ["complete"])
                assert (code == 75) == (self.seals == ["preempted"])
                self.exits.append(code)
            case EndTree(grace_s):
                assert 0 <= grace_s <= max(2.0, self.state.policy.kill_after_s)
            case SignalTree(sig):
                assert sig in {Sig.INT, self.state.policy.preempt_signal}
            case _:
                pass

    def move(self, kind: str, later: float) -> None:
        self.now += later
        moves: dict[str, Callable[[], object]] = {
            "term": lambda: self.told(Signalled(Sig.TERM, self.now)),
            "notice": lambda: self.told(Notice(later, "test", self.now)),
            "int": lambda: self.feed(Signalled(Sig.INT, self.now)),
            "hup": self.hang_up,
            "fenced": lambda: self.feed(FencedOff("test", self.now)),
            "checkpoint": lambda: self.feed(CheckpointCompleted(self.now)),
            "interval": lambda: self.feed(IntervalDue(self.now)),
            "hint": lambda: self.feed(Hint(self.now)),
            "sync ok": lambda: self.finish_sync(ok=True),
            "sync failed": lambda: self.finish_sync(ok=False),
            "exit 0": lambda: self.leave(0),
            "exit 1": lambda: self.leave(1),
            "gone": self.empty,
            "tick": lambda: self.feed(Tick(self.now)),
        }
        moves[kind]()

    def hang_up(self) -> None:
        before = self.state
        assert self.feed(Signalled(Sig.HUP, self.now)) == []
        assert self.state == before

    def told(self, event: Event) -> None:
        self.preempt_word = self.preempt_word or self.leader
        self.feed(event)

    def finish_sync(self, *, ok: bool) -> None:
        if self.sync is None:
            return
        self.final_ok = self.sync == "final" and ok
        self.sync = None
        self.feed(SyncFinished(ok, self.now))

    def leave(self, code: int) -> None:
        if self.leader:
            self.leader = False
            self.feed(ChildExited(code, f"exited with {code}", self.now))

    def empty(self) -> None:
        self.leave(1)
        if self.tree:
            self.tree = False
            self.feed(TreeGone(self.now))


@settings(max_examples=600)
@given(POLICIES, MOVES, st.booleans(), st.booleans())
def test_the_order_of_the_end_holds_and_the_end_is_reached(
    policy: Policy, moves: list[tuple[str, float]], well: bool, late: bool
) -> None:
    world = World(policy)
    for kind, later in moves:
        world.move(kind, later)
    world.leave(0)
    for _ in range(4):  # the replies that a doer owes: time passes, the tree is ended, syncs end
        world.move("tick", 100 if late else 0)
        world.empty()
        world.finish_sync(ok=well)
    assert len(world.exits) == 1
    if world.preempt_word:  # whatever the command said of itself
        assert world.seals != ["complete"]
