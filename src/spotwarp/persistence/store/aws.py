"""Where an S3 bucket is and who may use it, from the variables and files that every AWS tool reads.

Owns the reading of `AWS_*`, `~/.aws/config` and `~/.aws/credentials` (and the asking of the program that a profile
names), and nothing else: it opens no connection and keeps no secret longer than its caller does. A setting that cannot
be honoured is refused by name, never ignored.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from spotwarp.errors import UsageError
from spotwarp.persistence.store import credential_process
from spotwarp.persistence.store.address import checked_address

DEFAULT_REGION = "us-east-1"
_ELSEWHERE = ("sso_session", "sso_start_url", "role_arn", "source_profile")


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key; `token` for a temporary one. `renewable` when it was read from a file that may change.

    `expires` is when it ends, where the program that gave it said so.
    """

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    renewable: bool = False
    expires: datetime | None = None

    def same_key(self, other: Credentials | None) -> bool:
        """Whether `other` is this key, wherever it was found."""
        return other is not None and (self.access_key, self.secret_key, self.token) == (
            other.access_key,
            other.secret_key,
            other.token,
        )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How to address one bucket: the base URL as the client wants it, region, style, and whether http is allowed."""

    url: str
    region: str
    virtual_hosted: bool
    allow_http: bool
    ca_bundle: Path | None = None


def endpoint_for(bucket: str, env: Mapping[str, str]) -> Endpoint:
    """The endpoint that `env` and the profile name for `bucket`. Raises `UsageError` for one that cannot be used."""
    profile = _profile(env)
    region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or profile.get("region") or DEFAULT_REGION
    custom = _custom_endpoint(env, profile)
    style = profile.get("s3.addressing_style", "auto")
    if custom is None:
        # A dot in the bucket's name breaks the host's TLS certificate, so such buckets go into the path.
        virtual = style != "path" and "." not in bucket
        custom = f"https://s3.{region}.amazonaws.com" + (".cn" if region.startswith("cn-") else "")
    else:
        virtual = style == "virtual"
    parts = checked_address(
        custom,
        what="the S3 endpoint",
        variables="AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or endpoint_url in the profile",
        allow_http=env.get("AWS_ALLOW_HTTP"),
        allow_http_by="AWS_ALLOW_HTTP",
    )
    netloc = f"{bucket}.{parts.netloc}" if virtual else parts.netloc
    identity = "role_arn" in role_from(
        env
    )  # the server that gives out a role's keys speaks https, whatever the store does
    bundle = env.get("AWS_CA_BUNDLE") if parts.scheme == "https" or identity else None
    return Endpoint(
        url=f"{parts.scheme}://{netloc}{parts.path.rstrip('/')}",
        region=region,
        virtual_hosted=virtual,
        allow_http=parts.scheme == "http",
        ca_bundle=Path(bundle) if bundle else None,
    )


def credentials_from(env: Mapping[str, str], *, spent: Credentials | None = None) -> Credentials | None:
    """The access key in `env`, else the profile's, else None (the machine's own role, if it has one).

    `spent` is a key that has expired: a variable that holds it no longer wins over the profile, since a process's
    variables cannot be renewed from outside, and a file can. Raises `UsageError` for a profile that is missing, half
    filled in, or gets its key in a way not supported here.
    """
    access, secret = env.get("AWS_ACCESS_KEY_ID"), env.get("AWS_SECRET_ACCESS_KEY")
    if access and secret:
        given = Credentials(access, secret, env.get("AWS_SESSION_TOKEN") or None)
        if not given.same_key(spent):
            return given
    elif access or secret:
        raise UsageError("only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set", hint="Set both, or neither.")
    profile = _profile(env)
    access, secret = profile.get("aws_access_key_id"), profile.get("aws_secret_access_key")
    if access and secret:
        return Credentials(access, secret, profile.get("aws_session_token") or None, renewable=True)
    name = _profile_name(env)
    if access or secret:
        raise UsageError(f"the AWS profile {name!r} has only half of an access key", hint="Add the other half.")
    if command := profile.get("credential_process"):
        answer = credential_process.run(command, env)
        return Credentials(answer.access_key, answer.secret_key, answer.token, renewable=True, expires=answer.expires)
    if "web_identity_token_file" in profile and "role_arn" in profile:
        return None
    elsewhere = next((key for key in _ELSEWHERE if key in profile), None)
    if elsewhere is not None:
        raise UsageError(
            f"the AWS profile {name!r} gets its key through {elsewhere}, which SpotWarp does not do",
            hint=f"Add to the profile: credential_process = aws configure export-credentials --profile {name}",
        )
    return None


def role_from(env: Mapping[str, str]) -> dict[str, str]:
    """How a machine without a key comes to one, as the client library names it: empty for what it does by itself.

    A role by a web identity (Kubernetes), the key server of a container (ECS), or the machine's metadata service.
    """
    profile = _profile(env)
    told = {
        "role_arn": env.get("AWS_ROLE_ARN") or profile.get("role_arn"),
        "web_identity_token_file": env.get("AWS_WEB_IDENTITY_TOKEN_FILE") or profile.get("web_identity_token_file"),
        "role_session_name": env.get("AWS_ROLE_SESSION_NAME") or profile.get("role_session_name"),
        "aws_endpoint_url_sts": env.get("AWS_ENDPOINT_URL_STS"),
        "container_credentials_relative_uri": env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
        "container_credentials_full_uri": env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        "container_authorization_token_file": env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
        "metadata_endpoint": env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"),
    }
    return {name: value for name, value in told.items() if value}


def _custom_endpoint(env: Mapping[str, str], profile: Mapping[str, str]) -> str | None:
    if env.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return None
    return (
        env.get("AWS_ENDPOINT_URL_S3")
        or env.get("AWS_ENDPOINT_URL")
        or profile.get("s3.endpoint_url")
        or profile.get("endpoint_url")
        or None
    )


def _profile_name(env: Mapping[str, str]) -> str:
    return env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE") or "default"


def _profile(env: Mapping[str, str]) -> dict[str, str]:
    """The profile's settings, config first, credentials over them; nested ones as `s3.<name>`."""
    name = _profile_name(env)
    home = Path(env.get("HOME") or Path.home())
    config = _read(Path(env.get("AWS_CONFIG_FILE") or home / ".aws/config").expanduser())
    secrets = _read(Path(env.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws/credentials").expanduser())
    section = name if name == "default" else f"profile {name}"
    found = [parser[part] for parser, part in ((config, section), (secrets, name)) if parser.has_section(part)]
    if not found and (env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE")):
        raise UsageError(
            f"there is no AWS profile named {name!r}", hint="Correct AWS_PROFILE, or run `aws configure list-profiles`."
        )
    settings: dict[str, str] = {}
    for part in found:
        for key, value in part.items():
            settings.update(_nested(key, value))
    services = settings.get("services")
    if services and config.has_section(f"services {services}"):
        settings |= {k: v for key, value in config[f"services {services}"].items() for k, v in _nested(key, value)}
    return settings


def _nested(key: str, value: str) -> list[tuple[str, str]]:
    """`s3 =` followed by indented `name = value` lines is one option with a multi-line value."""
    if "\n" not in value:
        return [(key, value.strip())]
    pairs = (line.partition("=") for line in value.splitlines() if "=" in line)
    return [(f"{key}.{name.strip()}", inner.strip()) for name, _, inner in pairs]


def _read(path: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(default_section="", strict=False)
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        # The parser's own text quotes the line, which may be a secret.
        raise UsageError(f"cannot read {path}: {type(error).__name__}", hint="Correct the file.") from None
    return parser
