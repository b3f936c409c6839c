"""A repository's key at work: boxes for bytes, other names for runs.

Owns how keys are derived and bytes are closed. A *box* is a nonce, the ciphertext and its tag (AES-256-GCM). Each
object has a key of its own, made of the repository's key and the object's path; each box is bound to a context. So a
box opens where it belongs and nowhere else. Nonces come from the operating system and never from an injected source of
chance: one that repeats itself, as in a test, would give the key away.
"""

from __future__ import annotations

import base64
import binascii
import os
from typing import TYPE_CHECKING, Final

from spotwarp.errors import CorruptObject
from spotwarp.persistence.store.api import Buffer

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

KEY_SIZE: Final = 32
NONCE_SIZE: Final = 12
TAG_SIZE: Final = 16
BOX_EXTRA: Final = NONCE_SIZE + TAG_SIZE
"""A box is so many bytes longer than what is in it."""

_OBJECT: Final = b"spotwarp object\0"
_NAMES: Final = b"spotwarp run names"
_NAME_STEP: Final = 16
"""Names are filled up to a multiple of so many bytes, so that little can be told from their length."""


class Box:
    """One key, for what belongs to one object. May be shared by threads."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._key = key
        self._aead: AESGCM = AESGCM(key)

    def close(self, data: Buffer, context: bytes) -> bytes:
        """The box of `data`, which opens only with the same `context`."""
        nonce = os.urandom(NONCE_SIZE)
        return nonce + self._aead.encrypt(nonce, data, context)

    def close_into(self, into: memoryview, context: bytes, *pieces: Buffer) -> None:
        """As `close`, of all `pieces` together, written to `into`, which has `BOX_EXTRA` bytes more than they, and
        shares none with them: nothing is copied."""
        from cryptography.hazmat.primitives.ciphers import Cipher as Ciphers
        from cryptography.hazmat.primitives.ciphers import algorithms, modes

        nonce = os.urandom(NONCE_SIZE)
        encryptor = Ciphers(algorithms.AES256(self._key), modes.GCM(nonce)).encryptor()
        encryptor.authenticate_additional_data(context)
        into[:NONCE_SIZE] = nonce
        at = NONCE_SIZE
        for piece in pieces:
            at += encryptor.update_into(piece, into[at:])
        encryptor.finalize()
        into[at:] = encryptor.tag

    def open(self, data: Buffer, context: bytes, name: str) -> bytes:
        """What was closed; `name` is for messages. Raises `CorruptObject` unless it was, by this key and context."""
        opened = bytearray(max(0, memoryview(data).nbytes - BOX_EXTRA))
        self.open_into(memoryview(opened), data, context, name)
        return bytes(opened)

    def open_into(self, into: memoryview, data: Buffer, context: bytes, name: str) -> None:
        """As `open`, into memory that has `BOX_EXTRA` bytes less than `data`; after an error, of no use."""
        from cryptography.exceptions import InvalidTag

        box = memoryview(data)
        try:
            if box.nbytes < BOX_EXTRA:
                raise InvalidTag
            self._aead.decrypt_into(box[:NONCE_SIZE], box[NONCE_SIZE:], context, into)
        except InvalidTag as error:
            raise CorruptObject(
                f"{name} cannot be decrypted: it was damaged, or is not what was put in this place"
            ) from error


class Cipher:
    """All keys of one repository, made of its key (32 bytes) and its id. May be shared by threads."""

    def __init__(self, key: bytes, repository: str) -> None:
        self._key, self._salt = key, repository.encode()
        self._siv: AESSIV | None = None

    def box(self, path: str) -> Box:
        """For the object at `path`, a key as `layout` makes them."""
        return Box(self._derived(_OBJECT + path.encode(), KEY_SIZE))

    def hide(self, run: str) -> str:
        """What stands for a run's name in the store: always the same, and a name like any other to it."""
        name = run.encode()
        filled = name + bytes(-len(name) % _NAME_STEP)
        return base64.b32encode(self._names().encrypt(filled, [_NAMES])).decode().rstrip("=").lower()

    def show(self, hidden: str) -> str | None:
        """The run's name that `hide` made `hidden` of; None when it did not."""
        from cryptography.exceptions import InvalidTag

        try:
            coded = base64.b32decode(hidden.upper() + "=" * (-len(hidden) % 8))
            name = self._names().decrypt(coded, [_NAMES]).rstrip(b"\0").decode()
        except (binascii.Error, ValueError, InvalidTag):
            return None
        return name if self.hide(name) == hidden else None

    def _names(self) -> AESSIV:
        if self._siv is None:
            from cryptography.hazmat.primitives.ciphers.aead import AESSIV

            self._siv = AESSIV(self._derived(_NAMES, 2 * KEY_SIZE))
        return self._siv

    def _derived(self, purpose: bytes, length: int) -> bytes:
        return derived(self._key, self._salt, purpose, length)


def derived(key: bytes, salt: bytes, purpose: bytes, length: int = KEY_SIZE) -> bytes:
    """`length` bytes of HKDF-SHA256 (RFC 5869) for one purpose. `key` must be random, not chosen by a person."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=purpose).derive(key)
