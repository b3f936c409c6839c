"""A socket whose every call ends by one common moment: a timeout per call would let a drip go on for ever.

Stands where `http.client` has its socket. Whoever made the socket closes it; nobody else does.
"""

from __future__ import annotations

import io
import socket
from typing import Any

from spotwarp.clock import Clock


class Timed:
    """`sock`, until `limit` (monotonic seconds); after it every call raises `TimeoutError`."""

    def __init__(self, sock: socket.socket, limit: float, clock: Clock) -> None:
        self._sock, self._limit, self._clock = sock, limit, clock

    def _hurry(self) -> socket.socket:
        left = self._limit - self._clock.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._sock

    def sendall(self, data: bytes) -> None:
        """As the socket's."""
        self._hurry().sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        """To read from."""
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """The connection does so as soon as it has the headers, while the body is still to be read: not yet."""


class _Reader(io.RawIOBase):
    def __init__(self, timed: Timed) -> None:
        self._timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._timed._hurry().recv_into(buffer)
