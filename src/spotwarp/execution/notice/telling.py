"""How the command is told of a notice: by a file.

Owns the notice file, named in the command's environment (`SPOTWARP_NOTICE_FILE`): it is absent until a notice comes,
so a trainer may look for it between two steps. SpotWarp writes it and never reads it. Decides nothing: what a notice
means is the supervisor's.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from spotwarp.clock import Clock
from spotwarp.errors import WorkspaceFault
from spotwarp.execution.localstate import NOTICE_VARIABLE


class NoticeFile:
    """One workspace's notice file. Readers see all of it or none."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path.absolute()
        self._clock = clock

    def environment(self) -> dict[str, str]:
        """What to add to the command's environment."""
        return {NOTICE_VARIABLE: str(self._path)}

    def clear(self) -> None:
        """Remove a notice of an earlier life. Call before the command starts. Raises `WorkspaceFault`."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise WorkspaceFault(f"Cannot remove the old notice {self._path}: {error.strerror}.") from error

    def write(self, seconds_left: float, source: str) -> None:
        """Say that the command has `seconds_left` from now to save; a later call replaces an earlier one.

        Raises `WorkspaceFault`; the caller reports it and goes on, since the signal is the command's other notice.
        """
        now = self._clock.wall().isoformat(timespec="milliseconds")
        text = json.dumps({"seconds_left": round(max(0.0, seconds_left), 3), "source": source, "written": now})
        partial = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text + "\n", encoding="utf-8")
            partial.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise WorkspaceFault(
                f"Cannot write the notice {self._path}: {error.strerror}.", hint="Is the disk full?"
            ) from error
