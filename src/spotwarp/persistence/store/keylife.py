"""How long the key to a store is good for, as far as that can be known without asking anybody.

Reads the same variables and files as the stores do. Shows where a key comes from, never the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qs

from spotwarp.persistence.store.url import Location


@dataclass(frozen=True, slots=True)
class KeyLife:
    """Where the key comes from; whether it is a temporary one; when it ends, if that is known; whether it is read
    anew from there when it has ended."""

    source: str
    temporary: bool
    expires: datetime | None
    renewed: bool


def key_life(location: Location, env: Mapping[str, str]) -> KeyLife:
    """The life of the key to `location`. Raises `UsageError` for settings that cannot be used."""
    if location.scheme == "s3":
        return _aws(env)
    if location.scheme == "gs":
        return _google(env)
    return _azure(location, env) if location.scheme == "az" else KeyLife("no key is needed", False, None, True)


def _aws(env: Mapping[str, str]) -> KeyLife:
    from spotwarp.persistence.store.aws import credentials_from

    found = credentials_from(env)
    if found is None:
        return KeyLife("the machine's own role", True, None, True)
    if not found.renewable:
        expires = _moment(env.get("AWS_CREDENTIAL_EXPIRATION", "")) if found.token else None
        return KeyLife("the environment", found.token is not None, expires, False)
    source = "credential_process" if found.expires else "the AWS profile"
    return KeyLife(source, found.token is not None or found.expires is not None, found.expires, True)


def _google(env: Mapping[str, str]) -> KeyLife:
    from spotwarp.persistence.store.gcs import google_access

    found = google_access(env)
    if found.anonymous:
        return KeyLife("no key is needed", False, None, True)
    if found.key is not None:
        return KeyLife("a service account's key", False, None, True)
    return KeyLife("a login of gcloud" if found.login else "the machine's own account", True, None, True)


def _azure(location: Location, env: Mapping[str, str]) -> KeyLife:
    from spotwarp.persistence.store.azure import azure_access

    found = azure_access(env, location.account)
    if found.key is not None:
        return KeyLife("the account's key", False, None, True)
    if found.sas is not None:
        return KeyLife("a SAS token", True, _moment((parse_qs(found.sas).get("se") or [""])[0]), False)
    return KeyLife("an identity", True, None, True)


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
