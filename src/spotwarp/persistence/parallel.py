"""Jobs on a few threads: the first error ends them all and is raised, a cancelled one raises `Interrupted`.

Owns no policy: what a job does, and how big it is, is the caller's. A job must end in bounded time.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Final, TypeVar

from spotwarp.errors import Interrupted
from spotwarp.system import cpus

Job = TypeVar("Job")

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def default_workers() -> int:
    """As many threads as pay: the cores this process may use, at most four."""
    return max(1, min(cpus(), 4))


def each(
    jobs: Iterable[Job], work: Callable[[Iterable[Job]], None], *, workers: int, cancel: threading.Event | None = None
) -> None:
    """Run `work` on `workers` threads; together the iterables they are given yield every job once, in order.

    `work` gets an iterable rather than one job, so that it can keep what a thread owns (open directories) across jobs.
    Raises the first error of any; `Interrupted` once `cancel` is set.
    """
    settle_allocator()
    stop = threading.Event()
    lock = threading.Lock()
    source = iter(jobs)
    end = object()

    def share() -> Iterable[Job]:
        while not stop.is_set():
            if cancel is not None and cancel.is_set():
                raise Interrupted("stopped before it was finished")
            with lock:
                job = next(source, end)
            if job is end:
                return
            yield job  # type: ignore[misc]

    with ThreadPoolExecutor(workers, thread_name_prefix="spotwarp-read") as pool:
        try:
            futures = [pool.submit(work, share()) for _ in range(workers)]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:  # also when Ctrl-C arrives here: the threads end after the job in hand
            stop.set()
    for future in sorted(done, key=futures.index):
        future.result()
    for future in futures:
        future.result()


@functools.cache
def settle_allocator() -> None:
    """Tell the C library how this process uses memory, once for the process; the earlier the better.

    Let it keep what a job frees for the next one: else every buffer of some MiB is mapped anew and its pages zeroed by
    the kernel, half of the CPU time of a restore. And few arenas: each new thread may else take one of 64 MiB of
    address space, up to eight per core, which a limited container does not have.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # not every C library has it, and it may decline: only speed is lost
        mallopt(_M_ARENA_MAX, 4)
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 256 << 20)


def yield_to_others(nice: int) -> None:
    """Lower this thread's priority to `nice`, if it is higher; on Linux it is the thread's own."""
    with contextlib.suppress(OSError):
        mine = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, mine, max(nice, os.getpriority(os.PRIO_PROCESS, mine)))
