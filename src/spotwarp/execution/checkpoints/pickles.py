"""Pickles, read as a list of opcodes and never executed.

Owns the two places where a size is written in a pickle and nowhere else: torch's files from before its zip archives,
and the `.metadata` of a distributed checkpoint. No object is ever made of what a pickle says.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from itertools import pairwise

from spotwarp.execution.checkpoints.members import Source, Unsound, show
from spotwarp.persistence.cuts.pickled import Atom, TooLong, atoms

LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
MAX_PICKLE = 64 * 1024 * 1024
MAX_OPCODES = 5_000_000
"""About ten seconds of reading. The metadata of a thousand ranks has a tenth of it."""
_ITEM_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QUInt8", "QInt8"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int", "QInt32"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
_OPTIMIZER = re.compile(r"(?:.*[._/])?optim(?:izer|izers)?(?:_states?)?[._/]", re.IGNORECASE)


def check_legacy(source: Source) -> None:
    """Return if a torch file of the old format is whole. Raises `Unsound` with the reason if not.

    It is five pickles (magic, version, system, object, storage keys), then for each storage its count and its items.
    """
    text = _Window(source)
    for _ in range(3):
        list(text.atoms())
    sizes = {key: 8 + count * width for key, count, width in _storages(source, list(text.atoms()))}
    list(text.atoms())
    end = text.position + sum(sizes.values())
    if end != source.size:
        raise Unsound(f"{show(source.name)} is {source.size} bytes and should be {end}")


def check_pickle(source: Source) -> None:
    """Return if the file is one or more whole pickles and nothing else. Raises `Unsound` if not."""
    text = _Window(source)
    while text.position < source.size:
        list(text.atoms())


def distributed_sizes(source: Source) -> tuple[dict[str, int], bool]:
    """From the `.metadata` of a distributed checkpoint: how many bytes each data file beside it has at least.

    And whether there is the state of an optimizer in it.

    Raises `Unsound` if it cannot be read to its end or names no data file.
    """
    text = _Window(source)
    atoms = list(text.atoms())
    if text.position != source.size:
        raise Unsound(f"{show(source.name)} is damaged: there is something behind its end")
    sizes: dict[str, int] = {}
    for at, atom in enumerate(atoms):
        match atoms[at : at + 6]:
            case ["relative_path", str(name), "offset", int(offset), "length", int(length)]:
                sizes[name] = max(sizes.get(name, 0), offset + length)
            case ["relative_path", str(name), *_] if atom == "relative_path":
                raise Unsound(f"{show(source.name)} describes {show(name)} in a way not known here")
    if not sizes:
        raise Unsound(f"{show(source.name)} names no data file")
    return sizes, any(isinstance(atom, str) and _OPTIMIZER.match(atom) for atom in atoms)


def counts_in(pickle: bytes, keys: frozenset[str], name: str) -> dict[str, int]:
    """The whole numbers that stand behind `keys` in a pickle, by key. Raises `Unsound` if it cannot be read."""
    atoms = list(_atoms(io.BytesIO(pickle), name))
    return {
        key: value for key, value in pairwise(atoms) if isinstance(key, str) and key in keys and isinstance(value, int)
    }


class _Window:
    """The pickles at the start of a file, one after the other."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._bytes = io.BytesIO(source.read(0, min(source.size, MAX_PICKLE)))

    @property
    def position(self) -> int:
        return self._bytes.tell()

    def atoms(self) -> Iterator[Atom]:
        """The strings, whole numbers and global names that the next pickle pushes, in order."""
        return _atoms(self._bytes, self._source.name)


def _atoms(data: io.BytesIO, name: str) -> Iterator[Atom]:
    try:
        yield from atoms(data, MAX_OPCODES)
    except TooLong as error:
        raise Unsound(f"{show(name)} has a pickle of more than {MAX_OPCODES} steps, too long to be read") from error
    except ValueError as error:
        raise Unsound(f"{show(name)} is cut short or damaged inside a pickle") from error


def _storages(source: Source, atoms: list[Atom]) -> Iterator[tuple[str, int, int]]:
    """Key, number of items and bytes per item of every storage that the object pickle refers to."""
    for at in range(len(atoms)):
        match atoms[at : at + 5]:
            case ["storage", str(kind), str(key), str(), int(count)]:
                width = _ITEM_BYTES.get(kind.removeprefix("torch ").removesuffix("Storage"))
                if width is None:
                    raise Unsound(f"{show(source.name)} has a storage of a type not known here: {show(kind)}")
                yield key, count, width
