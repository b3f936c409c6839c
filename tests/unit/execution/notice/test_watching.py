"""The watchers' threads, and which sources are chosen."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotwarp import config as config_module
from spotwarp.clock import SystemClock
from spotwarp.config import Config
from spotwarp.errors import ConfigError, NoticeFault
from spotwarp.execution.notice.choosing import Chosen, choose
from spotwarp.execution.notice.platform import Platform
from spotwarp.execution.notice.source import Announced, Seen, Source
from spotwarp.execution.notice.watching import Notices
from spotwarp.execution.supervisor import Notice
from spotwarp.testing.clocks import VirtualClock
from spotwarp.testing.metadata import AzureMetadata, metadata

NOWHERE = Platform("", 30.0, "the default")


class Scripted(Source):
    """Says what its script says, then waits to be aborted."""

    name = "scripted"
    period_s = 2.0

    def __init__(self, *script: Seen | NoticeFault) -> None:
        self.script, self.over, self.begun = list(script), threading.Event(), threading.Event()

    def look(self) -> Seen:
        if not self.script:
            self.begun.set()
            assert self.over.wait(10)
            raise NoticeFault("no more questions")
        said = self.script.pop(0)
        if isinstance(said, NoticeFault):
            raise said
        return said

    def abort(self) -> None:
        self.over.set()


def watch(source: Source, clock: Any = None) -> tuple[Notices, queue.SimpleQueue[Any], list[str]]:
    said: list[str] = []
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    notices = Notices(Chosen((source,), {}), "30 s: the default", clock=clock or VirtualClock(), say=said.append)
    notices.start(events.put)
    return notices, events, said


def test_what_is_seen_is_posted_and_the_end_is_at_once() -> None:
    source = Scripted(NoticeFault("not yet"), Seen(), Seen(Announced(40, "terminate", "12:00:00Z")), Seen())
    notices, events, said = watch(source)
    posted = events.get(timeout=10)
    assert isinstance(posted, Notice)
    assert (posted.seconds_left, posted.source) == (40, "scripted")
    assert source.begun.wait(10)
    assert notices.standing() == "SIGTERM (30 s: the default); scripted notice given"
    began = time.monotonic()
    notices.stop()
    assert time.monotonic() - began < 5  # the source would hang for ten
    assert events.empty()
    assert len(said) == 2


def test_an_absent_source_costs_hours_of_nothing() -> None:
    """So many looks in three hours, on a clock that only moves by waiting."""
    clock = VirtualClock()
    source = Scripted(*[NoticeFault("nobody there")] * 182)
    notices, _, said = watch(source, clock)
    assert source.begun.wait(10)
    assert 3 * 3600 - 100 < clock.monotonic() < 3 * 3600 + 100
    assert len(said) == 1
    notices.stop()


def test_no_thread_is_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    _, _, said = watch(Scripted())
    assert "can't start new thread" in said[0]


def test_nothing_is_acknowledged_that_was_not_acted_on() -> None:
    with metadata("azure") as azure:
        _acknowledge(azure)


def _acknowledge(azure: AzureMetadata) -> None:
    from spotwarp.execution.notice.azure import Azure

    notices, events, said = watch(Azure(f"http://{azure.address}", SystemClock()), SystemClock())
    azure.schedule("Reboot", 900)
    assert type(events.get(timeout=10)).__name__ == "Hint"
    notices.acknowledge()
    assert azure.approved == []
    azure.withdraw()
    event = azure.schedule("Preempt", 30)
    assert isinstance(events.get(timeout=10), Notice)
    notices.stop()
    notices.acknowledge()
    assert [one for _, one in azure.approved] == [event]
    azure.refuse(500)
    notices.acknowledge()
    assert "could not be told" in said[-1]


# --- choosing


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Config]:
    """The config with some options set, as a file would."""
    place = tmp_path / ".spotwarp"
    place.mkdir()

    def read(env: dict[str, str] | None = None, **values: object) -> Config:
        (place / "config.yaml").write_text(config_module.render({"remote_path": "/bucket", **values}))
        return config_module.load(tmp_path, env=env or {})

    return read


def names(config: Config, platform: Platform = NOWHERE, env: dict[str, str] | None = None) -> list[str]:
    return [one.name for one in choose(config, platform, Path.cwd(), env or {}, SystemClock()).sources]


def test_auto_is_the_cloud_we_are_in_and_none_is_none(settings: Callable[..., Config]) -> None:
    for cloud in ("aws", "gcp", "azure"):
        assert names(settings(), replace(NOWHERE, cloud=cloud)) == [cloud]
        assert names(settings(notices="none"), replace(NOWHERE, cloud=cloud)) == []
    assert names(settings()) == []
    assert names(settings(notices=["aws", "azure"]), replace(NOWHERE, cloud="gcp")) == ["aws", "azure"]
    assert names(settings(env={"SPOTWARP_NOTICES": "aws, gcp"})) == ["aws", "gcp"]


def test_hooks_are_watched_where_they_are_named(settings: Callable[..., Config]) -> None:
    config = settings(notices="none", notice_file="x", notice_command="exit 0", notice_url="https://example.com/n")
    assert names(config) == ["file", "command", "url"]


def test_the_commands_own_notice_file_is_never_an_option(settings: Callable[..., Config]) -> None:
    """A `spotwarp sync` that the command calls has that variable in its environment."""
    assert settings(env={"SPOTWARP_NOTICE_FILE": "/ws/.spotwarp/notice.json"}).notice_file == ""


@pytest.mark.parametrize(
    "values",
    [
        {"notices": "amazon"}, {"notices": []}, {"notices": ["aws", "x"]}, {"notice_url": "example.com"},
        {"notice_url": "https://me:secret@example.com/"}, {"notice_url": "http://x:99999/"}, {"notice_every": "0s"},
        {"grace": "soon"}, {"grace": "0s"}, {"sync_share": "1"},
    ],
    ids=str,
)  # fmt: skip
def test_a_setting_that_cannot_be_is_refused_by_name(
    settings: Callable[..., Config], values: dict[str, object]
) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        settings(**values)


@pytest.mark.parametrize(
    ("cloud", "env"),
    [
        ("aws", {"AWS_EC2_METADATA_DISABLED": "true"}),
        ("aws", {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "nonsense"}),
        ("gcp", {"GCE_METADATA_HOST": "a:b:c"}),
        ("azure", {"SPOTWARP_AZURE_METADATA_ENDPOINT": "ftp://x"}),
    ],
)
def test_what_cannot_be_watched_is_told_and_keeps_nothing_from_starting(
    settings: Callable[..., Config], cloud: str, env: dict[str, str]
) -> None:
    chosen = choose(settings(), replace(NOWHERE, cloud=cloud), Path.cwd(), env, SystemClock())
    assert (chosen.sources, list(chosen.refused)) == ((), [cloud])
    said: list[str] = []
    notices = Notices(chosen, "30 s: the default", clock=SystemClock(), say=said.append)
    notices.start(lambda _: None)
    assert f"{cloud} is disabled: " in said[0]
    assert f"{cloud} disabled: " in notices.standing()


def test_grace_is_the_platforms_unless_it_is_given(settings: Callable[..., Config]) -> None:
    assert settings().grace_s is None
    assert settings(grace="120s").grace_s == 120
    assert settings(env={"SPOTWARP_GRACE": "5s"}).grace_s == 5
    assert os.environ.get("SPOTWARP_GRACE") is None
