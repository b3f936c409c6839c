"""What stores charge by their price lists, for an estimate of the bill. Data.

List prices in US dollars, of the standard class in the cheapest region of the United States, first tier, without free
tiers, taxes or agreements, as the vendors' price pages had them in January 2026. They change; the user's own settings
(`prices:`) win. Sources: aws.amazon.com/s3/pricing, cloud.google.com/storage/pricing, azure.microsoft.com/pricing/
details/storage/blobs, developers.cloudflare.com/r2/pricing, backblaze.com/cloud-storage/pricing, wasabi.com/pricing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from spotwarp.values import Prices

DATE: Final = "January 2026"
_GIB: Final = 1 << 30
_GB: Final = 10**9


@dataclass(frozen=True, slots=True)
class PriceList:
    """What one kind of store charges, in dollars; None: not known."""

    name: str
    storage: float | None = None
    """Of a GB for a month."""
    put: float | None = None
    get: float | None = None
    listing: float | None = None
    """Of a thousand requests. Deletes are free everywhere."""
    egress: float | None = None
    """Of a GB that leaves the vendor's network; inside the store's own region it is usually free."""
    gb: int = _GIB
    """Bytes of what the vendor calls a GB."""
    note: str = ""

    def amended(self, prices: Prices) -> PriceList:
        """With what the user says instead."""
        told = {name: getattr(prices, name) for name in ("storage", "put", "get", "egress")}
        told["listing"] = prices.put
        given = {name: value for name, value in told.items() if value is not None}
        note = "; ".join(one for one in (self.note, "with the config's prices") if one)
        return replace(self, **given, note=note) if given else self


DIRECTORY: Final = PriceList("a directory", 0.0, 0.0, 0.0, 0.0, 0.0, _GB, "nothing is charged")
AWS: Final = PriceList("Amazon S3", 0.023, 0.005, 0.0004, 0.005, 0.09, note="Standard, us-east-1")
GOOGLE: Final = PriceList("Google Cloud Storage", 0.020, 0.005, 0.0004, 0.005, 0.12, note="Standard, us-central1")
AZURE: Final = PriceList("Azure Blob Storage", 0.018, 0.005, 0.0004, 0.005, 0.087, note="hot, LRS, East US")
R2: Final = PriceList("Cloudflare R2", 0.015, 0.0045, 0.00036, 0.0045, 0.0, _GB, "egress is free")
B2: Final = PriceList(
    "Backblaze B2", 0.006, 0.0, 0.0004, 0.004, 0.01, _GB, "egress is free up to three times what is stored"
)
WASABI: Final = PriceList(
    "Wasabi", 0.0069, 0.0, 0.0, 0.0, 0.0, note="at least 1 TB and 90 days of each object are charged"
)
_HOSTS: Final = (
    ("amazonaws.com", AWS),
    ("amazonaws.com.cn", AWS),
    ("googleapis.com", GOOGLE),
    ("blob.core.windows.net", AZURE),
    ("r2.cloudflarestorage.com", R2),
    ("backblazeb2.com", B2),
    ("wasabisys.com", WASABI),
)


def listed(scheme: str, endpoint: str) -> PriceList:
    """The price list of the store at `endpoint` (an address, empty for a directory); one without prices where none
    is known. Pure.
    """
    if scheme == "file":
        return DIRECTORY
    host = (urlsplit(endpoint).hostname or endpoint).lower()
    for suffix, prices in _HOSTS:
        if host == suffix or host.endswith(f".{suffix}"):
            return prices
    return PriceList(host, gb=_GB, note="no list price is known: say yours in `prices:`")
