"""The element widths of a torch archive's storages, from its pickle, which is read as opcodes and never executed.

torch writes each storage as the persistent id ("storage", type, key, place, items); the type names the width, and where
it is the untyped one, the tensor's dtype follows a little later (`torch._utils._rebuild_tensor_v3`).
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
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
_Atom = str | int | None


def widths(pickle: bytes) -> dict[str, int]:
    """Bytes of an element by the storage's key, as far as the pickle can be read; without what it does not tell."""
    found: dict[str, int] = {}
    window: list[_Atom] = [None] * 4
    untyped = ""
    for atom in _atoms(pickle):
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
    return found


def _atoms(pickle: bytes) -> Iterator[_Atom]:
    """The strings, whole numbers and global names that the pickle pushes, in order; ends where it is damaged."""
    memo: dict[int, _Atom] = {}
    last: _Atom = None
    steps = pickletools.genops(pickle)
    for _ in range(_MAX_STEPS):
        try:
            opcode, argument, _position = next(steps)
        except (StopIteration, ValueError, LookupError, OverflowError):
            return
        if opcode.name in _KEEPS:
            memo[len(memo) if argument is None else int(argument)] = last
            continue
        last = memo.get(int(argument or 0)) if opcode.name in _RECALLS else _atom(argument)
        if last is not None:
            yield last


def _atom(argument: object) -> _Atom:
    return argument if isinstance(argument, (str, int)) and not isinstance(argument, bool) else None
