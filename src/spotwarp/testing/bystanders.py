"""The others in a simulated run: bookkeepers, controllers, pruners, restorers, readers; and the end of the world.

See `model_runs`. None of them ever holds the run. `collect` asks, when everybody is dead, whether all garbage can still
be collected, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable

from spotwarp.errors import CorruptObject, LeaseError, ObjectMissing, StoreUnavailable
from spotwarp.persistence import layout, prune
from spotwarp.persistence.envelope import Kind, seal
from spotwarp.persistence.pack import read_trailer
from spotwarp.persistence.runlog import fold
from spotwarp.persistence.runlog.entry import Claim, Fence, Forget, Released, Snapshot
from spotwarp.persistence.runlog.log import Head, RunLog
from spotwarp.testing.model_runs import RUN, World
from spotwarp.testing.witness import Violation


class Nothing(LeaseError):
    """A bystander finds nothing to do on this prefix."""


def enter(world: World) -> None:
    """Bring the scenario's bystanders on stage."""
    scenario = world.scenario
    cast: list[tuple[str, int, Callable[[World, RunLog], None]]] = [
        ("note", scenario.notes, _note),
        ("forget", scenario.forgets, _forget),
        ("gate", scenario.gates, _gate),
        ("restore", scenario.restores, _restore),
        ("reader", scenario.readers, _read),
    ]
    cast += [(f"prune{i}", 3, _prune) for i in range(scenario.pruners)]
    for name, times, act in cast:
        if times:
            world.bucket.mortal.add(name)
            world.stage.spawn(name, _repeat(world, name, times, act), group=name)


def _repeat(world: World, name: str, times: int, act: Callable[[World, RunLog], None]) -> Callable[[], None]:
    def work() -> None:
        log = world.log(name)
        for _ in range(times):
            world.stage.sleep(world.random.uniform(0.0, world.scenario.lease_s))
            try:
                act(world, log)
            except (StoreUnavailable, LeaseError):
                continue

    return work


def _note(world: World, log: RunLog) -> None:
    world.witness.acknowledged(log.append(lambda _: Released(intent="none")))


def _forget(world: World, log: RunLog) -> None:
    def decide(head: Head) -> Forget:
        old = [n for n in head.state.retained if n not in (head.state.snapshot, head.state.resumable)]
        if not old:
            raise Nothing("nothing to forget")
        return Forget(snapshots=(world.random.choice(old),))

    world.witness.acknowledged(log.append(decide))


def _gate(world: World, log: RunLog) -> None:
    machine = world.random.choice(sorted(world.machines))

    def decide(head: Head) -> Fence:
        reason = fold.permit(head.state, machine)
        if reason is None:
            raise Nothing("no permit")
        return Fence(machine=machine, reason=reason)

    if "gate-fence" in world.scenario.careless:
        decide(log.head())
    elif machine not in log.head().state.fences:
        world.witness.acknowledged(log.append(decide))
    world.stage.step(world.random.uniform(0.0, world.scenario.lease_s))
    doomed = world.machines[machine]
    world.witness.terminated(machine, unsaved=doomed.unsaved and world.stage.alive(doomed.life))
    doomed.ended = True
    world.stage.kill(doomed.life)


def _restore(world: World, log: RunLog) -> None:
    roots = sorted(log.head().state.roots)
    if not roots:
        return
    n = world.random.choice(roots)
    snapshot = log.read(n)
    if not isinstance(snapshot, Snapshot):
        raise Violation(f"LINEAR: root {n} is no snapshot")
    try:
        manifest = world.repository.manifest(RUN, snapshot)
        for pack in manifest.packs:
            read_trailer(world.store, layout.pack_key(RUN, pack.id), pack.size)
    except (ObjectMissing, CorruptObject) as error:
        if n in world.witness.states[-1].roots:
            raise Violation(f"LOST: root {n} cannot be restored: {error}") from error


def _read(world: World, log: RunLog) -> None:
    for reader in (log, world.log("cold")):
        at_least = len(world.witness.log)
        head = reader.head()
        world.witness.head_seen(head.n, head.state, at_least)


def _prune(world: World, log: RunLog) -> None:
    done = prune.prune(world.repository, log, grace_s=0)
    if done.skipped:
        raise Violation(f"LOST: prune finds a damaged root: {done.skipped}")


# ---- the end -------------------------------------------------------------------------------------------------------


def collect(world: World) -> None:
    """Everybody is dead: a prune leaves nothing of a forgotten snapshot, and after a claim only what roots need."""
    witness, log = world.witness, world.log("last")
    _read(world, log)
    _prune(world, log)
    alive = _alive(world)
    forgotten = {n for n in sorted(witness.accepted) if isinstance(witness.log[n - 1], Snapshot)} - witness.states[
        -1
    ].roots
    lapsed = {key for n in sorted(forgotten) for key in witness.objects_of(n)} - alive
    again = world.bucket.landed_again
    left = sorted(key for key in lapsed if world.hidden(key) in world.bucket.objects.keys() - again)
    if left:
        raise Violation(f"LEAK: {left} stay, although their snapshot was forgotten")
    if not witness.terminal:
        head = log.head().state
        world.store.put(layout.beat_key(RUN, "last"), seal(Kind.BEAT, b""))
        log.append(
            lambda _: Claim(
                generation=head.generation + 1, machine="Z", cause="takeover", base=head.snapshot, lease_s=1
            )
        )
    _prune(world, log)
    stay = {k for k in world.bucket.objects if "/packs/" in k or "/manifests/" in k}
    if stay != set(map(world.hidden, alive)):
        raise Violation(f"LEAK: {sorted(stay ^ set(map(world.hidden, alive)))} are garbage for ever, or lost")


def _alive(world: World) -> set[str]:
    return {key for n in world.witness.states[-1].roots for key in world.witness.objects_of(n)}
