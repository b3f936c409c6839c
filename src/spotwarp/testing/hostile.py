"""Input as an enemy or a dying disk would make it, for everything that parses; and the bounds that a parser must keep.

`mangled` is seeded: the same bytes come out for the same seed. The specials are inputs that broke parsers elsewhere, or
here once.
"""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

DEEP = 100_000
JSON_SPECIALS = (
    b"",
    b"null",
    b"[]",
    b"{}",
    b"[" * DEEP,
    b'{"a":' * DEEP,
    b'{"state":' * DEEP,
    b"[" * DEEP + b"]" * DEEP,
    b"9" * 100_000,
    b"-1e999999",
    b"NaN",
    b'{"v":NaN}',
    b'{"v":1,"v":2,"v":3}',
    b'"\\ud800"',
    b'{"\\ud800":1}',
    b"\xff\xfe{}",
    b'{"v":' + b"9" * 5000 + b"}",
    b"\0" * 4096,
)
MSGPACK_SPECIALS = (
    b"",
    b"\xc1",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\x91" * DEEP,
    b"\x81\x91" * DEEP,
    b"\x98" + b"\xcf" + b"\xff" * 8,
    b"\x90",
    b"\x80",
    b"\xc0",
)


def mangled(data: bytes, seed: int, count: int) -> Iterator[bytes]:
    """`count` damaged versions of `data`: cut, flipped, overwritten, repeated, with numbers made huge."""
    rng = random.Random(seed)
    for _ in range(count):
        work = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            _damage(work, rng)
        yield bytes(work)


def _damage(work: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(work) + 1)
    match rng.randrange(8):
        case 0:
            del work[at:]
        case 1:
            del work[at : at + rng.randrange(1, 40)]
        case 2:
            work[at : at + 1] = bytes((rng.randrange(256),))
        case 3:
            work[at : at + 1] = bytes((rng.choice((0, 1, 0x7F, 0x80, 0xFF)),))
        case 4:
            work[at:at] = rng.randbytes(rng.randrange(1, 40))
        case 5:
            number = rng.choice((0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1))
            packed = struct.pack(rng.choice("<>") + "Q", number)
            work[at : at + len(packed)] = packed
        case 6:
            other = rng.randrange(len(work) + 1)
            work[at:at] = work[other : other + rng.randrange(1, 200)]
        case _:
            digits = rng.choice((b"99999999999999999999", b"-1", b"1e400", b"NaN", b"null", b"{", b"]", b'"'))
            work[at : at + len(digits)] = digits


@contextmanager
def bounded(*, seconds: float = 5.0, memory: int = 200 << 20) -> Iterator[None]:
    """Fails when what is done in it takes more time of a processor or more memory (bytes, at its peak) than it may."""
    started = time.process_time()
    tracemalloc.start()
    try:
        yield
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    took = time.process_time() - started
    assert took < seconds, f"it took {took:.1f} s"
    assert peak < memory, f"it took {peak >> 20} MiB of memory"
