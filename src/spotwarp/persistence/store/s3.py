"""A bucket behind the S3 protocol: AWS and everything that speaks like it.

Owns how a client for one is set up from what `aws.py` read, with the key that `keys.py` keeps fresh.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from obstore.exceptions import BaseError
from obstore.store import S3Store as Client

from spotwarp.clock import Clock
from spotwarp.errors import StoreDenied
from spotwarp.persistence.store import dialects
from spotwarp.persistence.store.aws import Endpoint, endpoint_for, role_from
from spotwarp.persistence.store.keys import Keys
from spotwarp.persistence.store.remote import RemoteStore

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Credential

EARLY_S = 300.0  # the library takes a key for expired five minutes before its end


class S3Store(RemoteStore):
    """`bucket`, below `prefix` (no slash at either end, maybe empty), as `env` says to reach it.

    Raises `UsageError` for settings that cannot be used. Nothing is asked of the server before the first verb.
    """

    def __init__(self, bucket: str, prefix: str, *, env: Mapping[str, str], clock: Clock) -> None:
        super().__init__(f"s3://{bucket}/{prefix}".rstrip("/"), dialects.S3, clock)
        self._bucket = bucket
        self._prefix = prefix
        self._endpoint = endpoint_for(bucket, env)
        self._ca_bundle = self._endpoint.ca_bundle
        self._keys = Keys(env, clock)
        self._role = role_from(env)

    @property
    def endpoint(self) -> Endpoint:
        """What was made of the settings."""
        return self._endpoint

    def _connect(self, options: ClientConfig) -> Client:
        endpoint = self._endpoint
        options["allow_http"] = endpoint.allow_http
        if endpoint.ca_bundle is not None:
            try:
                options["root_certificate"] = endpoint.ca_bundle.read_bytes()
            except OSError as error:
                raise StoreDenied(
                    f"cannot read {endpoint.ca_bundle}: {error.strerror}", hint="Correct AWS_CA_BUNDLE."
                ) from error
        config: S3Config = {
            # This name, for it wins over whatever the library finds in the process's own environment.
            "aws_endpoint_url_s3": endpoint.url,
            "region": endpoint.region,
            "virtual_hosted_style_request": endpoint.virtual_hosted,
            "conditional_put": "etag",
            "disable_bulk_delete": True,
        }
        if not self._keys.known:
            config = cast("S3Config", {**config, **self._role})
            options["allow_http"] = True  # the machine's own key servers; the address of the store was checked
        try:
            return Client(
                self._bucket,
                prefix=self._prefix or None,
                config=config,
                client_options=options,
                retry_config={"max_retries": 0},
                credential_provider=self._provide if self._keys.known else None,
            )
        except BaseError as error:
            raise StoreDenied(
                f"{self.url}: the client cannot be set up, most likely for the certificates",
                hint="Check the file that AWS_CA_BUNDLE names.",
            ) from error

    def _provide(self) -> S3Credential:
        """The key for the library, which asks again when it takes it for expired."""
        key, good_for_s = self._keys.current()
        if key is None:  # this provider is only given to the library when there is a key
            raise StoreDenied("there is no AWS key", hint="Set AWS_ACCESS_KEY_ID.")
        expiry = None if good_for_s is None else self._clock.wall() + timedelta(seconds=EARLY_S + good_for_s)
        return {
            "access_key_id": key.access_key,
            "secret_access_key": key.secret_key,
            "token": key.token,
            "expires_at": expiry,
        }

    def _renewed(self, began: float) -> bool:
        return self._keys.renew(began)
