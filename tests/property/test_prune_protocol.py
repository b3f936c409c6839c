"""Deleting beside everything else: whoever writes, rotates, forgets, forks time or dies, no root ever loses an object,
and what nobody needs can always be collected. Real prune, real commits; one seed is one schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed
from typing import Any

import pytest

from spotwarp.errors import CorruptObject
from spotwarp.persistence import prune, receipts
from spotwarp.persistence.retention import Retention
from spotwarp.persistence.runlog.entry import Forget, Snapshot
from spotwarp.testing.model_runs import Scenario, simulate
from spotwarp.testing.model_store import Hazards
from spotwarp.testing.witness import Violation

ROTATE = Scenario(snapshots=6, hazards=Hazards(crashes=1, freezes=1, lost=1, twice=1), pruners=2, restores=3, forgets=2)
KEEP = Retention(resumable=100, hourly=0)
PRUNERS = Scenario(
    machines=1,
    snapshots=6,
    hazards=Hazards(freezes=3, crashes=1, refusals=1),
    retention=KEEP,
    older_base=0.5,
    pruners=3,
    restores=3,
    forgets=8,
)
ZOMBIE = Scenario(machines=3, snapshots=4, hazards=Hazards(freezes=4, crashes=1, lost=1, late=1), pruners=2, forgets=4)
UNANSWERED = Scenario(
    machines=1,
    snapshots=6,
    hazards=Hazards(lost=3, late=4, refusals=4, chance=0.2),
    append_budget_s=0.2,
    retention=KEEP,
    pruners=3,
    forgets=6,
)
SCENARIOS = {"rotate": ROTATE, "pruners": PRUNERS, "zombie": ZOMBIE, "unanswered": UNANSWERED}


@pytest.mark.parametrize("name", SCENARIOS)
def test_roots_lose_nothing_and_garbage_goes(name: str) -> None:
    for seed in range(120):
        simulate(f"{name} {seed}", SCENARIOS[name])


@pytest.mark.deep
@pytest.mark.parametrize("name", SCENARIOS)
def test_roots_lose_nothing_and_garbage_goes_in_very_many_schedules(name: str) -> None:
    for seed in range(120, 2000):
        simulate(f"{name} {seed}", SCENARIOS[name])


def test_the_schedules_reach_what_they_are_for() -> None:
    """Snapshots are forgotten both ways, and packs are shared between snapshots."""
    worlds = [simulate(f"{name} {seed}", s) for name, s in SCENARIOS.items() for seed in range(20)]
    entries = [e for w in worlds for e in w.witness.log]
    shared = [c for w in worlds for c in w.witness.contents.values() if len(c.packs) > 1]

    assert sum(isinstance(e, Forget) for e in entries) > 20
    assert sum(isinstance(e, Snapshot) and bool(e.forgets) for e in entries) > 20
    assert len(shared) > 50


# ---- without a rule ------------------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]
Lists = tuple[list[str], list[str]]


def _dead(patch: pytest.MonkeyPatch, change: Callable[..., Lists]) -> None:
    lawful = prune.dead
    patch.setattr(prune, "dead", lambda *a: change(lawful, *a))


def no_spare_current(patch: pytest.MonkeyPatch) -> None:
    """P5: what no root names is dead, whoever may be uploading it."""

    def change(_: Any, state: Any, seen: prune.Evidence, packs: Any, manifests: Any) -> Lists:
        return (
            [p for p in packs if p not in seen.named_by_roots],
            [m for m in manifests if m not in seen.root_manifests],
        )

    _dead(patch, change)


def no_roots(patch: pytest.MonkeyPatch) -> None:
    """P5: an old generation's packs are dead, whoever names them."""
    _dead(patch, lambda lawful, s, seen, p, m: lawful(s, changed(seen, named_by_roots=frozenset()), p, m))


def no_root_manifests(patch: pytest.MonkeyPatch) -> None:
    """P5: a root whose manifest cannot be read names nothing. (Another pruner took it: the root is none any more.)"""

    def careless_prune(repository: Any, log: Any, *, grace_s: float = 0.0) -> prune.Pruned:
        head = log.head()
        try:
            return prune._prune_at(repository, log, head, grace_s)
        except CorruptObject as error:
            return prune.Pruned(skipped=str(error))

    patch.setattr(prune, "prune", careless_prune)


def manifests_first(patch: pytest.MonkeyPatch) -> None:
    """P5: the evidence is deleted before what it is evidence of, and then the pruner dies."""
    _dead(patch, lambda lawful, *a: (lambda p, m: ([] if m else p, m))(*lawful(*a)))


def no_evidence(patch: pytest.MonkeyPatch) -> None:
    """P5: only an old generation's objects ever die."""
    patch.setattr(prune, "_forgotten", lambda *a: {})


def no_recognition(patch: pytest.MonkeyPatch) -> None:
    """P3: an upload is its writer's own again after an entry has named it."""
    patch.setattr(receipts, "_find_own", lambda *a: None)


def whole(_: pytest.MonkeyPatch) -> None:
    """The product is whole; the script is careless."""


MUTANTS: list[tuple[str, Patch, Scenario, set[str]]] = [
    ("spare-current", no_spare_current, ROTATE, {"OBJECTS", "LOST"}),
    ("roots", no_roots, ROTATE, {"LOST"}),
    ("start-over", no_root_manifests, PRUNERS, {"LOST"}),
    ("packs-first", manifests_first, PRUNERS, {"LEAK"}),
    ("evidence", no_evidence, PRUNERS, {"LEAK"}),
    ("named-once", no_recognition, UNANSWERED, {"TWICE"}),
    ("recheck-base", whole, PRUNERS, {"OBJECTS", "LOST"}),
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

    assert broken_by(changed(scenario, careless=frozenset({rule})), 600) in broken
