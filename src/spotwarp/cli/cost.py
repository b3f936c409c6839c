"""`spotwarp status --cost`: what the run costs at its store, for people and as facts. Estimates; decides nothing."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spotwarp.errors import CorruptObject
from spotwarp.model import human_bytes

if TYPE_CHECKING:
    from spotwarp.cli.context import Context
    from spotwarp.persistence.cost import Cost, Restore, Stored
    from spotwarp.persistence.store.metered import Used
    from spotwarp.persistence.store.prices import PriceList


@dataclass(frozen=True, slots=True)
class Bill:
    """What was found, and what it comes to."""

    prices: PriceList
    stored: Stored
    used: Used
    restore: Restore | None
    cost: Cost

    def facts(self) -> dict[str, Any]:
        """For `--json`; amounts in dollars."""
        from spotwarp.persistence.store.metered import CHARGED
        from spotwarp.persistence.store.prices import DATE

        return {
            "prices": {**asdict(self.prices), "list_prices_of": DATE},
            "stored": {**asdict(self.stored), "bytes": self.stored.bytes},
            "requests": {name: getattr(self.used, name) for name in CHARGED},
            "restore": asdict(self.restore) if self.restore else None,
            "dollars": asdict(self.cost),
        }

    def rows(self) -> list[tuple[str, str]]:
        """For people."""
        from spotwarp.persistence.store.prices import DATE

        stored, used, cost = self.stored, self.used, self.cost
        note = f" ({self.prices.note})" if self.prices.note else ""
        kinds = f"packs {human_bytes(stored.packs)}, manifests {human_bytes(stored.manifests)}, "
        kinds += f"log {human_bytes(stored.log)}, {stored.objects} objects"
        day = f"; {money(cost.day)} a day at its pace" if cost.day is not None else ""
        rows = [
            ("cost", f"about, by list prices of {DATE}, which change: {self.prices.name}{note}"),
            ("  stored", f"{money(cost.month)} a month for {human_bytes(stored.bytes)}: {kinds}"),
            ("  requests", f"{money(cost.requests)} so far: {used.puts} PUT, {used.gets} GET, {used.lists} LIST{day}"),
        ]
        if self.restore:
            size = human_bytes(self.restore.bytes)
            rows.append(("  a restore", f"{money(cost.restore)} out of the vendor's network: {size}"))
        return rows


def found_cost(opened: Context) -> Bill:
    """Look at what lies there. Raises the store's errors."""
    from spotwarp.persistence import cost
    from spotwarp.persistence.layout import run_prefix
    from spotwarp.persistence.runlog.entry import Claim
    from spotwarp.persistence.runlog.lease import read_beat
    from spotwarp.persistence.store.prices import listed
    from spotwarp.persistence.store.url import effective, parse_url

    store, log = opened.repository.store, opened.log()
    location = parse_url(opened.config.remote_path, cwd=opened.workspace)
    prices = listed(location.scheme, effective(location, os.environ).get("endpoint", ""))
    prices = prices.amended(opened.config.prices)
    state = log.head().state
    objects = list(store.list(run_prefix(log.run)))
    there, used = cost.stored(objects, log.run), cost.requests(store, log.run, objects)
    beat = read_beat(store, log.run, state.life) if state.life else None
    claim = log.read(state.claim) if state.claim else None
    day = cost.a_day(beat, claim.wall if isinstance(claim, Claim) else "")
    restore = _restore(opened, state.snapshot)
    return Bill(prices, there, used, restore, cost.estimate(prices, there, used, day, restore))


def _restore(opened: Context, number: int) -> Restore | None:
    """What fetching the last snapshot takes; None where there is none, or it cannot be read."""
    from spotwarp.persistence.cost import restoring
    from spotwarp.persistence.runlog.entry import Snapshot

    log = opened.log()
    try:
        entry = log.read(number) if number else None
        return restoring(opened.repository.manifest(log.run, entry)) if isinstance(entry, Snapshot) else None
    except CorruptObject:
        return None


def money(dollars: float | None) -> str:
    """An amount for people."""
    if dollars is None:
        return "unknown"
    return (
        f"${dollars:,.2f}"
        if dollars >= 0.1 or not dollars
        else f"${dollars:.4f}"
        if dollars >= 0.0001
        else "under $0.0001"
    )
