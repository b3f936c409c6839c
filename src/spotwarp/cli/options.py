"""Flags that stand for settings, as the verbs have them in common."""

from __future__ import annotations

from typing import Any, Final

import typer

LIMITS: Final[Any] = typer.Option(
    None, "--limits", help="What may be used: cpu=1.5,bandwidth=200MB/s (SPOTWARP_LIMITS)."
)
CODING: Final[Any] = typer.Option(None, "--coding", help="auto, raw, planes or delta (SPOTWARP_CODING).")
WAIT_FOR_ALL: Final[Any] = typer.Option(
    False, "--wait-for-all", help="Start only when older checkpoints are restored too (SPOTWARP_START_EARLY)."
)
INTERVAL: Final[Any] = typer.Option(None, "--interval", help="auto, or 1s to 24h (SPOTWARP_INTERVAL).")
LEASE: Final[Any] = typer.Option(None, "--lease", help="Silence after which a holder is taken over (SPOTWARP_LEASE).")
GRACE: Final[Any] = typer.Option(None, "--grace", help="Time from SIGTERM to the machine's end (SPOTWARP_GRACE).")
