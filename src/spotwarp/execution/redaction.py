"""The values of secrets taken out of what is kept or sent: exact values, nothing cleverer.

What the command prints reaches the user's terminal untouched; the log that is stored has `***` where a value stood. A
value in another form (base64, URL-encoded, split by a newline of the terminal) is not recognised. Values of fewer than
six characters are left alone: taking out every `1` would destroy a log and protect nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

SHORTEST = 6
MASK = "***"


class Redactor:
    """Knows the values. May be shared by threads; holds them in memory only."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        # A file's last newline is in many a variable, and in no program's words.
        bare = {value.strip() for value in values}
        kept = {v.encode("utf-8", "surrogateescape") for v in bare if len(v) >= SHORTEST}
        self._values = sorted(kept, key=len, reverse=True)  # the longest first: one may hold another
        self._pattern = re.compile(b"|".join(re.escape(v) for v in self._values)) if kept else None

    def text(self, text: str) -> str:
        """`text` without the values."""
        return self.whole(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def whole(self, data: bytes) -> bytes:
        """`data`, all of it there, without the values."""
        return self._pattern.sub(MASK.encode(), data) if self._pattern else data

    def stream(self) -> Redacting:
        """For bytes that come in pieces, which may cut a value in two."""
        return Redacting(self)

    def settled(self, data: bytes) -> tuple[bytes, bytes]:
        """The beginning of `data` without the values, and the rest, which may yet become a value, or a longer one."""
        if self._pattern is None:
            return data, b""
        clean: list[bytes] = []
        at = 0
        while True:
            begun = self._begun(data, at)
            match = self._pattern.search(data, at)
            if match is None or match.start() >= begun:
                return b"".join((*clean, data[at:begun])), data[begun:]
            clean += [data[at : match.start()], MASK.encode()]
            at = match.end()

    def _begun(self, data: bytes, at: int) -> int:
        """Where the end of `data` begins that is the beginning of a value; its length when there is none."""
        longest = 0
        for value in self._values:
            for length in range(min(len(value) - 1, len(data) - at), longest, -1):
                if data.endswith(value[:length]):
                    longest = length
                    break
        return len(data) - longest


class Redacting:
    """One stream: give it every piece, write what it returns, and `rest` at the end."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What may be written now; the possible beginning of a value is held back until more is known."""
        clean, self._held = self._redactor.settled(self._held + data)
        return clean

    def rest(self) -> bytes:
        """What was still held back."""
        rest, self._held = self._redactor.whole(self._held), b""
        return rest
