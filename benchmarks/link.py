"""A slow link before a server on this machine: a TCP relay that passes no more than so many bytes a second upwards.

What comes back is not slowed. Knows nothing of what passes through it.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PIECE = 64 << 10


class _Pace:
    """Shares the rate among all connections: each piece waits for its turn."""

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s = bytes_s
        self._lock = threading.Lock()
        self._free_at = time.monotonic()

    def pass_on(self, size: int) -> None:
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + size / self._bytes_s
            wait = self._free_at - time.monotonic()
        if wait > 0:
            time.sleep(wait)


@contextmanager
def slow_link(port: int, bytes_s: float) -> Iterator[int]:
    """The port of a relay to 127.0.0.1:`port` that passes `bytes_s` bytes a second upwards, gone at the end."""
    pace = _Pace(bytes_s)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_serve, args=(listening, port, pace), daemon=True).start()
        yield listening.getsockname()[1]


def _serve(listening: socket.socket, port: int, pace: _Pace) -> None:
    with suppress(OSError):  # closed: the link is gone
        while True:
            here, _ = listening.accept()
            there = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=_relay, args=(here, there, pace), daemon=True).start()
            threading.Thread(target=_relay, args=(there, here, None), daemon=True).start()


def _relay(source: socket.socket, sink: socket.socket, pace: _Pace | None) -> None:
    with suppress(OSError):
        while piece := source.recv(_PIECE):
            if pace is not None:
                pace.pass_on(len(piece))
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
