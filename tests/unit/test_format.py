"""docs/format.md, section 9: the worked example is what the code writes, and decodes by what the page alone says.

`python -m tests.unit.test_format` prints the example anew after a deliberate change of the format.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from blake3 import blake3

from spotwarp.errors import SpotWarpError
from spotwarp.persistence import layout
from spotwarp.persistence.backup import BackupOptions, backup
from spotwarp.persistence.envelope import Kind, unseal
from spotwarp.persistence.excludes import Excludes
from spotwarp.persistence.manifest import decode as decode_manifest
from spotwarp.persistence.pack import read_trailer
from spotwarp.persistence.receipts import Base, commit
from spotwarp.persistence.repository import create, open_repository
from spotwarp.persistence.retention import Retention
from spotwarp.persistence.runlog.entry import Claim
from spotwarp.persistence.runlog.entry import decode as decode_entry
from spotwarp.persistence.statcache import StatCache
from spotwarp.testing.stores import MemoryStore

PAGE = Path(__file__).parents[2] / "docs" / "format.md"
LIFE = "00112233445566ff"


class _StillClock:
    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> datetime:
        return datetime(2026, 11, 29, 12, 0, tzinfo=UTC)

    def thread_s(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing waits here")

    def wait(self, event: Any, seconds: float | None) -> bool:
        return bool(event.wait(seconds))


class _CountingRng:
    def __init__(self) -> None:
        self._count = 0

    def token(self, nbytes: int) -> str:
        self._count += 1
        return f"{self._count:0{2 * nbytes}x}"

    def uniform(self, low: float, high: float) -> float:
        return low


def written(workspace: Path) -> dict[str, bytes]:
    """What the code writes for the example."""
    (workspace / "a.txt").write_bytes(b"hello\n")
    (workspace / "a.txt").chmod(0o644)
    os.utime(workspace / "a.txt", ns=(10**18, 10**18))
    store, clock, rng = MemoryStore(), _StillClock(), _CountingRng()
    repository, _ = create(store, clock=clock, rng=rng)
    repository.enlist("main")
    log = repository.log("main", life=LIFE, clock=clock, rng=rng)
    log.append(
        lambda head: Claim(
            generation=1,
            machine="m1",
            cause="first",
            base=0,
            lease_s=20.0,
            host="h",
            pid=7,
            command=("python train.py",),
            shell=True,
        )
    )
    uploaded = backup(
        store=store,
        run="main",
        generation=1,
        root=workspace,
        base=None,
        cache=StatCache(),
        excludes=Excludes(),
        judge=lambda root, entries: (),
        clock=clock,
        rng=rng,
        options=BackupOptions(workers=1, uploads=1),
    )
    commit(log, uploaded, Base(), generation=1, retention=Retention(), clock=clock)
    return {key: data for key, data in store.contents().items() if key != layout.BALLAST}


def rendered(objects: dict[str, bytes]) -> str:
    parts = []
    for key in sorted(objects):
        lines = re.findall(".{1,96}", objects[key].hex())
        parts.append(f"`{key}`\n\n" + "\n".join(f"    {line}" for line in lines) + "\n")
    return "\n".join(parts)


def documented() -> dict[str, bytes]:
    """The objects as the page shows them."""
    section = PAGE.read_text().partition("## 9. Worked example")[2]
    found = re.findall(r"^`([^`\n]+)`\n\n((?:    [0-9a-f]+\n)+)", section, re.MULTILINE)
    return {key: bytes.fromhex("".join(text.split())) for key, text in found}


def test_the_page_shows_what_the_code_writes(tmp_path: Path) -> None:
    assert documented() == written(tmp_path)


# ---- a reader made from the page alone -----------------------------------------------------------------------------


def _b3(data: bytes) -> bytes:
    return blake3(data).digest(length=16)


def _body(data: bytes, kind: bytes) -> bytes:
    assert data[:8] == b"SPWP" + kind + bytes([0, 0]) + b"\n"
    assert data[-16:] == _b3(data[:-16])
    return data[8:-16]


def test_the_example_decodes_by_what_the_page_says() -> None:
    objects = documented()
    identity = json.loads(_body(objects["config"], b"C"))
    assert identity["format"] == 0
    assert re.fullmatch("[0-9a-f]{32}", identity["id"])
    claim = json.loads(_body(objects["runs/main/log/0000000001"], b"L"))
    assert (claim["kind"], claim["n"], claim["generation"], claim["by"]) == ("claim", 1, 1, LIFE)
    snapshot = json.loads(_body(objects["runs/main/log/0000000002"], b"L"))
    assert snapshot["state"] == {"generation": 1, "claim": 1, "life": LIFE, "machine": "m1", "claimed": {"m1": 1}}
    raw = objects[f"runs/main/manifests/{snapshot['manifest']}"]
    assert _b3(raw).hex() == snapshot["address"]
    body = _body(raw, b"M")
    length = int.from_bytes(body[:4], "little")
    head, rest = _unpacked(body[4 : 4 + length]), body[4 + length :]
    _version, run, generation, packs, blobs, segments, checkpoints, skipped, versions = head
    assert segments == [[b"a.txt", 1, len(rest)]]
    entries = _unpacked(rest)
    assert (run, generation, checkpoints, skipped, versions) == ("main", 1, [], [], [])
    [[_, pack_id, size]] = packs
    pack = objects[f"runs/main/packs/{pack_id}"]
    assert len(pack) == size
    [[path, kind, mode, mtime, length, [[offset, covered, blob, inner]], _target, content, _link]] = entries
    assert (path, kind, mode, mtime, length, offset, covered) == (b"a.txt", 0, 0o644, 10**18, 6, 0, 6)
    assert _file(pack, blobs[blob], inner, covered) == b"hello\n"
    assert content == _b3(b"hello\n")


def _unpacked(frame: bytes) -> list[Any]:
    found: list[Any] = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(frame))
    return found


def _file(pack: bytes, blob: list[Any], inner: int, length: int) -> bytes:
    trailer_size, trailer_digest, end = struct.unpack("<I16s8s", pack[-28:])
    trailer = pack[-28 - trailer_size : -28]
    assert end == b"SPWPEND\n"
    assert trailer_digest == _b3(pack[:8] + trailer)
    _, offset, stored, codec, raw, digest, base = blob
    assert base == -1
    assert [digest, offset, stored, codec, raw, b""] in msgspec.msgpack.decode(trailer)
    coded = pack[offset : offset + stored]
    data = coded if codec == 0 else zstandard.ZstdDecompressor().decompress(coded)
    assert len(data) == raw
    assert _b3(data) == digest
    return data[inner : inner + length]


def test_a_flip_of_any_byte_is_noticed() -> None:
    """Whatever byte of whatever object is damaged, its reader says so. (A pack's blobs are verified one by one.)"""
    for key, data in documented().items():
        for at in range(_first_covered(key, data), len(data)):
            damaged = data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]
            with pytest.raises(SpotWarpError):
                _read(key, damaged)


def _first_covered(key: str, data: bytes) -> int:
    return len(data) - 28 - int.from_bytes(data[-28:-24], "little") if "/packs/" in key else 0


def _read(key: str, data: bytes) -> None:
    store = MemoryStore()
    store.put(key, data)
    if key == "config":
        open_repository(store)
    elif key.startswith("names/"):
        unseal(data, Kind.CONFIG, key)
    elif "/log/" in key:
        decode_entry(data, int(key[-10:]), key)
    elif "/manifests/" in key:
        decode_manifest(data, key)
    else:
        read_trailer(store, key, len(data))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        text = rendered(written(Path(scratch)))
    if "--write" in sys.argv:
        page = PAGE.read_text()
        head, mark, _ = page.partition("<!-- example -->")
        PAGE.write_text(head + mark + "\n\n" + text)
    else:
        sys.stdout.write(text)
