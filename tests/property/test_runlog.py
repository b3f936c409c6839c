"""The run log under any interleaving, crash, freeze, lost or late reply: the protocol's invariants hold on the real
modules, and dropping a rule is noticed. One seed is one schedule; a failing seed is its own reproduction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

import pytest
from msgspec.structs import replace

from spotwarp.errors import Fenced, LeaseHeld
from spotwarp.persistence import receipts
from spotwarp.persistence.encryption.cipher import Cipher
from spotwarp.persistence.runlog import fold, lease, log
from spotwarp.persistence.runlog.entry import Claim
from spotwarp.testing.model_runs import Scenario, simulate
from spotwarp.testing.model_store import Hazards
from spotwarp.testing.witness import Violation

HANDOVER = Scenario(
    hazards=Hazards(crashes=1, freezes=1, lost=1, conflicts=1), notices=2, revivals=1, notes=3, readers=3
)
LOST = Scenario(
    hazards=Hazards(lost=3, late=3, conflicts=2, refusals=3, chance=0.15), append_budget_s=0.5, notes=3, readers=2
)
ZOMBIE = Scenario(machines=3, hazards=Hazards(crashes=1, freezes=3, lost=1, late=1, chance=0.04), revivals=2, notes=1)
GATE = Scenario(hazards=Hazards(crashes=1, freezes=4, lost=1, late=1), notices=1, revivals=2, gates=12, notes=1)
RACE = Scenario(machines=5, hazards=Hazards(crashes=2, freezes=1, lost=2, late=1, conflicts=1), revivals=2)
SCENARIOS = {"handover": HANDOVER, "lost": LOST, "zombie": ZOMBIE, "gate": GATE, "race": RACE}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_invariants_hold(name: str) -> None:
    for seed in range(120):
        simulate(f"{name} {seed}", SCENARIOS[name])


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_invariants_hold_over_a_store_that_seals(name: str) -> None:
    for seed in range(10):
        simulate(f"{name} {seed}", changed(SCENARIOS[name], cipher=Cipher(bytes(32), "model")))


@pytest.mark.deep
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_invariants_hold_in_very_many_schedules(name: str) -> None:
    for seed in range(120, 2000):
        simulate(f"{name} {seed}", SCENARIOS[name])


@dataclass
class At(Hazards):
    """One misfortune, at its `at`-th chance."""

    name: str = ""
    at: int = 0
    count: int = 0

    def strike(self, name: str, chance: Any) -> bool:
        self.count += name == self.name
        return name == self.name and self.count == self.at


@pytest.mark.parametrize("name", ["crashes", "freezes", "lost", "late", "conflicts", "refusals"])
def test_one_misfortune_at_every_step(name: str) -> None:
    for at in range(1, 80):
        scenario = Scenario(hazards=At(name=name, at=at), notes=2, forgets=2, pruners=1, readers=1, most_steps=2000)
        simulate("every step", scenario)


def test_a_schedule_is_its_seed() -> None:
    one, two = (simulate("again", ZOMBIE) for _ in range(2))

    assert one.bucket.objects == two.bucket.objects
    assert one.stage.steps == two.stage.steps


def test_the_schedules_reach_what_they_are_for() -> None:
    """Takeovers, seals, ends and fences all happen: without them nothing was tested."""
    worlds = [simulate(f"{name} {seed}", s) for name, s in SCENARIOS.items() for seed in range(30)]
    kinds = {w.witness.log[n - 1].__struct_config__.tag for w in worlds for n in w.witness.accepted}

    assert kinds >= {"claim", "snapshot", "phase", "complete", "fence", "released"}
    assert sum(w.witness.takeovers for w in worlds) > 20
    claims = [e for w in worlds for e in w.witness.log if isinstance(e, Claim)]
    assert {c.cause.partition("@")[0] for c in claims} >= {"first", "sealed", "deadline", "stale beat"}


# ---- without a rule ------------------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def no_head_only(patch: pytest.MonkeyPatch) -> None:
    """R1 and R5 off: a decision is put wherever there is room, and readers believe any generation."""
    lawful, lawful_append = fold.refusal, log.RunLog.append

    def refusal(state: Any, entry: Any) -> Any:
        believed = hasattr(entry, "generation") and not isinstance(entry, Claim)
        return None if believed else lawful(state, entry)

    def append(self: Any, decide: Any, *, budget_s: float | None = None) -> Any:
        remembered = self.__dict__.get("remembered") or self.head()
        draft = decide(remembered)
        if isinstance(draft, Claim):
            return lawful_append(self, decide)
        entry = self._complete(remembered, draft)
        while True:
            head = self.head()
            entry = replace(entry, n=head.n + 1, state=head.state)
            if self._create(entry, 1e9):
                self.remembered = log.Head(entry.n, fold.apply(head.state, entry))
                return entry

    patch.setattr(fold, "refusal", refusal)
    patch.setattr(log, "refusal", refusal)
    patch.setattr(log.RunLog, "append", append)


def a_collision_is_a_fence(patch: pytest.MonkeyPatch) -> None:
    """R2 off."""
    lawful = log.RunLog._create

    def create(self: log.RunLog, entry: Any, deadline: float) -> bool:
        if not lawful(self, entry, deadline):
            raise Fenced("somebody else was there")
        return True

    patch.setattr(log.RunLog, "_create", create)


def no_nonce(patch: pytest.MonkeyPatch) -> None:
    """R3 off: what stands in the slot is another's, and nothing recognises it later."""
    lawful = log.RunLog._slot_is_mine
    patch.setattr(log.RunLog, "_slot_is_mine", lambda *a: None if lawful(*a) is None else False)

    def claim(log_: log.RunLog, turn: lease.Turn, draft: Claim) -> Claim:
        def decide(head: log.Head) -> Claim:
            if head.state.generation != turn.over:
                raise LeaseHeld("taken first")
            return replace(draft, generation=turn.over + 1, cause=turn.cause, base=head.state.snapshot)

        return log_.append(decide)

    patch.setattr(lease, "claim", claim)
    patch.setattr(receipts, "_find_own", lambda *a: None)
    patch.setattr(receipts, "_find_last", lambda *a: None)


def a_conflict_is_final(patch: pytest.MonkeyPatch) -> None:
    """R4 off."""
    patch.setattr(log, "StoreConflict", type("Never", (Exception,), {}))


def no_claim_wait(patch: pytest.MonkeyPatch) -> None:
    """R7 off: claim as soon as there is a notice."""
    lawful = lease._free_cause
    patch.setattr(
        lease, "_free_cause", lambda run, s, t: lawful(run, s, t) or (f"deadline@{s.notice[0]}" if s.notice else "")
    )


def no_fresh_beat(patch: pytest.MonkeyPatch) -> None:
    """R8 off: the lease has run out since the first look, whatever the second one shows."""

    def observe(self: Any, beat: Any, *, asked_at: float, answered_at: float) -> bool:
        self._since = answered_at if self._since is None else self._since
        return asked_at - self._since >= self._lease_s

    patch.setattr(lease.BeatWatch, "observe", observe)


def any_turn(patch: pytest.MonkeyPatch) -> None:
    """R1 off for claims: a turn that was waited for is good for any later prefix."""
    patch.setattr(
        lease,
        "claim",
        lambda log_, turn, draft: log_.append(
            lambda head: replace(
                draft, generation=head.state.generation + 1, cause=turn.cause, base=head.state.snapshot
            )
        ),
    )


def _forgetful(patch: pytest.MonkeyPatch, **forgotten: Any) -> None:
    lawful = fold.refusal
    for module in (fold, log):
        patch.setattr(module, "refusal", lambda state, entry: lawful(replace(state, **forgotten), entry))


def no_end(patch: pytest.MonkeyPatch) -> None:
    """R13 off: the terminal entry is one like any other."""
    _forgetful(patch, terminal="")


def unbound(patch: pytest.MonkeyPatch) -> None:
    """R15 off: a fenced machine claims again."""
    _forgetful(patch, fences=())


def merely_claimed(patch: pytest.MonkeyPatch) -> None:
    """R14, the successor has committed, off: a later claim is enough to end the old machine."""
    lawful = fold.permit
    patch.setattr(
        fold,
        "permit",
        lambda s, m: lawful(s, m) or ("superseded" if 0 < s.claimed.get(m, 0) < s.generation else None),
    )


def careless(habit: str) -> Patch:
    def nothing(patch: pytest.MonkeyPatch) -> None:
        """The script lacks the habit; the product is whole."""

    nothing.__name__ = habit
    return nothing


MUTANTS: list[tuple[str, Patch, Scenario, set[str]]] = [
    ("head-only", no_head_only, ZOMBIE, {"FENCED", "TERMINAL"}),
    ("collision-fences", a_collision_is_a_fence, HANDOVER, {"JUSTIFIED"}),
    ("nonce-readback", no_nonce, LOST, {"JUSTIFIED", "TWICE"}),
    ("409-again", a_conflict_is_final, changed(LOST, notes=0), {"JUSTIFIED"}),
    ("claim-wait", no_claim_wait, HANDOVER, {"EARLY"}),
    ("fresh-beat", no_fresh_beat, ZOMBIE, {"EARLY"}),
    ("own-turn", any_turn, RACE, {"EARLY"}),
    ("terminal-final", no_end, ZOMBIE, {"TERMINAL"}),
    ("fence-binds", unbound, GATE, {"BOUND"}),
    ("successor-committed", merely_claimed, GATE, {"GATE"}),
    ("catch-up", careless("catch-up"), HANDOVER, {"LINEAR"}),
    ("objects-first", careless("objects-first"), HANDOVER, {"OBJECTS"}),
    ("beat-first", careless("beat-first"), HANDOVER, {"UNBORN"}),
    ("gate-fence", careless("gate-fence"), GATE, {"GATE"}),
]


def broken_by(scenario: Scenario, seeds: int) -> str:
    """The name of the first invariant that a schedule breaks, "" when none does."""
    for seed in range(seeds):
        try:
            simulate(seed, scenario)
        except Violation as violation:
            print("seed", seed, violation)
            return str(violation).partition(":")[0]
    return ""


@pytest.mark.parametrize(("rule", "drop", "scenario", "broken"), MUTANTS, ids=[m[0] for m in MUTANTS])
def test_without_the_rule_an_invariant_breaks(
    rule: str, drop: Patch, scenario: Scenario, broken: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drop(monkeypatch)

    assert broken_by(changed(scenario, careless=frozenset({rule})), 400) in broken
