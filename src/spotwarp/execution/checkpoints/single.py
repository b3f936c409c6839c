"""A checkpoint that is a single file, outside every checkpoint directory: what is it, and is it whole?

Owns which names may be one, and which content is one: a name proves nothing (`.pth` files of Python, any `.bin`), so a
file is judged only when it begins like a format that is known here. Reads only; nothing is unpickled; raises nothing
for any content.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from spotwarp.execution.checkpoints.archive import check_archive
from spotwarp.execution.checkpoints.members import Member, Source, Unsound, opened
from spotwarp.execution.checkpoints.pickles import LEGACY_MAGIC, check_legacy
from spotwarp.execution.checkpoints.safetensors import MAX_HEADER, tensors

_ENDS = (b".ckpt", b".pt", b".pth", b".bin", b".safetensors")
_ELSEWHERE = re.compile(rb"(?:tmp-)?checkpoint-.*|global_step[0-9]+.*|\.spotwarp", re.DOTALL)
_HEAD = 4096
PK = b"PK\3\4"


class Shape(Enum):
    """How far a file is the checkpoint that it looks like."""

    WHOLE = "whole"
    TORN = "torn"
    BLANK = "blank"
    """Too short to tell, or zeros from the start: perhaps one that is being written."""
    OTHER = "other"
    """Not of a format that is known here, or not to be read."""


@dataclass(frozen=True, slots=True)
class Single:
    """What is known of one file."""

    shape: Shape
    format: str = ""
    reason: str = ""
    proven: bool = False
    """Every byte agreed with a checksum: it is no mixture of two versions."""


def may_be_single(path: bytes) -> bool:
    """Whether a file of this path (relative to the workspace) could be a single-file checkpoint, by name."""
    if not path.endswith(_ENDS):
        return False
    return not any(_ELSEWHERE.fullmatch(part) for part in path.split(b"/"))


def examine_single(root: Path, path: bytes, size: int, *, prove: bool) -> Single:
    """Judge the file `path` of the workspace `root`. With `prove` all of it is read where it has checksums."""
    full = os.path.join(os.fsencode(root), path)  # noqa: PTH118 - bytes: names need not be text
    member = Member(path.rpartition(b"/")[2].decode("utf-8", "surrogateescape"), full, size)
    try:
        with opened(member) as source:
            head = source.read(0, min(source.size, _HEAD))
            return _examine(source, head, prove=prove)
    except Unsound as unsound:  # it cannot be opened, or shrank just now
        return Single(Shape.BLANK if "cut short" in str(unsound) else Shape.OTHER, reason=str(unsound))


def _examine(source: Source, head: bytes, *, prove: bool) -> Single:
    kind = _format(head)
    if not kind:
        return Single(Shape.BLANK, reason="it has no beginning" if head else "it is empty") if _blank(head) else _OTHER
    try:
        proven = False
        if kind == "torch":
            proven = check_archive(source, prove=prove)
        elif kind == "torch-legacy":
            check_legacy(source)
        else:
            tensors(source)
    except Unsound as unsound:
        return Single(Shape.TORN, kind, str(unsound))
    return Single(Shape.WHOLE, kind, proven=proven)


_OTHER = Single(Shape.OTHER)


def _blank(head: bytes) -> bool:
    """Whether this may be the beginning of a known format, and too little of it to tell."""
    short = len(head) < 9 and not head[4:].strip(b"\0")  # of the length of a safetensors header
    return short or PK.startswith(head) or LEGACY_MAGIC.startswith(head) or not head.strip(b"\0")


def _format(head: bytes) -> str:
    """The format that a file with this beginning has; empty for none that is known here."""
    if head.startswith(PK):
        return "torch"
    if head.startswith(LEGACY_MAGIC):
        return "torch-legacy"
    length = int.from_bytes(head[:8], "little")
    return "safetensors" if head[8:9] == b"{" and 2 <= length <= MAX_HEADER else ""
