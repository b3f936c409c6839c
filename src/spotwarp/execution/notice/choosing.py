"""Which sources are watched: the cloud that this machine is found in, or those that the user names, and his hooks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from spotwarp.clock import Clock
from spotwarp.config import Config
from spotwarp.errors import ConfigError, NoticeFault
from spotwarp.execution.notice.aws import Aws
from spotwarp.execution.notice.azure import Azure
from spotwarp.execution.notice.command import CommandHook
from spotwarp.execution.notice.file import File
from spotwarp.execution.notice.gcp import LEAD_S, Gcp
from spotwarp.execution.notice.platform import Platform
from spotwarp.execution.notice.source import Source
from spotwarp.execution.notice.url import Url


def choose(
    config: Config, platform: Platform, workspace: Path, env: Mapping[str, str], clock: Clock
) -> tuple[Source, ...]:
    """The sources to watch, none of them asked yet. Raises `ConfigError` for an address that is none."""
    clouds = (platform.cloud,) if config.notices is None else config.notices
    grace_s = platform.grace_s if config.grace_s is None else config.grace_s
    found: list[Source] = []
    try:
        for cloud in clouds:
            found += _cloud(cloud, env, config.grace_s, clock)
        if config.notice_file:
            found.append(File(workspace / config.notice_file, clock, grace_s=grace_s))
        if config.notice_command:
            hook = CommandHook(config.notice_command, workspace, clock, period_s=config.notice_every_s, grace_s=grace_s)
            found.append(hook)
        if config.notice_url:
            found.append(Url(config.notice_url, clock, period_s=config.notice_every_s, grace_s=grace_s))
    except NoticeFault as fault:
        raise ConfigError(fault.message, hint="An address looks like http://127.0.0.1:8080/notice.") from fault
    return tuple(found)


def _cloud(cloud: str, env: Mapping[str, str], grace_s: float | None, clock: Clock) -> list[Source]:
    if cloud == "aws":
        if env.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            return []
        return [Aws(env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", ""), clock)]
    if cloud == "gcp":
        return [Gcp(env.get("GCE_METADATA_HOST", ""), clock, lead_s=LEAD_S if grace_s is None else grace_s)]
    if cloud == "azure":
        return [Azure(env.get("SPOTWARP_AZURE_METADATA_ENDPOINT", ""), clock)]
    return []
