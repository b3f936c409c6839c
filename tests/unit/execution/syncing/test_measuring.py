"""What syncs took decides how the next one is done, also by the next process; and a lost file only loses that."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotwarp import config
from spotwarp.config import Config
from spotwarp.execution.localstate import runtime
from spotwarp.execution.syncing.measuring import FILE, Measuring
from spotwarp.persistence.envelope import FORMAT_VERSION
from spotwarp.persistence.manifest import PackRef
from spotwarp.persistence.pack import TARGET
from spotwarp.persistence.repository import Identity, Repository
from spotwarp.persistence.store.metered import Usage
from spotwarp.testing.clocks import VirtualClock
from spotwarp.testing.stores import MemoryStore

GB = 10**9
PACK = PackRef("main", "1-" + "0" * 32, 1000)


def uploaded(raw: int, ratio: float = 0.8, *, cpu_s: float = 1.0, lanes: int = 2) -> Any:
    """A backup that put so many new bytes."""
    blobs = [SimpleNamespace(pack=0, raw=raw, stored=int(raw * ratio))]
    manifest = SimpleNamespace(packs=[PACK], blobs=blobs)
    return SimpleNamespace(manifest=manifest, new_packs=(PACK,), read_bytes=raw, cpu_s=cpu_s, uploads=lanes)


def settings(tmp_path: Path, **given: object) -> Config:
    path = config.path_in(tmp_path)
    path.parent.mkdir(exist_ok=True)
    path.write_text("remote_path: s3://bucket/x\n")
    return config.load(tmp_path, env={}, overrides=given)


class Place(MemoryStore):
    """A store at some address, that counts what the test says."""

    def __init__(self, url: str, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self._url, self.usage, self._told = url, Usage(clock), clock

    @property
    def url(self) -> str:
        return self._url

    def sent(self, size: int, seconds: float) -> None:
        with self.usage.sending(size):
            self._told.advance(seconds)


class Syncs:
    """Some syncs of one workspace."""

    def __init__(self, tmp_path: Path, *, local: bool = False, **given: object) -> None:
        self.clock, self.path, self.config = VirtualClock(), tmp_path, settings(tmp_path, **given)
        self.store = Place("file:///x" if local else "s3://bucket/x", self.clock)
        self.again()

    def again(self, repository: str = "r") -> None:
        """Another process begins."""
        opened = Repository(self.store, Identity(FORMAT_VERSION, repository))
        self.measuring = Measuring(self.path, opened, self.config, self.clock, notice_s=None)

    def take(self, raw: int, *, up_bytes_s: float, every_s: float = 100.0, first: bool = False, **more: Any) -> str:
        self.clock.advance(every_s - 10.0)
        more = {"ratio": {"raw": 1.0, "planes": 0.8, "delta": 0.6}[self.measuring.choice.mode], **more}
        self.measuring.options()
        self.store.sent(int(up_bytes_s * 10), 10.0)
        self.measuring.took(uploaded(raw, **more), first=first)
        self.measuring.options()
        return self.measuring.choice.mode


def test_a_slow_link_first_gets_planes_and_then_delta(tmp_path: Path) -> None:
    syncs = Syncs(tmp_path)
    assert syncs.measuring.choice.mode == "planes"
    assert syncs.take(50 * GB, up_bytes_s=50e6, first=True) == "planes", "a first upload is no save"
    assert syncs.measuring.known.saves == ()
    assert syncs.take(20 * GB, up_bytes_s=50e6) == "planes", "the time between saves is not known yet"
    assert syncs.take(20 * GB, up_bytes_s=50e6) == "delta"
    assert syncs.measuring.known.interval_s == 100.0
    assert "longer than the time between saves" in syncs.measuring.choice.why


def test_what_was_measured_outlives_the_process_but_not_the_repository(tmp_path: Path) -> None:
    syncs = Syncs(tmp_path)
    for _ in range(3):
        mode = syncs.take(20 * GB, up_bytes_s=50e6, lanes=5)
    syncs.again()
    assert syncs.measuring.choice.mode == mode == "delta"
    assert syncs.measuring.options().uploads == 5
    syncs.again("another")
    assert syncs.measuring.known.up_bytes_s is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"repository": 7}'])
def test_a_damaged_file_is_no_file(tmp_path: Path, text: str) -> None:
    syncs = Syncs(tmp_path)
    syncs.take(GB, up_bytes_s=50e6)
    (runtime(tmp_path) / FILE).write_text(text)
    syncs.again()
    assert syncs.measuring.known.up_bytes_s is None


def test_a_disk_without_room_for_it_is_no_trouble(tmp_path: Path) -> None:
    syncs = Syncs(tmp_path)
    (runtime(tmp_path) / "cache").write_text("a file where a directory should be")
    syncs.take(GB, up_bytes_s=50e6)
    assert syncs.measuring.known.up_bytes_s == 50e6


def test_coding_is_measured_on_saves_only(tmp_path: Path) -> None:
    syncs = Syncs(tmp_path)
    syncs.take(10 * GB, up_bytes_s=50e6, cpu_s=20.0, ratio=0.7)
    assert syncs.measuring.known.speeds["planes"] == (pytest.approx(0.5e9), pytest.approx(0.7))
    syncs.take(1 << 21, up_bytes_s=50e6, cpu_s=20.0)
    assert syncs.measuring.known.speeds["planes"] == (pytest.approx(0.5e9), pytest.approx(0.7))


def test_a_directory_gets_raw_unless_it_has_a_limit_of_bandwidth(tmp_path: Path) -> None:
    assert Syncs(tmp_path, local=True).measuring.choice.mode == "raw"
    limited = Syncs(tmp_path, local=True, limits="bandwidth=1MB/s")
    assert limited.measuring.choice.mode == "planes"
    assert limited.measuring.options().pack_size < TARGET


def test_the_limits_of_the_user_reach_the_backup(tmp_path: Path) -> None:
    syncs = Syncs(tmp_path, limits="cpu=0.5", coding="delta")
    options = syncs.measuring.options()
    assert (options.workers, options.cores, options.coding) == (1, 0.5, "delta")
    assert syncs.measuring.options(hurried=True).cores is None
    assert syncs.measuring.facts() == {
        "coding": "delta",
        "coding_why": "as told",
        "coding_bytes_s": None,
        "coding_ratio": None,
        "up_bytes_s": None,
        "limits": "0.5 core(s)",
    }
