"""The access key in use, for as long as it is good: renewed before it ends, and as soon as a server says that it has.

Owns when the source (variables, files, a program) is read again. A renewal that fails changes nothing: the old key goes
on being used until there is another. It never shows a key to anybody but the caller.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from spotwarp.clock import Clock
from spotwarp.errors import UsageError
from spotwarp.persistence.store.aws import Credentials, credentials_from

LOOK_S: Final = 300.0
"""How often a file is looked at for a newer key, though the old one works."""
EARLY_S: Final = 60.0
"""A key with a known end is renewed so long before it, or after four fifths of a shorter life."""
BREATH_S: Final = 1.0
"""The source is not read more often, however many requests are refused at once."""


class Keys:
    """What `env` gives as the key, kept fresh. Safe to use from several threads.

    Raises `UsageError` at once for a source that cannot be used.
    """

    def __init__(self, env: Mapping[str, str], clock: Clock) -> None:
        self._env, self._clock = env, clock
        self._lock = threading.Lock()
        self._spent: Credentials | None = None
        self._current = credentials_from(env)
        self._read_at = clock.monotonic()
        self._renewed_at = float("-inf")
        self._due = self._read_at + self._good_for_s()

    @property
    def known(self) -> bool:
        """False when there is no key, only perhaps a role of the machine's own."""
        return self._current is not None

    def current(self) -> tuple[Credentials | None, float | None]:
        """The key to sign with, and for how many seconds it need not be asked for again (None: ever)."""
        with self._lock:
            now = self._clock.monotonic()
            if now >= self._due and now - self._read_at >= BREATH_S:
                self._read()
            if self._current is None or not self._current.renewable:
                return self._current, None
            return self._current, max(BREATH_S, self._due - now)

    def renew(self, began: float) -> bool:
        """A request that began at `began` (monotonic) was refused for its key: True when there is another key now."""
        with self._lock:
            if self._renewed_at > began:
                return True  # another thread was refused first
            if self._clock.monotonic() - self._read_at < BREATH_S and self._read_at > began:
                return False
            self._spent = self._current
            return self._read()

    def _read(self) -> bool:
        try:
            new = credentials_from(self._env, spent=self._spent)
        except UsageError:  # a file that is just being written, a program that has no key at the moment
            new = None
        self._read_at = self._clock.monotonic()
        other = new is not None and not new.same_key(self._current)
        if new is not None:
            self._current = new
        if other:
            self._renewed_at = self._read_at
        self._due = self._read_at + self._good_for_s()
        return other

    def _good_for_s(self) -> float:
        """Seconds until the source is worth another look."""
        if self._current is None or self._current.expires is None:
            return LOOK_S
        left_s = (self._current.expires - self._clock.wall()).total_seconds()
        return min(LOOK_S, max(BREATH_S, left_s - EARLY_S, left_s * 0.8 if left_s < 5 * EARLY_S else 0.0))
