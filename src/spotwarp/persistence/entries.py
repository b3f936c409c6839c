"""What can be said of a snapshot's entries without touching a disk: safe or not, how big, which first, which torn.

Pure. A manifest is verified by its hash, but whoever could write the bucket could have made it: no entry may lead out
of the directory it is restored into.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from heapq import merge
from typing import Final

from msgspec.structs import replace

from spotwarp.errors import CorruptObject, UnsupportedFormat
from spotwarp.persistence.beneath import ancestors, split
from spotwarp.persistence.manifest import (
    DIRECTORY,
    FILE,
    SYMLINK,
    CheckpointFact,
    Entry,
    FileFact,
    Manifest,
    builder,
    tabled,
)
from spotwarp.persistence.table import Table

_NAME_MAX: Final = 255
OTHER_CHECKPOINT: Final = 2
"""The rank (see `urgency`) of what no trainer reads when it resumes."""


def shown(path: bytes) -> str:
    """A path for people, on one line whatever bytes it has."""
    text = path.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def checked(entries: Sequence[Entry]) -> dict[bytes, bytes]:
    """Raise `CorruptObject` unless all `entries` can be restored beneath one directory; gives the hard links among
    them, see `linked`.

    Each path is relative, has only proper names, occurs once, and lies in directories only: never beneath a link.
    A kind of entry that is not known raises `UnsupportedFormat`.
    """
    above: list[bytes] = []
    """Of what is no directory: those paths that the entry at hand begins with, and each with the one before it."""
    last = None
    for entry in tabled(entries):
        reason = _fault(entry)
        if reason is None and entry.path == last:
            reason = "is listed twice"
        if reason is not None:
            raise CorruptObject(f"the snapshot's entry {shown(entry.path)!r} {reason}; nothing was restored from it")
        if entry.kind not in (FILE, DIRECTORY, SYMLINK):
            raise UnsupportedFormat(
                f"the snapshot's entry {shown(entry.path)!r} is of kind {entry.kind}: this SpotWarp does not know it",
                hint="Upgrade SpotWarp on this machine; nothing was changed.",
            )
        while above and not entry.path.startswith(above[-1]):
            above.pop()
        for path in above:
            if entry.path.startswith(path + b"/"):
                raise CorruptObject(f"the snapshot has entries beneath {shown(path)!r}, which is not a directory")
        if entry.kind != DIRECTORY:
            above.append(entry.path)
        last = entry.path
    return linked(entries)


def _fault(entry: Entry) -> str | None:
    if not _is_beneath(entry.path):
        return "is not a path beneath the workspace"
    if entry.kind == SYMLINK and (not entry.target or b"\0" in entry.target):
        return "is a link to nothing"
    end = 0
    for extent in entry.extents:
        if extent.offset < end or extent.length == 0:
            return "has pieces that overlap"
        end = extent.offset + extent.length
    if end > entry.size or entry.size < 0:
        return "has pieces beyond its end"
    return None


def _is_beneath(path: bytes) -> bool:
    """Whether it has proper names only: none empty, none that leads elsewhere, none longer than file systems take."""
    around = b"/" + path + b"/"
    if len(path) <= _NAME_MAX and b"//" not in around and b"/." not in around and b"\0" not in path:
        return True  # nearly all paths, and there may be a million
    return not any(n in (b"", b".", b"..") or b"\0" in n or len(n) > _NAME_MAX for n in path.split(b"/"))


def linked(entries: Sequence[Entry]) -> dict[bytes, bytes]:
    """The hard links among `entries`: the path of each further name of a file, and the first of those that are here.

    Raises `CorruptObject` for names of one file that differ in what they say of it.
    """
    first: dict[bytes, Entry] = {}
    links: dict[bytes, bytes] = {}
    further = [entry for entry in entries if entry.link]
    if not further:
        return links
    named = {entry.link for entry in further}
    for entry in entries:
        name = entry.link or entry.path
        if name not in named:
            continue
        leader = first.setdefault(name, entry)
        if leader is entry:
            continue
        if replace(entry, path=b"", link=b"") != replace(leader, path=b"", link=b"") or entry.kind != FILE:
            raise CorruptObject(
                f"the snapshot's entries {shown(leader.path)!r} and {shown(entry.path)!r} are said to be one file and "
                "differ; nothing was restored from it"
            )
        links[entry.path] = leader.path
    return links


def is_whole(entry: Entry) -> bool:
    """Whether all of a file's bytes lie in one blob: it is then written in one go."""
    return len(entry.extents) == 1 and entry.extents[0].length == entry.size


def room(entry: Entry, block: int) -> int:
    """Bytes of disk that the entry needs, in blocks of `block` bytes; holes need none."""
    if entry.kind == DIRECTORY:
        return block
    total = end = 0
    for extent in entry.extents:
        first = max(extent.offset // block * block, end)
        end = -(-(extent.offset + extent.length) // block) * block
        total += max(end - first, 0)
    return total


def urgency(checkpoints: Iterable[CheckpointFact]) -> Callable[[bytes], int]:
    """How soon a path is needed: 0 newest resumable checkpoint, 1 what is in no checkpoint, 2 other checkpoints."""
    facts = list(checkpoints)
    resumable = [fact for fact in facts if fact.cls == "resumable"]
    newest = max(resumable, key=lambda fact: -1 if fact.step is None else fact.step, default=None)
    ranks = {fact.path: OTHER_CHECKPOINT for fact in facts} | ({newest.path: 0} if newest else {})
    return lambda path: _nearest(path, ranks, 1) if ranks else 1


def _nearest(path: bytes, ranks: dict[bytes, int], default: int) -> int:
    while path:
        if path in ranks:
            return ranks[path]
        path = split(path)[0]
    return default


def older_versions(facts: Iterable[FileFact]) -> list[str]:
    """The files that are older in a snapshot than they were on disk, each with the reason, for people."""
    return [f"{shown(f.path)}: kept at the version of snapshot {f.kept}: {f.reason}" for f in facts if f.kept]


def torn_name(path: bytes, n: int) -> bytes:
    """The path under which a torn checkpoint of snapshot `n` is kept: no trainer takes `<name>.torn-<n>` for one."""
    return _suffixed(path, b".torn-%d" % n)


def _suffixed(path: bytes, suffix: bytes) -> bytes:
    head, name = split(path)
    name = name[: _NAME_MAX - len(suffix)] + suffix
    return head + b"/" + name if head else name


def renamed_for_torn(manifest: Manifest, n: int, *, taken: Container[bytes] = frozenset()) -> Manifest:
    """`manifest` with every torn checkpoint, and all beneath it, under its `torn_name`.

    A name that the snapshot has already, or that is in `taken` (what is in the workspace), gets a further `-2`, `-3` …
    """
    torn = sorted(fact.path for fact in manifest.checkpoints if fact.cls == "torn")
    entries = tabled(manifest.entries)
    given: set[bytes] = set()
    names: dict[bytes, bytes] = {}
    for path in torn:
        if any(above in names for above in ancestors(path)):
            continue  # moves with what it lies in
        new, again = torn_name(path, n), 2
        while new in given or new in taken or entries.find(new) is not None:
            new, again = _suffixed(path, b".torn-%d-%d" % (n, again)), again + 1
        names[path] = new
        given.add(new)
    if not names:
        return manifest
    return replace(
        manifest,
        entries=_renamed(entries, names),
        checkpoints=tuple(replace(fact, path=_moved(fact.path, names)) for fact in manifest.checkpoints),
    )


def _renamed(entries: Table[Entry], names: dict[bytes, bytes]) -> Table[Entry]:
    """`entries` with `names` for some directories: what moves is sorted in anew."""
    moving: list[Entry] = []

    def staying() -> Iterator[Entry]:
        for entry in entries:
            new = replace(entry, path=_moved(entry.path, names), link=_moved(entry.link, names))
            if new.path == entry.path:
                yield new

    for path in names:
        for entry in entries.beneath(path):
            moving.append(replace(entry, path=_moved(entry.path, names), link=_moved(entry.link, names)))
    moving.sort(key=lambda entry: entry.path)
    made = builder()
    for entry in merge(staying(), moving, key=lambda entry: entry.path):
        made.add(entry)
    return made.table()


def _moved(path: bytes, names: dict[bytes, bytes]) -> bytes:
    for above in (*ancestors(path), path):
        if above in names:
            return names[above] + path[len(above) :]
    return path
