"""Pickles read as opcodes and never executed; and from a torch archive's the widths of its storages' elements.

torch writes each storage as the persistent id ("storage", type, key, place, items); the type names the width, and where
it is the untyped one, the tensor's dtype follows a little later (`torch._utils._rebuild_tensor_v3`).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

MAX_PICKLE: Final = 4 << 20
"""Bytes; of a longer one nothing is read."""
_MAX_STEPS: Final = 200_000
"""Half a second of reading: eight thousand tensors."""
_UNTYPED: Final = "torch.storage UntypedStorage"
_WIDTHS: Final = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QUInt8", "QInt8", "QUInt4x2", "QUInt2x4"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int", "QInt32", "ComplexFloat"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexDouble"), 8),
}
_DTYPES: Final = {
    **dict.fromkeys(("uint8", "int8", "bool", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("float8_e8m0fnu", "float4_e2m1fn_x2", "bits8"), 1),
    **dict.fromkeys(("uint16", "int16", "float16", "bfloat16", "bits16"), 2),
    **dict.fromkeys(("uint32", "int32", "float32", "complex64"), 4),
    **dict.fromkeys(("uint64", "int64", "float64", "complex128"), 8),
}
_KEEPS: Final = {"MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"}
_RECALLS: Final = {"BINGET", "LONG_BINGET", "GET"}
Atom = str | int


class TooLong(ValueError):
    """A pickle has more steps than were to be read."""


def widths(pickle: bytes) -> dict[str, int]:
    """Bytes of an element by the storage's key, as far as the pickle can be read; without what it does not tell."""
    found: dict[str, int] = {}
    with suppress(ValueError):  # damaged, or very long: what was found until then is as good as before
        _collect(atoms(io.BytesIO(pickle), _MAX_STEPS), found)
    return found


def _collect(pushed: Iterator[Atom], found: dict[str, int]) -> None:
    window: list[Atom] = [""] * 4
    untyped = ""
    for atom in pushed:
        window = [*window[1:], atom]
        match window:
            case ["storage", str(kind), str(key), _]:
                untyped = key if kind == _UNTYPED else ""
                width = _WIDTHS.get(kind.removeprefix("torch ").removesuffix("Storage"))
                if width is not None:
                    found[key] = width
            case [*_, str(kind)] if untyped and kind.startswith("torch "):
                width = _DTYPES.get(kind.removeprefix("torch "))
                if width is not None:
                    found[untyped] = width
                    untyped = ""


def atoms(stream: io.BytesIO, most: int) -> Iterator[Atom]:
    """The strings, whole numbers and global names that the next pickle of `stream` pushes, in order.

    Raises `ValueError` where the pickle is damaged or cut short, `TooLong` after `most` steps.
    """
    import pickletools  # noqa: PLC0415 - its table of opcodes is large, and most backups read no pickle

    memo: dict[int, Atom | None] = {}
    last: Atom | None = None
    try:
        for step, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if step >= most:
                raise TooLong(f"more than {most} steps")
            if opcode.name in _KEEPS:
                memo[len(memo) if argument is None else int(argument)] = last
                continue
            last = memo.get(int(argument or 0)) if opcode.name in _RECALLS else _atom(argument)
            if last is not None:
                yield last
    except (LookupError, OverflowError, struct.error) as error:
        raise ValueError("a damaged pickle") from error


def _atom(argument: object) -> Atom | None:
    return argument if isinstance(argument, (str, int)) and not isinstance(argument, bool) else None
