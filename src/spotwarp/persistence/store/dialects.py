"""How each kind of store says no: its codes and statuses, and what each means.

Data only. `refusal.py` reads it. No text here may hold anything of a request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from spotwarp.errors import (
    BucketMissing,
    CredentialsExpired,
    StoreConflict,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnsupported,
)

Meaning = tuple[type[StoreError], str | None]
"""An error and its hint (None: the error's own)."""

_LOST_ON_THE_WAY: Final = "It will be sent again."
CLOCK: Final = "Set this machine's clock (NTP)."
_QUOTA: Final = "Raise the quota, or delete objects."
_RIGHTS: Final = "Give this key the rights to get, list and put below the prefix."


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of store."""

    name: str
    network: str
    """Hint for silence: which settings say where the store is."""
    keys: str
    """Hint for a refused key."""
    no_keys: str
    """Hint when there is no key at all."""
    expired: frozenset[str]
    """Codes that say: the same request with newer credentials; of an end, or of a key that was replaced."""
    absent: frozenset[str]
    """Codes with which a 404 means that the object is absent."""
    taken: frozenset[tuple[int, str]]
    """Status and code that mean, for create-if-absent, that the name is taken; an empty code is any."""
    skewed: tuple[str, ...] = ("RequestTimeTooSkewed", "RequestExpired")
    """Of which a refusal holds one when the clocks differ too much, or the request was signed too long ago."""
    by_code: dict[str, Meaning] = field(default_factory=dict)
    by_status: dict[int, Meaning] = field(default_factory=dict)


def _by_status(network: str, keys: str, name: str) -> dict[int, Meaning]:
    return {
        401: (StoreDenied, keys),
        403: (StoreDenied, _RIGHTS),
        404: (StoreUnavailable, f"That does not look like {name}. {network}"),
        405: (StoreUnsupported, None),
        408: (StoreUnavailable, None),
        409: (StoreConflict, None),
        412: (StoreUnavailable, None),
        425: (StoreUnavailable, None),
        429: (StoreUnavailable, None),
        501: (StoreUnsupported, None),
        507: (StoreFull, _QUOTA),
    }


_S3_KEYS: Final = "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN or AWS_PROFILE."
_S3_NETWORK: Final = "Check the network and AWS_ENDPOINT_URL."
_S3_REGION: Final = "Set AWS_REGION to the bucket's region, and AWS_ENDPOINT_URL to its server."
_S3_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})

S3: Final = Dialect(
    name="S3",
    network=_S3_NETWORK,
    keys=_S3_KEYS,
    no_keys="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
    expired=_S3_EXPIRED | {"InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"},
    absent=frozenset({"NoSuchKey", "NotFound"}),
    taken=frozenset({(412, "")}),
    by_code={
        "NoSuchBucket": (BucketMissing, "Create the bucket, or correct the URL."),
        "PermanentRedirect": (BucketMissing, _S3_REGION),
        "AuthorizationHeaderMalformed": (BucketMissing, _S3_REGION),
        **dict.fromkeys(("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"), (StoreDenied, _S3_KEYS)),
        **dict.fromkeys(
            _S3_EXPIRED,
            (
                CredentialsExpired,
                "Write new credentials into the profile's file (~/.aws/credentials): they are picked up from there.",
            ),
        ),
        "QuotaExceeded": (StoreFull, _QUOTA),
        "XMinioStorageFull": (StoreFull, "Make room on the server."),
        "NotImplemented": (StoreUnsupported, None),
        **dict.fromkeys(
            ("RequestTimeout", "BadDigest", "InvalidDigest", "IncompleteBody", "XAmzContentSHA256Mismatch"),
            (StoreUnavailable, _LOST_ON_THE_WAY),
        ),
    },
    by_status=_by_status(_S3_NETWORK, _S3_KEYS, "S3"),
)

_GCS_KEYS: Final = (
    "Check GOOGLE_APPLICATION_CREDENTIALS or `gcloud auth application-default login`, and this machine's clock (NTP)."
)
_GCS_NETWORK: Final = "Check the network, and STORAGE_EMULATOR_HOST if it is set."

GCS: Final = Dialect(
    name="Google Cloud Storage",
    network=_GCS_NETWORK,
    keys=_GCS_KEYS,
    no_keys="Set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`.",
    expired=frozenset({"AuthenticationRequired", "InvalidCredentials"}),
    absent=frozenset({"NoSuchKey"}),
    taken=frozenset({(412, "")}),
    by_code={
        "NoSuchBucket": (BucketMissing, "Create the bucket, or correct the URL."),
        "AuthenticationRequired": (StoreDenied, _GCS_KEYS),
        "InvalidCredentials": (StoreDenied, _GCS_KEYS),
        "AccessDenied": (
            StoreDenied,
            "Give this account roles/storage.objectUser on the bucket (or objects.get, list, create and delete).",
        ),
        "UserProjectAccountProblem": (StoreDenied, "The bucket's project has no active billing account."),
        "AccountProblem": (StoreDenied, "The bucket's project has no active billing account."),
        "QuotaExceeded": (StoreFull, _QUOTA),
        "NotImplemented": (StoreUnsupported, None),
        **dict.fromkeys(
            ("RequestTimeout", "BadDigest", "InvalidDigest", "IncompleteBody"), (StoreUnavailable, _LOST_ON_THE_WAY)
        ),
    },
    by_status=_by_status(_GCS_NETWORK, _GCS_KEYS, "Google Cloud Storage"),
)

_AZURE_KEYS: Final = (
    "Check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN, whose time may be "
    "over), and this machine's clock (NTP)."
)
_AZURE_NETWORK: Final = "Check the network and AZURE_STORAGE_ACCOUNT_NAME (or AZURE_STORAGE_ENDPOINT)."
_AZURE_RIGHTS: Final = (
    "Give this identity the role Storage Blob Data Contributor, or a SAS with read, write, list, delete."
)

AZURE: Final = Dialect(
    name="Azure Blob Storage",
    network=_AZURE_NETWORK,
    keys=_AZURE_KEYS,
    no_keys="Set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or give the machine a managed identity.",
    expired=frozenset({"InvalidAuthenticationInfo", "ExpiredToken"}),
    absent=frozenset({"BlobNotFound", "ResourceNotFound"}),
    # Create-if-absent answers 409 in general and 412 where the name was taken at the very same moment.
    taken=frozenset({(409, "BlobAlreadyExists"), (412, "ConditionNotMet"), (412, "TargetConditionNotMet")}),
    skewed=("Request date header too old",),
    by_code={
        "ContainerNotFound": (BucketMissing, "Create the container, or correct the URL."),
        "ContainerBeingDeleted": (BucketMissing, "The container is being deleted: use another, or wait a minute."),
        "ContainerDisabled": (BucketMissing, "The container was disabled by its administrator."),
        "AccountIsDisabled": (StoreDenied, "The storage account is disabled."),
        **dict.fromkeys(
            ("AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation"),
            (StoreDenied, _AZURE_KEYS),
        ),
        "AuthorizationFailure": (StoreDenied, f"{_AZURE_KEYS} Does the account's firewall let this machine in?"),
        **dict.fromkeys(
            (
                "AuthorizationPermissionMismatch",
                "AuthorizationProtocolMismatch",
                "AuthorizationResourceTypeMismatch",
                "AuthorizationServiceMismatch",
                "AuthorizationSourceIPMismatch",
                "InsufficientAccountPermissions",
            ),
            (StoreDenied, _AZURE_RIGHTS),
        ),
        "Md5Mismatch": (StoreUnavailable, _LOST_ON_THE_WAY),
        "OperationTimedOut": (StoreUnavailable, None),
        "ServerBusy": (StoreUnavailable, None),
        "BlobImmutableDueToPolicy": (StoreDenied, "The container has an immutability policy; use one without."),
        "InvalidBlobType": (StoreDenied, "Something that is no block blob has that name."),
        "FeatureVersionMismatch": (StoreUnsupported, None),
        "NotImplemented": (StoreUnsupported, None),
    },
    by_status=_by_status(_AZURE_NETWORK, _AZURE_KEYS, "Azure Blob Storage"),
)
