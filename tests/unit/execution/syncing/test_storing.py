"""A backup that fails, or hangs without a word, is said and told; one that only takes long is not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotwarp.config import load
from spotwarp.errors import Interrupted, SpotWarpError, StoreUnavailable
from spotwarp.execution.news.notifier import Notifier
from spotwarp.execution.supervisor import Event
from spotwarp.execution.syncing.measuring import Measuring
from spotwarp.execution.syncing.storing import Storing
from spotwarp.execution.syncing.syncer import Facts
from spotwarp.persistence.backup import Progress
from spotwarp.persistence.envelope import FORMAT_VERSION
from spotwarp.persistence.repository import Identity, Repository
from spotwarp.persistence.runlog.log import RunLog
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.product import until
from spotwarp.testing.stores import MemoryStore


class Syncing:
    """Stands for a syncer: a sync goes on until `let` is set, and then ends as `ends` says."""

    def __init__(self, clock: VirtualClock) -> None:
        self.facts = Facts(safe_since=clock.monotonic())
        self.let = threading.Event()
        self.ends: SpotWarpError = Interrupted("stopped")
        self.began = threading.Event()
        self.progress: Callable[[Progress], None] | None = None
        self.how: dict[str, Any] = {}
        self.clock, self.looks, self.look_s = clock, 0, 0.1
        config = load(None, env={}, overrides={"remote_path": "/x"})
        nothing = Repository(MemoryStore(), Identity(FORMAT_VERSION, "id"))
        self.measuring = Measuring(Path("nowhere"), nothing, config, clock, notice_s=None)

    def sync(self, *, progress: Callable[[Progress], None] | None = None, **how: Any) -> Any:
        self.progress, self.how = progress, how
        self.began.set()
        assert self.let.wait(30)
        if not isinstance(self.ends, Interrupted):
            self.facts.error = self.ends.message
        raise self.ends

    def at_risk_s(self) -> float:
        return 1.0

    def dirty_bytes(self) -> int:
        self.looks += 1
        self.clock.advance(self.look_s)
        return 5


class Told(Notifier):
    """Remembers what was to be sent."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def send(self, event: str, text: str, **facts: Any) -> None:
        self.events.append(event)

    @property
    def error(self) -> str:
        return ""


class Bench:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.syncer, self.told, self.said = Syncing(self.clock), Told(), list[str]()
        self.posted: list[Event] = []
        store = MemoryStore(clock=self.clock)
        log = RunLog(store, "main", life="a", clock=self.clock, rng=SeededRng())
        config = replace(load(None, env={}, overrides={"remote_path": "/x", "interval": "1h"}), stall_after_s=600.0)
        self.storing = Storing(
            self.syncer, Repository(store, Identity(FORMAT_VERSION, "id")), log, config,  # type: ignore[arg-type]
            generation=1, clock=self.clock, say=self.said.append, post=self.posted.append, notifier=self.told,
        )  # fmt: skip

    def end(self) -> None:
        """Let the sync go, and wait for its end."""
        self.syncer.let.set()
        until(lambda: self.posted, "the end of the sync")

    def pass_by(self, seconds: int) -> None:
        """Time passes, looked at every ten seconds."""
        for _ in range(seconds // 10):
            self.clock.advance(10)
            self.storing.look("")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_sync_that_hangs_is_not_silent(bench: Bench) -> None:
    bench.storing.routine()
    assert bench.syncer.began.wait(10)
    bench.pass_by(590)
    assert bench.said == []
    bench.pass_by(20)
    assert len(bench.said) == 1
    assert bench.said[0].startswith("NOT STORED: the sync at work does not get on")
    assert "does not get on" in str(bench.storing.facts()["error"])
    bench.pass_by(700)
    assert bench.told.events == ["stalled"]
    bench.end()


def test_a_sync_that_takes_hours_and_gets_on_is_fine(bench: Bench) -> None:
    bench.storing.routine()
    assert bench.syncer.began.wait(10)
    for done in range(30):
        bench.pass_by(500)
        assert bench.syncer.progress is not None
        bench.syncer.progress(Progress(files=done, files_total=100, bytes=done, bytes_total=100))
    assert [line for line in bench.said if "NOT STORED" in line] == []
    assert bench.told.events == []
    bench.end()


def test_a_failed_sync_is_said_told_after_a_while_and_over_when_it_is(bench: Bench) -> None:
    bench.syncer.ends = StoreUnavailable("gone")
    bench.storing.routine()
    bench.end()
    bench.storing.look("")
    assert bench.said == ["NOT STORED: gone; training goes on, trying again"]
    bench.pass_by(590)
    assert bench.told.events == []
    bench.pass_by(20)
    assert bench.told.events == ["stalled"]
    assert bench.storing.facts()["stalled"] is True
    bench.syncer.facts.error = ""
    bench.pass_by(20)
    assert bench.told.events == ["stalled", "recovered"]
    assert bench.said[-1].startswith("storing works again")


def test_a_sync_that_somebody_asked_for_makes_way_for_a_final_one_that_has_a_deadline(bench: Bench) -> None:
    def ask() -> None:
        with pytest.raises(Interrupted):
            bench.storing.now()

    asking = threading.Thread(target=ask)
    asking.start()
    assert bench.syncer.began.wait(10)
    cancel = bench.syncer.how["cancel"]
    bench.syncer.began.clear()
    bench.storing.final(lambda: bench.clock.monotonic() + 10, before=lambda: None)
    assert cancel.wait(10)
    bench.syncer.let.set()
    asking.join(10)


def test_what_a_notice_leaves_is_shared_by_the_sync_of_the_saved_checkpoint_and_the_final_one(bench: Bench) -> None:
    deadline: list[float | None] = [bench.clock.monotonic() + 100]
    bench.storing.routine(lambda: deadline[0])
    assert bench.syncer.began.wait(10)
    until_then = bench.syncer.how["deadline"]
    assert until_then() == pytest.approx(bench.clock.monotonic() + 85)
    deadline[0] = bench.clock.monotonic() + 50  # a second, sooner notice
    assert until_then() == pytest.approx(bench.clock.monotonic() + 35)
    bench.end()


def test_one_that_was_begun_before_the_notice_has_none(bench: Bench) -> None:
    deadline: list[float | None] = [None]
    bench.storing.routine(lambda: deadline[0])
    assert bench.syncer.began.wait(10)
    deadline[0] = bench.clock.monotonic() + 50
    assert bench.syncer.how["deadline"]() is None  # it is cancelled when the command has ended
    bench.end()


def test_whoever_asks_does_not_wait_for_a_look_at_a_million_files(bench: Bench) -> None:
    for _ in range(2):
        bench.storing.look_anew()
    assert bench.syncer.looks == 2
    bench.syncer.look_s = 30.0
    for _ in range(3):
        bench.storing.look_anew()
    assert bench.syncer.looks == 3
    assert bench.storing.facts()["at_risk_bytes"] == 5
