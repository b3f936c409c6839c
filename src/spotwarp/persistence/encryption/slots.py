"""The repository's key, wrapped by secrets: each slot holds it once, for one secret. Pure, but for the chance in it.

Owns how a wrapping key is made of a secret. A slot is read from a store that may lie: it says how much work its
passphrase is, and no more than a bound of that is ever done.
"""

from __future__ import annotations

import binascii
import os
from dataclasses import dataclass
from typing import Final

import msgspec

from spotwarp.errors import CorruptObject
from spotwarp.persistence.encryption.cipher import KEY_SIZE, Box, derived
from spotwarp.persistence.encryption.secret import Secret

SALT_SIZE: Final = 32
_MOST_MEMORY: Final = 1 << 28
_MOST_PASSES: Final = 4
_WRAP: Final = b"spotwarp key slot"


@dataclass(frozen=True, slots=True)
class Work:
    """How much work it is to try one passphrase: scrypt's parameters (RFC 7914)."""

    n: int = 1 << 17
    r: int = 8
    p: int = 1


USUAL: Final = Work()
"""128 MiB and some tenths of a second."""


class Slot(msgspec.Struct, frozen=True):
    """One wrapped key; salt and box in hex. `n`, `r`, `p` are 0 for a key file, which needs no work to be safe."""

    id: str
    kind: str
    salt: str
    box: str
    n: int = 0
    r: int = 0
    p: int = 0
    created: str = ""


def wrap(key: bytes, secret: Secret, *, repository: str, id: str, created: str, work: Work = USUAL) -> Slot:
    """A slot that holds `key` for whoever has `secret`."""
    salt = os.urandom(SALT_SIZE)
    effort = work if secret.kind == "passphrase" else Work(0, 0, 0)
    slot = Slot(id, secret.kind, salt.hex(), "", effort.n, effort.r, effort.p, created)
    return msgspec.structs.replace(
        slot, box=Box(_wrapping(slot, secret, salt)).close(key, _context(slot, repository)).hex()
    )


def unwrap(slot: Slot, secret: Secret, repository: str) -> bytes | None:
    """The key in `slot`, or None when `secret` does not open it, or it is no slot that could be opened at all."""
    if slot.kind != secret.kind or (slot.kind == "passphrase" and not _bearable(slot)):
        return None
    try:
        salt, box = bytes.fromhex(slot.salt), bytes.fromhex(slot.box)
        key = Box(_wrapping(slot, secret, salt)).open(box, _context(slot, repository), "the slot")
    except (CorruptObject, binascii.Error, ValueError):
        return None
    return key if len(key) == KEY_SIZE else None


def effort(slot: Slot) -> int:
    """How much work it is to try a passphrase on `slot`, in the unit of n · r · p; 0: none is tried."""
    return slot.n * slot.r * slot.p if slot.kind == "passphrase" and _bearable(slot) else 0


def _wrapping(slot: Slot, secret: Secret, salt: bytes) -> bytes:
    if secret.kind == "file":
        return derived(secret.material, salt, _WRAP)
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    return Scrypt(salt=salt, length=KEY_SIZE, n=slot.n, r=slot.r, p=slot.p).derive(secret.material)


def _bearable(slot: Slot) -> bool:
    power = slot.n > 1 and slot.n & (slot.n - 1) == 0
    return power and slot.r > 0 and 128 * slot.n * slot.r <= _MOST_MEMORY and 0 < slot.p <= _MOST_PASSES


def _context(slot: Slot, repository: str) -> bytes:
    return f"{repository} {slot.id} {slot.kind} {slot.n} {slot.r} {slot.p}".encode()
