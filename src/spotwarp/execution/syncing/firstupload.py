"""Before a first large upload: what is biggest, how long it takes, and the line that would leave it out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from spotwarp.execution.parts import leave_out
from spotwarp.model import human_bytes, human_seconds
from spotwarp.persistence.entries import shown
from spotwarp.persistence.excludes import Excludes
from spotwarp.persistence.manifest import FILE
from spotwarp.persistence.scan import Scanned, scan

LARGE = 1 << 30
_PARTS = 6
_SHARE = 0.03


def screen(workspace: Path, exclude: Sequence[str], rate: float | None) -> list[str]:
    """The lines to show, none when the first upload is small. `rate` in bytes a second, if it was measured."""
    found = scan(workspace, Excludes(exclude))
    total = sum(e.size for e in sent(found.entries))
    if total < LARGE:
        return []
    took = f", about {human_seconds(total / rate)} at the rate measured by init" if rate else ""
    lines = [f"first upload: {human_bytes(total)}{took}; checkpoints go first, the bulk last. The biggest parts:"]
    for path, size in biggest(found.entries, total):
        lines.append(f"  {human_bytes(size):>10}  {path:32}  {leave_out(path)}")
    lines.append("the command starts now; work is safe from the first snapshot on (`spotwarp status`)")
    return lines


def sent(entries: Iterable[Scanned]) -> Iterator[Scanned]:
    """The files among `entries`, each once, however many names it has."""
    seen: set[tuple[int, int]] = set()
    for entry in entries:
        if entry.kind != FILE or (entry.dev, entry.ino) in seen:
            continue
        if entry.nlink > 1:
            seen.add((entry.dev, entry.ino))
        yield entry


def biggest(entries: Sequence[Scanned], total: int) -> list[tuple[str, int]]:
    """The directories (with a slash) and files that hold the most, none inside another, biggest first. Pure."""
    sizes: Counter[bytes] = Counter()
    for entry in sent(entries):
        parts = entry.path.split(b"/")
        for depth in range(1, min(len(parts), 3)):
            sizes[b"/".join(parts[:depth]) + b"/"] += entry.size
        if len(parts) <= 3:
            sizes[entry.path] += entry.size
    chosen: list[tuple[bytes, int]] = []
    for path, size in sizes.most_common():
        if size < total * _SHARE or len(chosen) >= _PARTS:
            break
        # A directory that one part of it nearly fills is named by that part.
        inner = [s for p, s in sizes.items() if p != path and p.startswith(path) and path.endswith(b"/")]
        if inner and max(inner) > 0.9 * size:
            continue
        if not any(path.startswith(other) for other, _ in chosen if other.endswith(b"/")):
            chosen.append((path, size))
    return [(shown(path), size) for path, size in chosen]
