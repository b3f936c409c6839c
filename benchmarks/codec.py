"""`python -m benchmarks.codec`: how fast chunks of each kind are coded and decoded, and how small they become.

Chunks of 4 MiB of what a training writes: weights, Adam's moments after some steps, as the same part of two saves.
Speeds are raw bytes per second of processor time of one thread (the best of all rounds, so that other work on the
machine counts little); `x 2` is what two threads at once get done in the time that one takes for its own.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from spotwarp.persistence import codec

CHUNK = 4 << 20
NAMES = {codec.RAW: "raw", codec.ZSTD: "zstd", codec.PLANES: "planes", codec.DELTA: "delta", codec.PATCH: "patch"}


class Case(NamedTuple):
    """A chunk, and the same part of the save before."""

    name: str
    width: int
    data: bytes
    base: bytes | None = None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codec", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="how often each is tried (15)")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    wish = parser.parse_args()
    print("| chunk | codec | of raw | encode MB/s | x 2 | decode MB/s | x 2 |")
    print("|---|---|---|---|---|---|---|")
    for case in cases():
        if wish.only in case.name:
            print(row(case, wish.rounds), flush=True)


def cases() -> Iterator[Case]:
    """Everything worth measuring."""
    for steps in (50, 1):
        before, after = saves(steps)
        for name, (width, data) in after.items():
            if steps == 50:
                yield Case(name, width, data)
                if name in ("bf16 weights", "fp32 m"):
                    yield Case(f"{name}, not known to be", 0, data)
            yield Case(f"{name}, {steps} step{'s' * (steps > 1)} later", width, data, before[name][1])
    rng = np.random.default_rng(1)
    yield Case("noise", 0, rng.bytes(CHUNK))
    yield Case("zeros", 4, bytes(CHUNK))
    words = [rng.bytes(n).hex().encode() for n in rng.integers(1, 6, 3000)]
    yield Case("text", 0, b" ".join(words[k] for k in rng.zipf(1.3, CHUNK // 4) % 3000)[:CHUNK])


def saves(steps: int) -> tuple[dict[str, tuple[int, bytes]], dict[str, tuple[int, bytes]]]:
    """Two saves of a full fine-tune at a learning rate of 1e-5, so many steps apart: width and bytes by name."""
    rng = np.random.default_rng(steps)
    count, columns = CHUNK // 2, 1024
    rows = np.exp(rng.standard_normal(count // columns) * 0.8) * 10 ** rng.uniform(-5.2, -3.8)
    scale = np.repeat(rows, columns).astype(np.float32)  # gradients differ by rows, with heavy tails
    weights = rng.standard_normal(count, np.float32) * np.float32(0.02)
    v = (scale * rng.standard_normal(count, np.float32)) ** 2 * np.float32(0.3) + scale**2 * np.float32(0.7)
    decay, reach = np.float32(0.999**steps), np.float32(1e-5 * (1 if steps == 1 else steps**0.5 / 0.23))
    found = []
    for _ in range(2):
        m = rng.standard_normal(count, np.float32) * scale * np.float32(0.23)
        gradient = 1 + rng.standard_normal(count, np.float32) * np.float32(0.2)
        v = v * decay + (1 - decay) * (scale * gradient) ** 2
        weights = weights - reach * m / (np.sqrt(v) + np.float32(1e-8))
        found.append(_as_stored(weights, m, v))
    return found[0], found[1]


def _as_stored(weights: Any, m: Any, v: Any) -> dict[str, tuple[int, bytes]]:
    half = CHUNK // 4
    blocks = m.reshape(-1, 256)
    quantised = np.round(blocks / np.abs(blocks).max(1, keepdims=True) * 127).astype(np.int8)
    made: dict[str, tuple[int, Any]] = {
        "bf16 weights": (2, _bf16(weights)),
        "fp16 weights": (2, weights.astype("<f2")),
        "fp32 weights": (4, weights[:half]),
        "fp32 m": (4, m[:half]),
        "fp32 v": (4, v[:half]),
        "bf16 m": (2, _bf16(m)),
        "int8 m": (1, quantised),
        "fp64 weights": (8, weights[: half // 2].astype("<f8") * (1 + 1e-9)),
    }
    return {name: (width, array.tobytes()) for name, (width, array) in made.items()}


def _bf16(values: Any) -> Any:
    bits = values.view("<u4")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def row(case: Case, rounds: int) -> str:
    """A line of the table."""
    data, size = memoryview(case.data), len(case.data)
    base = None if case.base is None else memoryview(case.base)
    how, pieces = codec.encode(data, level=1, width=case.width, base=base)
    coded = b"".join(pieces)
    against = base if codec.needs_base(how) else None

    def encode() -> None:
        codec.encode(data, level=1, width=case.width, base=base)

    room = threading.local()

    def decode() -> None:
        if not hasattr(room, "out"):
            room.out = memoryview(bytearray(size))
        codec.decode(how, coded, size, against, out=room.out)

    speeds = [
        text
        for work in (encode, decode)
        for text in (f"{size / alone(work, rounds) / 1e6:.0f}", f"{together(work, rounds):.2f}")
    ]
    return f"| {case.name} | {NAMES[how]} | {len(coded) / size:.4f} | {' | '.join(speeds)} |"


def alone(work: Callable[[], None], rounds: int) -> float:
    """Seconds of processor time that `work` takes at best."""
    best = float("inf")
    for _ in range(rounds):
        started = time.thread_time()
        work()
        best = min(best, time.thread_time() - started)
    return best


def together(work: Callable[[], None], rounds: int, pairs: int = 5) -> float:
    """How many times the work of one thread two of them do in the same time, at best of `pairs` of trials."""

    def many() -> None:
        for _ in range(rounds):
            work()

    best = 0.0
    for _ in range(pairs):
        took = []
        for count in (1, 2):
            threads = [threading.Thread(target=many) for _ in range(count)]
            started = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            took.append(time.perf_counter() - started)
        best = max(best, 2 * took[0] / took[1])
    return best


if __name__ == "__main__":
    main()
