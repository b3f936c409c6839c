"""What people write before they have SpotWarp: a loop that copies the directory away. For the demo to judge.

Speaks the verbs that the demo uses. Knows neither half-written checkpoints nor a second machine.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

verb, *rest = sys.argv[1:]
settings = Path(".spotwarp/remote")


def copy(source: Path, target: Path) -> None:
    """Copy a directory in which somebody writes and deletes."""
    for entry in sorted(source.rglob("*")):
        place = target / entry.relative_to(source)
        try:
            if entry.is_dir():
                place.mkdir(parents=True, exist_ok=True)
            else:
                shutil.copyfile(entry, place)
        except FileNotFoundError:
            continue


def run(command: str, bucket: Path) -> int:
    """Fetch what there is, train, and copy twice a second."""
    notice = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: notice.set())
    copy(bucket / "out", Path("out"))
    child = subprocess.Popen(command, shell=True)
    while child.poll() is None:
        if notice.wait(0.5):
            child.send_signal(signal.SIGTERM)
            child.wait()
        copy(Path("out"), bucket / "out")
    return 75 if notice.is_set() else child.returncode


if verb == "init":
    settings.parent.mkdir()
    settings.write_text(rest[1])
elif verb == "sync":
    copy(Path("out"), Path(settings.read_text()) / "out")
elif verb == "run":
    sys.exit(run("exec " + rest[1], Path(settings.read_text())))
