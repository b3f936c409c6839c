"""What `limits`, `coding` and `prices` may hold, and how they are read from file, variable and flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwarp import config, values
from spotwarp.errors import ConfigError
from spotwarp.values import Limits, Prices


def workspace(tmp_path: Path, text: str) -> Path:
    path = config.path_in(tmp_path)
    path.parent.mkdir()
    path.write_text("remote_path: /somewhere\n" + text)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "bytes_s"),
    [
        ("none", None),
        ("200MB/s", 200e6),
        ("1Gbit/s", 125e6),
        ("50MiB/s", 50 * 1024**2),
        ("1.5 GiB/s", 1.5 * 1024**3),
        ("800000bit/s", 100_000),
    ],
)
def test_a_rate_says_bits_or_bytes(text: str, bytes_s: float | None) -> None:
    assert values.rate(text) == bytes_s


@pytest.mark.parametrize("text", ["200", "200MB", "99kB/s", "0MB/s", "-1MB/s", "fast", True, "1e9 B/s"])
def test_a_rate_without_a_unit_or_sense_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        values.rate(text)


@pytest.mark.parametrize("text", ["0", "0%", "-1", "many", True, "2000"])
def test_cores_that_make_no_sense_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        values.cores(text)


def test_cores_are_a_number_or_a_share_of_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "cpus", lambda: 6)
    assert (values.cores("auto"), values.cores(1.5), values.cores("50%")) == (None, 1.5, 3.0)


def test_the_file_as_it_is_written_sets_no_limit(tmp_path: Path) -> None:
    path = config.path_in(tmp_path)
    path.parent.mkdir()
    path.write_text(config.render({"remote_path": "/somewhere"}))
    found = config.load(tmp_path, env={})
    assert (found.limits, found.coding, found.prices) == (Limits(), None, Prices())


def test_a_flag_wins_over_a_variable_over_the_file(tmp_path: Path) -> None:
    here = workspace(tmp_path, "limits: {cpu: 2, bandwidth: 1MB/s}\ncoding: raw\nprices: {egress: 0}\n")
    env = {"SPOTWARP_LIMITS": "bandwidth=2MB/s"}
    assert config.load(here, env={}).limits == Limits(2.0, 1e6)
    assert config.load(here, env={}).prices == Prices(egress=0.0)
    assert config.load(here, env=env).limits == Limits(2.0, 2e6), "what a source does not name stays"
    assert config.load(here, env=env, overrides={"limits": "cpu=1"}).limits == Limits(1.0, 2e6)
    assert config.load(here, env=env, overrides={"limits": "none"}).limits == Limits()
    told = config.load(here, env=env, overrides={"limits": "cpu=1.5, bandwidth=none", "coding": "delta"})
    assert (told.limits, told.coding) == (Limits(1.5, None), "delta")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("limits: {bandwith: 1MB/s}", r"did you mean 'bandwidth'.*line 2"),
        ("limits: {bandwidth: 100}", "bandwidth 100 that must be none or a rate"),
        ("limits: fast", "must name its values"),
        ("limits: [1]", "must be a mapping of cpu, bandwidth"),
        ("coding: xor", "must be auto, raw, planes or delta"),
        ("prices: {egress: free}", "must be an amount of dollars"),
        ("prices: {egress: 1e999}", "must be an amount of dollars"),
        ("prices: {egress: .inf}", "must be an amount of dollars"),
        ("prices: {egress: .nan}", "must be an amount of dollars"),
        ("limits: 'cpu=1,cpu=2'", "names a value twice"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        config.load(workspace(tmp_path, text + "\n"), env={})
    assert caught.value.hint
