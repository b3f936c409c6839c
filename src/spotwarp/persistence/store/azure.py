"""A container of Azure Blob Storage.

Owns the reading of Azure's variables, and how a client is set up from them. Create-if-absent is `If-None-Match: *` on
one Put Blob request: no blocks are ever staged, so a killed upload leaves none and two cannot spoil each other's.
It keeps no secret longer than the client needs it, and never repeats one in a message.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from obstore.exceptions import BaseError
from obstore.store import AzureStore as Client

from spotwarp.clock import Clock
from spotwarp.errors import StoreDenied, UsageError
from spotwarp.persistence.store import dialects
from spotwarp.persistence.store.address import checked_address
from spotwarp.persistence.store.remote import RemoteStore

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig

HOST: Final = "blob.core.windows.net"
EMULATOR: Final = "http://127.0.0.1:10000/devstoreaccount1"
EMULATOR_ACCOUNT: Final = "devstoreaccount1"
EMULATOR_KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Every emulator's key; it is printed in Azure's documentation and protects nothing."""


@dataclass(frozen=True, slots=True)
class AzureAccess:
    """The account, its blob endpoint, and one of: its key, a SAS token, or neither (an identity, which the library
    finds: a service principal, a workload's, the machine's)."""

    account: str
    endpoint: str
    key: str | None = field(default=None, repr=False)
    sas: str | None = field(default=None, repr=False)


def azure_access(env: Mapping[str, str], account: str = "") -> AzureAccess:
    """What `env` says; `account` is the one that the remote path names, if it does.

    Raises `UsageError` for settings that are missing, contradict each other, or cannot be used.
    """
    string = _connection_string(env.get("AZURE_STORAGE_CONNECTION_STRING", ""))
    told = env.get("AZURE_STORAGE_ACCOUNT_NAME") or env.get("AZURE_STORAGE_ACCOUNT") or string.get("accountname", "")
    if account and told and account != told:
        raise UsageError(
            f"the remote path names the account {account!r}, and the variables {told!r}",
            hint="Correct one: their key belongs to one account only.",
        )
    name = account or told
    if not name:
        raise UsageError(
            "which Azure storage account?",
            hint="Set AZURE_STORAGE_ACCOUNT_NAME, or write https://ACCOUNT.blob.core.windows.net/container/prefix.",
        )
    key = _first(env, "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_KEY")
    sas = _first(env, "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
    key = key or (None if sas else string.get("accountkey"))
    sas = None if key else sas or string.get("sharedaccesssignature")
    return AzureAccess(name, _endpoint(env, string, name), _checked_key(key), sas.lstrip("?") if sas else None)


def _first(env: Mapping[str, str], *names: str) -> str | None:
    return next((env[name] for name in names if env.get(name)), None)


def _endpoint(env: Mapping[str, str], string: Mapping[str, str], account: str) -> str:
    scheme = string.get("defaultendpointsprotocol", "https")
    suffix = string.get("endpointsuffix")
    url = (
        env.get("AZURE_STORAGE_ENDPOINT")
        or string.get("blobendpoint")
        or (f"{scheme}://{account}.blob.{suffix}" if suffix else f"https://{account}.{HOST}")
    )
    checked_address(
        url,
        what="the Azure endpoint",
        variables="AZURE_STORAGE_ENDPOINT or AZURE_STORAGE_CONNECTION_STRING",
        allow_http=env.get("AZURE_ALLOW_HTTP"),
        allow_http_by="AZURE_ALLOW_HTTP",
    )
    return url.rstrip("/")


def _connection_string(text: str) -> dict[str, str]:
    """`Name=value;…` with names in lower case. The emulator's short form is written out."""
    pairs = [part.partition("=") for part in text.split(";") if part.strip()]
    if any(not separator for _, separator, _ in pairs):
        raise UsageError(
            "AZURE_STORAGE_CONNECTION_STRING is not made of Name=value pairs",
            hint="Copy it again from the storage account's access keys.",
        )
    found = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if found.get("usedevelopmentstorage", "").lower() == "true":
        return {"accountname": EMULATOR_ACCOUNT, "accountkey": EMULATOR_KEY, "blobendpoint": EMULATOR}
    return found


def _checked_key(key: str | None) -> str | None:
    try:
        base64.b64decode(key or "", validate=True)
    except binascii.Error:
        raise UsageError(
            "the Azure account key is not base64", hint="Copy AZURE_STORAGE_ACCOUNT_KEY again; it ends with '=='."
        ) from None
    return key


class AzureStore(RemoteStore):
    """`container`, below `prefix` (no slash at either end, maybe empty), as `env` says to reach it.

    `account` is the one that the remote path names, "" when it leaves that to `env`. Raises `UsageError` for settings
    that cannot be used. Nothing is asked of the server before the first verb.
    """

    def __init__(self, container: str, prefix: str, *, env: Mapping[str, str], clock: Clock, account: str = "") -> None:
        self._access = azure_access(env, account)
        where = f"https://{account}.{HOST}/{container}" if account else f"az://{container}"
        super().__init__(f"{where}/{prefix}".rstrip("/"), dialects.AZURE, clock)
        self._container = container
        self._prefix = prefix
        self._env = env

    def _connect(self, options: ClientConfig) -> Client:
        access = self._access
        options["allow_http"] = access.endpoint.startswith("http:")
        config: AzureConfig = {
            "account_name": access.account,
            "endpoint": access.endpoint,
            "use_emulator": False,
            "skip_signature": False,
        }
        if access.key is not None:
            config |= {"account_key": access.key, "credential_type": "access_key"}
        elif access.sas is not None:
            config |= {"sas_key": access.sas, "credential_type": "sas_token"}
        try:
            return Client(
                self._container,
                prefix=self._prefix or None,
                config=config,
                client_options=options,
                retry_config={"max_retries": 0},
            )
        except BaseError:  # its text may quote the key
            raise StoreDenied(f"{self.url}: the credentials cannot be used", hint=dialects.AZURE.keys) from None
