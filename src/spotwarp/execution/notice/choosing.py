"""Which sources are watched: the cloud that this machine is found in, or those that the user names, and his hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spotwarp.clock import Clock
from spotwarp.config import Config
from spotwarp.errors import NoticeFault
from spotwarp.execution.notice.aws import Aws
from spotwarp.execution.notice.azure import Azure
from spotwarp.execution.notice.command import CommandHook
from spotwarp.execution.notice.file import File
from spotwarp.execution.notice.gcp import LEAD_S, Gcp
from spotwarp.execution.notice.platform import Platform
from spotwarp.execution.notice.source import Source
from spotwarp.execution.notice.url import Url


@dataclass(frozen=True, slots=True)
class Chosen:
    """The sources to watch, and those that were asked for and cannot be: name → why."""

    sources: tuple[Source, ...]
    refused: Mapping[str, str]


def choose(config: Config, platform: Platform, workspace: Path, env: Mapping[str, str], clock: Clock) -> Chosen:
    """Choose; nobody is asked yet. Never raises: a source that cannot be watched must not keep a run from starting."""
    grace_s = platform.grace_s if config.grace_s is None else config.grace_s
    lead_s = LEAD_S if config.grace_s is None else config.grace_s
    every_s = config.notice_every_s
    makers: dict[str, Callable[[], Source]] = {
        "aws": lambda: _aws(env, clock),
        "gcp": lambda: Gcp(env.get("GCE_METADATA_HOST", ""), clock, lead_s=lead_s),
        "azure": lambda: Azure(env.get("SPOTWARP_AZURE_METADATA_ENDPOINT", ""), clock),
        "file": lambda: File(workspace / config.notice_file, clock, grace_s=grace_s),
        "command": lambda: CommandHook(config.notice_command, workspace, clock, period_s=every_s, grace_s=grace_s),
        "url": lambda: Url(config.notice_url, clock, period_s=every_s, grace_s=grace_s),
    }
    wanted = [platform.cloud] if config.notices is None else list(config.notices)
    hooks = {"file": config.notice_file, "command": config.notice_command, "url": config.notice_url}
    wanted += [name for name, given in hooks.items() if given]
    sources: list[Source] = []
    refused: dict[str, str] = {}
    for name in wanted:
        try:
            sources += [makers[name]()] if name else []
        except NoticeFault as fault:
            refused[name] = fault.message
    return Chosen(tuple(sources), refused)


def _aws(env: Mapping[str, str], clock: Clock) -> Aws:
    if env.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise NoticeFault("AWS_EC2_METADATA_DISABLED is set")
    return Aws(env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", ""), clock)
