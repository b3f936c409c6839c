"""One HTTP POST of JSON. Bounded in time and in what it reads back; follows no redirect; never shows the address.

An address can be a secret (a path that holds a token), so messages name only its scheme and host (I11).
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from email.message import Message
from typing import IO
from urllib.parse import urlsplit

AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers after which the same request may succeed later."""


class _Stay(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET, somewhere else."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """Never."""
        return


def post(url: str, body: bytes, *, timeout_s: float) -> tuple[str, bool]:
    """Send `body`; why it failed (empty: it did not), and whether another try could succeed. Raises nothing."""
    try:
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked with the option
            url, data=body, method="POST", headers={"Content-Type": "application/json", "User-Agent": "spotwarp"}
        )
        with urllib.request.build_opener(_Stay).open(request, timeout=timeout_s) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as error:
        with error:
            return f"it answered {error.code} {error.reason}", error.code in AGAIN
    except urllib.error.URLError as error:
        return f"it cannot be reached: {error.reason}", True
    except http.client.HTTPException as error:
        return f"it does not speak HTTP: {type(error).__name__}", True
    except OSError as error:
        return f"it cannot be reached: {error}", True
    except ValueError:  # the library's words quote the address
        return "the address cannot be used", False
    return "", False


def shown(url: str) -> str:
    """The address without what may be secret in it."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname or ''}" + (f":{parts.port}" if parts.port else "")
    except ValueError:
        return "a web address"
