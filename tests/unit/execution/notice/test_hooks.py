"""The sources that are the user's own: a file, an address, a command."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock
from spotwarp.errors import NoticeFault
from spotwarp.execution.notice.command import CommandHook
from spotwarp.execution.notice.exchange import LIMIT
from spotwarp.execution.notice.file import File
from spotwarp.execution.notice.source import Announced, Seen
from spotwarp.execution.notice.url import Url
from spotwarp.testing.metadata import AwsMetadata
from spotwarp.testing.pytest_metadata import aws

CLOCK = SystemClock()
ACTION = "/latest/meta-data/spot/instance-action"
TOKEN = "/latest/api/token"
CLOUDS = ["aws", "gcp", "azure"]
__all__ = ["aws"]


def announced(seen: Seen) -> Announced:
    assert seen.announced is not None
    return seen.announced


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    watched = File(path, CLOCK, grace_s=9)
    assert watched.look() == Seen()
    path.touch()
    assert announced(watched.look()).seconds_left == 9
    path.write_text('{"seconds_left": 4}')
    assert announced(watched.look()).seconds_left == 4
    path.write_text("{")
    assert watched.look() == Seen()  # somebody is writing
    assert announced(watched.look()).seconds_left == 9  # nobody is
    path.unlink()
    assert watched.look() == Seen()


def test_a_file_that_was_there_before_is_no_notice_unless_its_deadline_is_to_come(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    path.write_text('{"seconds_left": 4}')
    watched = File(path, CLOCK, grace_s=9)
    assert "was there before" in watched.look().hint
    assert watched.look() == Seen()
    path.write_text('{"seconds_left": 5}')
    assert announced(watched.look()).seconds_left == 5
    path.write_text(json.dumps({"deadline": datetime.now(UTC).timestamp() + 60}))
    assert 50 < announced(File(path, CLOCK, grace_s=9).look()).seconds_left <= 60
    path.write_text('{"deadline": "2001-01-01T00:00:00Z"}')
    assert File(path, CLOCK, grace_s=9).look().announced is None


def test_what_is_no_file_is_a_fault_and_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("directory", "pipe"):
        with pytest.raises(NoticeFault, match="is not a file"):
            File(tmp_path / name, CLOCK, grace_s=9).look()
    assert File(tmp_path / "directory" / "no" / "such", CLOCK, grace_s=9).look() == Seen()


def test_an_address(aws: AwsMetadata) -> None:
    watched = Url(f"http://{aws.address}/notice?machine=7", CLOCK, period_s=5, grace_s=9)
    for status in (204, 404):
        aws.refuse(status)
        assert watched.look() == Seen()
    assert aws.journal[-1].path == "/notice?machine=7"
    aws.refuse(None)
    for body, seconds in (("{}", None), ('{"seconds_left": 4}', 4), ('{"seconds_left": null}', 9)):
        aws.garble(body)
        seen = watched.look()
        assert (seen.announced and seen.announced.seconds_left) == seconds
    aws.clock(3600)
    aws.garble(json.dumps({"deadline": datetime.now(UTC).timestamp() + 3660}))
    assert 55 < announced(watched.look()).seconds_left <= 61
    aws.garble(b" " * LIMIT + b'{"seconds_left": 4}')
    with pytest.raises(NoticeFault, match="more than"):
        watched.look()
    for body in ("[]", "soon", '{"seconds_left": "soon"}'):
        aws.garble(body)
        with pytest.raises(NoticeFault):
            watched.look()


@pytest.fixture
def hook(tmp_path: Path) -> Iterator[Callable[[str], CommandHook]]:
    hooks: list[CommandHook] = []

    def make(command: str) -> CommandHook:
        hooks.append(CommandHook(command, tmp_path, CLOCK, period_s=5, grace_s=9))
        return hooks[-1]

    yield make
    for one in hooks:
        one.abort()
        with contextlib.suppress(NoticeFault):
            one.look()


def test_a_command(hook: Callable[[str], CommandHook]) -> None:
    assert hook("echo fine; echo '[1]'; echo '{not json'").look() == Seen()
    assert announced(hook("exit 75").look()).seconds_left == 9
    assert announced(hook("echo '{\"seconds_left\": 4}'").look()).seconds_left == 4
    assert announced(hook("printf '{\"seconds_left\": null}'").look()).seconds_left == 9
    for command in ("exit 3", "kill -9 $$", "/no/such/program"):
        with pytest.raises(NoticeFault, match="left with"):
            hook(command).look()
    watched = hook("exit 0")
    watched.look()
    assert watched.period_s == 5


@pytest.mark.slow
def test_a_command_that_does_not_end_is_listened_to_and_ended_with_the_run(
    hook: Callable[[str], CommandHook], tmp_path: Path
) -> None:
    watched = hook("echo $$ > pid; until test -e go; do sleep 0.02; done; echo '{\"seconds_left\": 4}'; sleep 60")
    assert watched.look() == Seen()
    assert watched.period_s == 0
    (tmp_path / "go").touch()
    assert announced(watched.look()).seconds_left == 4
    watched.abort()
    with pytest.raises(NoticeFault):
        watched.look()
    assert not Path("/proc", (tmp_path / "pid").read_text().strip(), "exe").exists()


@pytest.mark.slow
def test_a_flood_of_output_holds_no_memory(hook: Callable[[str], CommandHook]) -> None:
    watched = hook("exec yes | tr -d '\\n'")
    watched.look()
    assert 0 < len(watched._rest) <= LIMIT
