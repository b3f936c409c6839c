"""Where the command left the place that our own words go to: at the beginning of a line, or in the middle of one.

A progress bar ends in no newline; what is said after it begins on a line of its own, or nobody finds it. The command's
bytes stay as they are: only our words get the newline. A race with output that comes at that moment costs a newline
too few or too many.
"""

from __future__ import annotations


class Cursor:
    """Fed by whoever copies output to our stderr, asked by whoever speaks there."""

    def __init__(self) -> None:
        self._midline = False

    def moved(self, data: bytes) -> None:
        """The command's `data` was written there."""
        self._midline = not data.endswith(b"\n")

    def leave(self) -> bool:
        """Whether a line has to be ended before words of ours; they leave it ended."""
        midline, self._midline = self._midline, False
        return midline
