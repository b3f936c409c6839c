"""`python -m benchmarks.encryption`: what encryption costs of the work that is done for every stored byte.

Chunks of 4 MiB as `benchmarks.codec` makes them are hashed, coded and put into a pack, and read back from it, with
and without a box around each. Speeds are raw bytes per second of processor time of one thread, the best of all rounds;
the two kinds take turns, so that other work on the machine troubles both alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from benchmarks.codec import NAMES, Case, alone, cases
from spotwarp.persistence import codec
from spotwarp.persistence.encryption.cipher import Cipher
from spotwarp.persistence.envelope import digest
from spotwarp.persistence.pack import PackBuilder, blob_context
from spotwarp.persistence.parallel import settle_allocator

KEY = "runs/main/packs/1-" + "0" * 32
CIPHER = Cipher(bytes(32), "0" * 32)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encryption", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="how often each is tried (15)")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    wish = parser.parse_args()
    settle_allocator()
    print("| chunk | codec | stored MB/s | encrypted | costs | read MB/s | decrypted | costs |")
    print("|---|---|---|---|---|---|---|---|")
    for case in cases():
        if wish.only in case.name:
            print(row(case, wish.rounds), flush=True)


def row(case: Case, rounds: int) -> str:
    """A line of the table."""
    how, pieces = encoded(case)
    coded = b"".join(pieces)
    box = CIPHER.box(KEY)
    closed = box.close(coded, blob_context(8))
    plain, boxed = PackBuilder(), PackBuilder(box=box)
    base = case.base if codec.needs_base(how) else None
    out = memoryview(bytearray(len(case.data)))
    room = memoryview(bytearray(len(coded)))

    def store(builder: PackBuilder) -> None:
        name = digest(case.data)
        number, data = encoded(case)
        builder.reset(box if builder is boxed else None)
        builder.add(name, number, len(case.data), *data)

    def load(*, encrypted: bool) -> None:
        if encrypted:
            CIPHER.box(KEY).open_into(room, closed, blob_context(8), "it")
        digest(codec.decode(how, room if encrypted else memoryview(coded), len(case.data), base, out=out))

    told = [
        *both(lambda: store(plain), lambda: store(boxed), len(case.data), rounds),
        *both(lambda: load(encrypted=False), lambda: load(encrypted=True), len(case.data), rounds),
    ]
    return f"| {case.name} | {NAMES[how]} | {' | '.join(told)} |"


def encoded(case: Case) -> tuple[int, list[bytes]]:
    """As a backup codes it."""
    base = None if case.base is None else memoryview(case.base)
    number, pieces = codec.encode(memoryview(case.data), level=1, width=case.width, base=base)
    return number, list(pieces)  # type: ignore[arg-type]


def both(without: Callable[[], None], with_it: Callable[[], None], size: int, rounds: int) -> tuple[str, str, str]:
    """The two speeds, and by how much the second is less."""
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for number, work in enumerate((without, with_it)):
            best[number] = min(best[number], alone(work, 1))
    return f"{size / best[0] / 1e6:.0f}", f"{size / best[1] / 1e6:.0f}", f"{100 * (1 - best[0] / best[1]):.0f} %"


if __name__ == "__main__":
    main()
