"""Which files of the snapshot before are the same file in earlier saves. Pure, and by name alone.

A trainer saves the same files again under names that differ in a step, an epoch or a metric. Only such numbers may
differ: the one in a checkpoint directory's name, those behind the words that name a step, the single one in the name of
a checkpoint file. Every other number, a rank's or a shard's, must be the same. A wrong guess costs a look and nothing
else: what is coded against a base is kept only where that is smaller.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from spotwarp.persistence.content import SMALL
from spotwarp.persistence.manifest import FILE, Blob, Entry, Manifest, tabled
from spotwarp.persistence.table import Cursor

_ANY: Final = b"\0"
"""Stands for a number that may differ; no path has it."""
KEY_SAVES: Final = 4
"""A save that others are coded against serves so many later ones at most; then comes one that stands by itself."""
_KEPT: Final = 6
"""So many earlier saves are remembered at least."""
_SAVES: Final = frozenset((b"checkpoint", b"checkpoints", b"ckpt", b"ckpts"))
_STEPS: Final = _SAVES | frozenset(
    b"step steps globalstep iter iters iteration iterations epoch epochs update updates it ep ba".split()
)
"""Words with a number behind them that grows from save to save."""
_RANKS: Final = frozenset(
    b"rank ranks shard part partition of worker node gpu device expert layer fold seed split chunk mp pp tp dp".split()
)
"""Words with a number behind them that tells files of one save apart."""
_NUMBERED: Final = re.compile(rb"([A-Za-z]+)([-_=.]?)(-?[0-9]+(?:\.[0-9]+)?)")
_DIGITS: Final = re.compile(rb"[0-9]")
_LAST: Final = re.compile(rb"(.*?)[0-9]+([^0-9]*)", re.DOTALL)
_LAST_WORD: Final = re.compile(rb"([A-Za-z]+)[^A-Za-z]*\Z")
_SINGLE: Final = re.compile(rb"((?:[^0-9]*[-_.])?)[0-9]+([^0-9]*\.(?:pt|pth|ckpt|safetensors|tar))", re.DOTALL)

_Rank = tuple[int, int]
"""Step of the checkpoint or -1, mtime in ns."""


class Saves:
    """The saves in a snapshot, looked for when first asked; a few names of each kind, however many files there are.

    For one thread.
    """

    def __init__(self, base: Manifest | None) -> None:
        """`base` is the snapshot before, if there is one."""
        self._base = base
        self._entries = Cursor(tabled(base.entries)) if base else None
        self._steps: dict[bytes, int] = {}
        self._known: set[bytes] = set()
        """Roles of checkpoint directories whose names would not tell."""
        self._saves: dict[bytes, dict[bytes, _Rank]] | None = None
        """By role, the paths of the saves up to where the role ends."""
        self._last = b"", b"", b"", b""
        """The directory of the path before this one, and what it came to."""

    def earlier(self, path: bytes) -> list[Entry]:
        """The files that `path` was in other saves, the newest first."""
        if self._entries is None or not _DIGITS.search(path):
            return []
        saves = self._look()
        role, save = self._role(path)
        others = saves.get(role, {})
        found = []
        for other in sorted(others, key=others.__getitem__, reverse=True):
            entry = self._entries.find(other + path[len(save) :]) if other != save else None
            if entry is not None and entry.kind == FILE and entry.size >= SMALL:
                found.append(entry)
        return found

    def _look(self) -> dict[bytes, dict[bytes, _Rank]]:
        if self._saves is None:
            self._saves = {}
            facts = self._base.checkpoints if self._base else ()
            self._steps = {fact.path: fact.step for fact in facts if fact.step is not None}
            for path in sorted(self._steps):
                *above, name = path.split(b"/")
                self._known.add(b"/".join((*self._roles(above), _without_last(_without_steps(name)))))
            for entry in self._base.entries if self._base else ():
                if entry.kind == FILE and entry.size >= SMALL and _DIGITS.search(entry.path):
                    self._remember(entry, self._saves)
        return self._saves

    def _remember(self, entry: Entry, roles: dict[bytes, dict[bytes, _Rank]]) -> None:
        role, save = self._role(entry.path)
        if not role:
            return
        saves = roles.setdefault(role, {})
        saves[save] = max(saves.get(save, (-1, 0)), (self._step(save), entry.mtime_ns))
        if len(saves) > 2 * _KEPT:
            for old in sorted(saves, key=saves.__getitem__)[:_KEPT]:
                del saves[old]

    def _step(self, save: bytes) -> int:
        """Of the checkpoint that the save is, or lies in; -1 when that is not known."""
        while save:
            if (step := self._steps.get(save)) is not None:
                return step
            save = save.rpartition(b"/")[0]
        return -1

    def _role(self, path: bytes) -> tuple[bytes, bytes]:
        """The beginning of `path` up to the last part with a number that may differ, without and with these numbers.

        Both are empty when there is none.
        """
        directory, slash, name = path.rpartition(b"/")
        if directory != self._last[0]:  # paths come in order
            self._last = directory, *self._directory(directory)
        _, whole, role, save = self._last
        found = _without_steps(name)
        if found == name and not role:
            found = _single(name)
        return (whole + slash + found, path) if found != name else (role, save)

    def _directory(self, directory: bytes) -> tuple[bytes, bytes, bytes]:
        """The directory without the numbers that may differ; and its role, as of a path."""
        parts = directory.split(b"/")
        roles = self._roles(parts)
        depth = max((n + 1 for n, part in enumerate(parts) if part != roles[n]), default=0)
        return b"/".join(roles), b"/".join(roles[:depth]), b"/".join(parts[:depth])

    def _roles(self, directories: Sequence[bytes]) -> list[bytes]:
        """The names of directories, each in the one before, without the numbers that may differ."""
        roles: list[bytes] = []
        for part in directories:
            found = _without_steps(part)
            if found == part and part.isdigit() and roles and _last_word(roles[-1]) in _SAVES:
                found = _ANY
            elif found == part and b"/".join((*roles, bare := _without_last(part))) in self._known:
                found = bare
            roles.append(found)
        return roles


def keys(saves: Sequence[Entry], blobs: Sequence[Blob]) -> list[Entry]:
    """Those of a file's `saves` that one more may be coded against: they do not serve `KEY_SAVES` already.

    Saves that are gone from the snapshot do not count: what they needed may be gone with them.
    """
    owner = {extent.blob: number for number, save in enumerate(saves) for extent in save.extents}
    served: list[set[int]] = [set() for _ in saves]
    for number, save in enumerate(saves):
        for extent in save.extents:
            key = owner.get(blobs[extent.blob].base, number)
            if key != number:
                served[key].add(number)
    return [save for save, others in zip(saves, served, strict=True) if len(others) < KEY_SAVES]


def _without_steps(name: bytes) -> bytes:
    """`name` without the numbers behind words for steps; where there is one, also without metrics (`loss=0.25`)."""

    def steps(match: re.Match[bytes]) -> bytes:
        return match[1] + match[2] + _ANY if match[1].lower() in _STEPS else match[0]

    def metrics(match: re.Match[bytes]) -> bytes:
        return match[1] + match[2] + _ANY if match[2] == b"=" and match[1].lower() not in _RANKS else match[0]

    found = _NUMBERED.sub(steps, name)
    return found if found == name else _NUMBERED.sub(metrics, found)


def _single(name: bytes) -> bytes:
    """A checkpoint file's name without its only number, unless that is a rank; any other name as it is."""
    match = _SINGLE.fullmatch(name)
    if match is None or _last_word(match[1]) in _RANKS:
        return name
    return match[1] + _ANY + match[2]


def _without_last(name: bytes) -> bytes:
    """`name` without its last number."""
    match = _LAST.fullmatch(name)
    return match[1] + _ANY + match[2] if match else name


def _last_word(name: bytes) -> bytes:
    match = _LAST_WORD.search(name)
    return match[1].lower() if match else b""
