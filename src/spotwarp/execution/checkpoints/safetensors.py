"""The safetensors format, from its header: eight bytes of length, JSON, then every tensor without a gap.

Owns what makes such a file whole. Reads the header only, so that a file of many GiB costs a few KiB. There is no
checksum in the format: a file that was never written out shows only by a hole.
"""

from __future__ import annotations

import json
from math import prod

from spotwarp.execution.checkpoints.members import Source, Unsound, show

MAX_HEADER = 100_000_000
_MAX_RANK = 64
_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}


def tensors(source: Source) -> frozenset[str]:
    """The names of the tensors in a whole file. Raises `Unsound` with the reason for any other."""
    header, start = _header(source)
    header.pop("__metadata__", None)
    end = 0
    for begin, stop, name in sorted(_span(source, name, entry) for name, entry in header.items()):
        if begin != end:
            raise Unsound(f"{show(source.name)} is damaged: tensor {show(name)} is not where the one before it ends")
        end = stop
    if start + end > source.size:
        raise Unsound(f"{show(source.name)} is cut short: {source.size} of {start + end} bytes")
    if start + end < source.size:
        raise Unsound(f"{show(source.name)} is {source.size} bytes, its header accounts for {start + end}")
    hole = source.hole()
    if hole is not None:
        raise Unsound(f"{show(source.name)} has a hole at byte {hole}: that part was never written")
    return frozenset(header)


def _header(source: Source) -> tuple[dict[str, object], int]:
    if source.size < 8:
        raise Unsound(f"{show(source.name)} is cut short: {source.size} bytes")
    length = int.from_bytes(source.read(0, 8), "little")
    if length > MAX_HEADER:
        raise Unsound(f"{show(source.name)} is no safetensors file: its header would be {length} bytes")
    if 8 + length > source.size:
        raise Unsound(f"{show(source.name)} is cut short inside its header")
    text = source.read(8, length)
    try:
        header = json.loads(text) if text.startswith(b"{") else None
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise Unsound(f"{show(source.name)} has no readable header")
    return header, 8 + length


def _span(source: Source, name: str, entry: object) -> tuple[int, int, str]:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end]}:
            if _counts([*shape[:_MAX_RANK], begin, end]) and begin <= end and _fits(dtype, shape, end - begin):
                return begin, end, name
    raise Unsound(f"{show(source.name)} is damaged: the entry of tensor {show(name)} contradicts itself")


def _counts(values: list[object]) -> bool:
    return all(type(value) is int and 0 <= value < 2**63 for value in values)


def _fits(dtype: str, shape: list[int], length: int) -> bool:
    # A type this table does not know is newer than it: the offsets alone have to do.
    bits = _BITS.get(dtype)
    return len(shape) <= _MAX_RANK and (bits is None or prod(shape) * bits == length * 8)
