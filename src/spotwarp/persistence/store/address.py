"""The address of a server: is it one, and may data go there unencrypted.

Pure. It never echoes what may be a secret in an address.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import SplitResult, urlsplit

from spotwarp.errors import UsageError


def checked_address(url: str, *, what: str, variables: str, allow_http: str | None, allow_http_by: str) -> SplitResult:
    """`url` taken apart. Plain http is for loopback, or where the value `allow_http` of `allow_http_by` says so.

    `what` names the address in messages, `variables` what it was read from. Raises `UsageError`.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or "@" in url:
        raise UsageError(f"{what} is not a URL like https://host[:port]", hint=f"Correct {variables}.")
    if parts.scheme == "http" and not is_loopback(parts.hostname) and (allow_http or "").lower() not in ("1", "true"):
        raise UsageError(
            f"{what} {url} is plain http, which would show your data to the network",
            hint=f"Use https, or set {allow_http_by}=true if the network is yours.",
        )
    return parts


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine itself, whatever a name server says."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
