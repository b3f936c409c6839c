"""What the facts mean, and how rates, clocks and keys are found out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spotwarp.errors import StoreUnavailable
from spotwarp.execution.doctor import verdict
from spotwarp.execution.doctor.verdict import Load
from spotwarp.execution.sameness.hardware import Gpus
from spotwarp.persistence.store.keylife import KeyLife, key_life
from spotwarp.persistence.store.probe import ProbeResult
from spotwarp.persistence.store.rate import SAMPLE_BYTES, Rates, measure
from spotwarp.persistence.store.url import parse_url
from spotwarp.testing.clocks import SeededRng, VirtualClock
from spotwarp.testing.stores import Fault, FaultyStore, MemoryStore

MIB, GIB = 1 << 20, 1 << 30
NOW = datetime(2030, 1, 1, tzinfo=UTC)
FAST = Rates(100 * MIB, 200 * MIB, 64 * MIB, 0.05, 0.0, 0.5)


def test_what_a_notice_suffices_for() -> None:
    line = verdict.notice(30, FAST, Load(3 * MIB, GIB), share=0.5, most_s=120)
    # 15 s less six times 50 ms, at 100 MiB/s
    assert line.text.startswith("1.4 GiB can be stored; not stored now: 3.0 MiB, fits")
    assert line.text.endswith("with another checkpoint of 1.0 GiB: fits")
    assert line.level == "ok"
    line = verdict.notice(5, FAST, Load(3 * MIB, GIB), share=0.5, most_s=120)
    assert "with another checkpoint of 1.0 GiB: does not fit, 807.0 MiB short" in line.text
    assert (line.level, bool(line.hint)) == ("warn", True)
    assert verdict.room_in(120, FAST, share=0.9, most_s=60) == int((60 - 0.3) * 100 * MIB)
    assert verdict.room_in(5, Rates(1, 1, 1, 10, 0, 0), share=0.5, most_s=120) == 0


@pytest.mark.parametrize(
    ("offset", "level", "word"),
    [
        (0.3, "ok", "within 1 s"),
        (-1.4, "ok", "within"),
        (4, "ok", "4 s ahead"),
        (-7, "warn", "7 s behind"),
        (900, "fail", "900 s"),
    ],
)
def test_the_clock(offset: float, level: str, word: str) -> None:
    line = verdict.clock(Rates(1, 1, 1, 0.01, offset, 0.5))
    assert (line.level, word in line.text) == (level, True), line


@pytest.mark.parametrize(
    ("life", "level", "word"),
    [
        (KeyLife("x", False, None, True), "ok", "does not expire"),
        (KeyLife("x", True, None, True), "ok", "read anew"),
        (KeyLife("x", True, None, False), "warn", "cannot be renewed"),
        (KeyLife("x", True, NOW + timedelta(hours=2), False), "warn", "good for 2.0 h"),
        (KeyLife("x", True, NOW + timedelta(days=3), False), "ok", "good for 3 days"),
        (KeyLife("x", True, NOW + timedelta(minutes=2), True), "ok", "then read anew"),
        (KeyLife("x", True, NOW - timedelta(minutes=2), False), "fail", "expired 2 min ago"),
    ],
)
def test_the_key(life: KeyLife, level: str, word: str) -> None:
    line = verdict.key(life, NOW)
    assert (line.level, word in line.text) == (level, True), line


def test_the_rest() -> None:
    good = ProbeResult(True, True, True, "atomic", True, 1.0)
    assert verdict.target(good).level == "ok"
    assert verdict.target(ProbeResult(True, True, True, "atomic", False, 1.0)).level == "warn"
    assert verdict.target(ProbeResult(True, True, True, "ignored", True, 1.0)).level == "fail"
    assert verdict.target(ProbeResult(True, False, True, "atomic", True, 1.0, ("differs",))).level == "fail"
    for read_back, level in ((True, "warn"), (False, "fail")):
        found = ProbeResult(True, read_back, True, "ignored", True, 1.0, ("differs",))
        assert verdict.target(found, single_writer=True).level == level
    assert verdict.rate(FAST).level == "ok"
    assert verdict.rate(Rates(MIB, MIB, MIB, 0.1, 0, 0)).level == "warn"
    assert verdict.rate(None, "because").level == "warn"
    assert verdict.disk(10 * GIB, None, 0, 0).level == "ok"
    assert verdict.disk(10 * GIB, 100_000, 9 * GIB + 1, 10).level == "warn"
    assert verdict.disk(10 * GIB, 100_000, 11 * GIB, 10).level == "fail"
    assert verdict.disk(10 * GIB, 100, GIB, 101).level == "fail"
    assert verdict.gpus(Gpus(2, ("H200", "H200"), "570.1")).text == "2 × H200, driver 570.1"
    assert [verdict.gpus(Gpus(n)).level for n in (0, None)] == ["warn", "warn"]
    assert [verdict.shm(size).level for size in (64 * MIB, 8 * GIB, None)] == ["warn", "ok", "warn"]
    assert [verdict.nofile(n).level for n in (1024, 65536, -1)] == ["warn", "ok", "ok"]
    assert verdict.sources("why", 5.0, ["aws", "a file"], {}).text == "SIGTERM (5 s: why), aws, a file"
    assert verdict.sources("why", 5.0, [], {"url": "no address"}).level == "warn"
    assert verdict.secrets(["A", "B"], ["B"]).level == "fail"
    assert verdict.secrets([], []).level == "ok"
    assert [verdict.told([], []).level, verdict.told(["x"], ["y"]).level] == ["ok", "warn"]


# --- measuring


class Timed(MemoryStore):
    """Takes a second for every sample, and is ten minutes ahead."""

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        self.clock.sleep(1.0 if len(data) > 1 else 0.01)
        super().put(key, data)

    def __init__(self) -> None:
        self.clock = VirtualClock()
        ahead = VirtualClock(600.0)
        super().__init__(clock=ahead)


def test_rates_and_the_clock_are_measured_and_everything_is_removed() -> None:
    store = Timed()
    found = measure(store, clock=store.clock, rng=SeededRng(), seconds=3)
    assert found.up_bytes_s == pytest.approx(SAMPLE_BYTES)  # on this clock two at once take two seconds
    assert found.bytes >= 2 * SAMPLE_BYTES
    assert found.clock_offset_s == pytest.approx(600, abs=1)
    assert list(store.list("")) == []


def test_a_store_that_fails_leaves_what_can_be_removed_removed() -> None:
    memory = MemoryStore()
    store = FaultyStore(memory, Fault("put", "/1$", error=StoreUnavailable("gone"), times=None))
    with pytest.raises(StoreUnavailable):
        measure(store, clock=VirtualClock(), rng=SeededRng())
    assert list(memory.list("")) == []


# --- keys


def test_where_a_key_comes_from(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    s3, az = parse_url("s3://bucket/x"), parse_url("az://container/x")
    key = {**home, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    assert key_life(s3, key) == KeyLife("the environment", False, None, False)
    token = {**key, "AWS_SESSION_TOKEN": "t"}
    assert key_life(s3, token) == KeyLife("the environment", True, None, False)
    until = {**token, "AWS_CREDENTIAL_EXPIRATION": "2030-01-01T01:00:00+00:00"}
    assert key_life(s3, until).expires == NOW + timedelta(hours=1)
    assert key_life(s3, home) == KeyLife("the machine's own role", True, None, True)
    sas = {
        **home,
        "AZURE_STORAGE_ACCOUNT_NAME": "acc",
        "AZURE_STORAGE_SAS_TOKEN": "?sv=1&se=2030-01-01T02%3A00%3A00Z&sig=x",
    }
    assert key_life(az, sas) == KeyLife("a SAS token", True, NOW + timedelta(hours=2), False)
    assert key_life(parse_url("/tmp/x"), {}).temporary is False
    (tmp_path / ".aws").mkdir()
    answer = '{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "Expiration": "2030-01-01T03:00:00Z"}'
    (tmp_path / ".aws" / "config").write_text(f"[default]\ncredential_process = echo '{answer}'\n")
    program = {**home, "PATH": "/usr/bin:/bin"}
    assert key_life(s3, program) == KeyLife("credential_process", True, NOW + timedelta(hours=3), True)
