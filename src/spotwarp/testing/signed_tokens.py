"""Service accounts for tests: their key files, and the check of the tokens that are signed with them.

Owns one RSA key, made from a fixed seed when it is first wanted, so that no private key lies in the source. Never use
it for anything but a double.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final

BITS: Final = 2048
SEED: Final = 7
_EXPONENT: Final = 65537
_SHA256_PREFIX: Final = bytes.fromhex("3031300d060960864801650304020105000420")
_SKEW_S: Final = 300
_SMALL: Final = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


class TokenRefused(Exception):
    """The token is not one that this account signed, or not for now."""


@dataclass(frozen=True, slots=True)
class _Key:
    p: int
    q: int

    @property
    def modulus(self) -> int:
        return self.p * self.q

    def pem(self) -> str:
        """PKCS #1."""
        d = pow(_EXPONENT, -1, (self.p - 1) * (self.q - 1))
        numbers = (0, self.modulus, _EXPONENT, d, self.p, self.q, d % (self.p - 1), d % (self.q - 1))
        body = b"".join(_der_integer(number) for number in (*numbers, pow(self.q, -1, self.p)))
        text = base64.encodebytes(_der(0x30, body)).decode().strip()
        return f"-----BEGIN RSA PRIVATE KEY-----\n{text}\n-----END RSA PRIVATE KEY-----\n"


class Signer:
    """One key, for any number of accounts."""

    def key_file(self, email: str) -> str:
        """The JSON that `GOOGLE_APPLICATION_CREDENTIALS` points to, for the account `email`."""
        return json.dumps(
            {
                "type": "service_account",
                "client_email": email,
                "private_key_id": "1",
                "private_key": self._key.pem(),
                "token_uri": "https://oauth2.googleapis.com/token",
            }
        )

    def signed_by(self, token: str, now: datetime) -> str:
        """The account that signed `token`, which must be valid `now`. Raises `TokenRefused`."""
        head, _, rest = token.partition(".")
        claims, _, signature = rest.partition(".")
        try:
            said: dict[str, Any] = json.loads(_decoded(claims))
            number = int.from_bytes(_decoded(signature))
        except ValueError as error:
            raise TokenRefused("not a signed token") from error
        digest = _SHA256_PREFIX + hashlib.sha256(f"{head}.{claims}".encode()).digest()
        expected = b"\x00\x01" + b"\xff" * (BITS // 8 - 3 - len(digest)) + b"\x00" + digest
        if pow(number, _EXPONENT, self._key.modulus) != int.from_bytes(expected):
            raise TokenRefused("not signed with this key")
        if not said["iat"] - _SKEW_S <= now.timestamp() < said["exp"]:
            raise TokenRefused("not valid now")
        return str(said["iss"])

    @cached_property
    def _key(self) -> _Key:
        chance = random.Random(SEED)
        return _Key(_prime(chance), _prime(chance))


def _prime(chance: random.Random) -> int:
    half = BITS // 2
    while True:
        found = chance.getrandbits(half) | (3 << half - 2) | 1  # the two top bits: the product has all its bits
        if all(found % small for small in _SMALL) and found % _EXPONENT != 1 and _is_prime(found, chance):
            return found


def _is_prime(number: int, chance: random.Random) -> bool:
    """Miller and Rabin, sixteen times."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(16):
        x = pow(chance.randrange(2, number - 1), odd, number)
        if x in (1, number - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % number
            if x == number - 1:
                break
        else:
            return False
    return True


def _der(tag: int, body: bytes) -> bytes:
    size = len(body)
    if size < 128:
        return bytes([tag, size]) + body
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + body


def _der_integer(number: int) -> bytes:
    return _der(2, number.to_bytes(number.bit_length() // 8 + 1))


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
