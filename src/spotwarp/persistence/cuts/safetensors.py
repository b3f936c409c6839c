"""Where the tensors lie in a safetensors file: eight bytes of length, JSON, then every tensor without a gap.

Source: the format's description in the safetensors repository, "Format".
"""

from __future__ import annotations

import json
from typing import Final

from spotwarp.persistence.cuts.covering import Tensor
from spotwarp.persistence.cuts.reading import read

_MAX_HEADER: Final = 4 << 20
"""Bytes. The format allows 100 MB; ten thousand tensors take one."""
_WIDTHS: Final = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F4", "F6_E2M3", "F6_E3M2"), 1),
    **dict.fromkeys(("F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32", "C64"), 4),
    **dict.fromkeys(("I64", "U64", "F64"), 8),
}


def looks_like(head: bytes) -> bool:
    """Whether a file with these first bytes may be one."""
    return head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= _MAX_HEADER


def tensors(fd: int, size: int) -> list[Tensor]:
    """In order of their offsets. Raises `ValueError` or `LookupError` when the file is not whole, or `OSError`."""
    length = int.from_bytes(read(fd, 0, 8), "little")
    if length > min(_MAX_HEADER, size - 8):
        raise ValueError("the header does not fit")
    header = json.loads(read(fd, 8, length))
    if not isinstance(header, dict):
        raise ValueError("the header is no object")
    header.pop("__metadata__", None)
    first = end = 8 + length
    found = sorted(_tensor(first, name, entry) for name, entry in header.items())
    for tensor in found:
        if tensor.start != end:
            raise ValueError("there is a gap between two tensors")
        end += tensor.length
    if end != size:
        raise ValueError("the file is longer or shorter than its header says")
    return [tensor for tensor in found if tensor.length]


def _tensor(first: int, name: str, entry: object) -> Tensor:
    match entry:
        case {"dtype": str(dtype), "data_offsets": [int(begin), int(end)]} if 0 <= begin <= end:
            return Tensor(first + begin, end - begin, _WIDTHS.get(dtype, 0), name)
    raise ValueError("the entry of a tensor contradicts itself")
