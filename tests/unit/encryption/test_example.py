"""docs/format.md, section 9: the example is what the code reads, and decodes by what the page alone says."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

from spotwarp.persistence.encryption.cipher import Cipher
from spotwarp.persistence.encryption.sealed import SealedStore
from spotwarp.persistence.encryption.secret import secret
from spotwarp.persistence.encryption.slots import Slot, Work, unwrap, wrap
from spotwarp.persistence.envelope import Kind, seal, unseal
from spotwarp.testing.stores import MemoryStore

PAGE = Path(__file__).parents[3] / "docs" / "format.md"
ID, KEY = "0" * 31 + "1", bytes(range(32))


def example() -> tuple[list[dict[str, Any]], str, str, str, bytes]:
    lines = PAGE.read_text().partition("<!-- encrypted example -->")[2].split("## ")[0].split("\n")
    slots, file, passphrase, name, hint = (line.strip() for line in lines if line.strip())
    return json.loads(slots), file, passphrase, name, bytes.fromhex(hint)


def hkdf(key: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869, written out."""
    extracted, made, block = hmac.digest(salt, key, "sha256"), b"", b""
    for number in range(1, length // 32 + 1):
        block = hmac.digest(extracted, block + info + bytes([number]), "sha256")
        made += block
    return made


def opened(key: bytes, box: bytes, context: bytes) -> bytes:
    return AESGCM(key).decrypt(box[:12], box[12:], context)


def test_the_page_alone_is_enough() -> None:
    slots, file, passphrase, name, hint = example()
    for slot in slots:
        salt = bytes.fromhex(slot["salt"])
        if slot["kind"] == "file":
            wrapping = hkdf(bytes.fromhex(file.removeprefix("spotwarp-key-")), salt, b"spotwarp key slot", 32)
        else:
            wrapping = hashlib.scrypt(passphrase.encode(), salt=salt, n=slot["n"], r=slot["r"], p=slot["p"], dklen=32)
        context = " ".join(str(part) for part in (ID, *(slot[one] for one in ("id", "kind", "n", "r", "p"))))
        assert opened(wrapping, bytes.fromhex(slot["box"]), context.encode()) == KEY
    names = AESSIV(hkdf(KEY, ID.encode(), b"spotwarp run names", 64))
    coded = base64.b32decode(name.upper() + "=" * (-len(name) % 8))
    assert names.decrypt(coded, [b"spotwarp run names"]) == b"main" + bytes(12)
    object_key = hkdf(KEY, ID.encode(), b"spotwarp object\0runs/main/hint", 32)
    assert unseal(opened(object_key, hint[8:], hint[:8]), Kind.HINT, "hint") == b"16"


def test_the_code_writes_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """With bytes 01 01 …, 02 02 … and so on for chance; what is compared last is what the page should say."""
    slots, file, passphrase, name, hint = example()
    count = itertools.count(1)
    monkeypatch.setattr("os.urandom", lambda size: bytes([next(count)]) * size)
    made = [
        wrap(KEY, secret(given), repository=ID, id=slot["id"], created=slot["created"], work=Work(16, 8, 1))
        for slot, given in zip(slots, (file, passphrase), strict=True)
    ]
    store = SealedStore(below := MemoryStore(), Cipher(KEY, ID))
    store.put("runs/main/hint", seal(Kind.HINT, b"16"))
    assert msgspec.to_builtins(made) == slots
    ((key, data),) = below.contents().items()
    assert (key, data.hex()) == (f"runs/{name}/hint", hint.hex())


def test_the_code_reads_the_example() -> None:
    slots, file, passphrase, name, hint = example()
    for slot, given in zip(slots, (file, passphrase), strict=True):
        assert unwrap(msgspec.convert(slot, Slot), secret(given), ID) == KEY
    store = SealedStore(below := MemoryStore(), Cipher(KEY, ID))
    below.put(f"runs/{name}/hint", hint)
    assert [meta.key for meta in store.list("runs")] == ["runs/main/hint"]
    assert unseal(store.get("runs/main/hint"), Kind.HINT, "hint") == b"16"
