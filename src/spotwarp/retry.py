"""Trying again: how long to wait, and when to stop.

Owns the back-off schedule (pure) and the one loop that follows it. It decides by an error's own `retryable`, never by
its text, and it never retries without a limit in time. Who calls it must know that the work is idempotent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from spotwarp.clock import Clock, Rng
from spotwarp.errors import SpotWarpError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential waits: `first_s`, then `factor` times longer each, never above `cap_s` (seconds)."""

    first_s: float = 0.1
    factor: float = 2.0
    cap_s: float = 10.0

    def wait_s(self, failures: int, jitter: float) -> float:
        """Seconds to wait after the `failures`-th failure (from 1); `jitter` in [0, 1) spreads it over its upper half.

        Half of the wait is fixed, so that a storm always thins out; half is random, so that a fleet drifts apart.
        """
        exponent = min(failures - 1, 64)  # beyond that the cap holds anyway, and floats would overflow
        whole = min(self.cap_s, self.first_s * self.factor**exponent)
        return whole * (0.5 + 0.5 * jitter)


def is_retryable(error: SpotWarpError) -> bool:
    """The error's own word on whether trying again can help."""
    return error.retryable


def call(
    fn: Callable[[], T],
    *,
    clock: Clock,
    rng: Rng,
    budget_s: float,
    retryable: Callable[[SpotWarpError], bool] = is_retryable,
    backoff: Backoff = Backoff(),
    cancel: threading.Event | None = None,
    at_least_s: Callable[[SpotWarpError], float] = lambda _: 0.0,
) -> T:
    """The result of `fn`, called again after each retryable error until `budget_s` seconds have passed.

    `fn` is called at least once; no wait starts that would end beyond the budget. `at_least_s` gives the wait that an
    error itself asks for (seconds, 0: none); back-off and jitter come on top of it. Setting `cancel` ends a wait at
    once and allows no further try. Raises the last error of `fn`; an error that is not retryable at once.
    """
    start = clock.monotonic()
    failures = 0
    while True:
        try:
            return fn()
        except SpotWarpError as error:
            failures += 1
            wait_s = at_least_s(error) + backoff.wait_s(failures, rng.uniform(0.0, 1.0))
            spent_s = clock.monotonic() - start
            if not retryable(error) or spent_s + wait_s > budget_s or not _pause(clock, wait_s, cancel):
                raise


def _pause(clock: Clock, seconds: float, cancel: threading.Event | None) -> bool:
    """False when `cancel` was set before the `seconds` were over."""
    if cancel is None:
        clock.sleep(seconds)
        return True
    return not clock.wait(cancel, seconds)
