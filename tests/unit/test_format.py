"""docs/format.md, section 10: the worked example is what the code writes, and decodes by what the page alone says.

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
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard
from blake3 import blake3

from spotwarp.errors import SpotWarpError
from spotwarp.persistence import codec, layout
from spotwarp.persistence.backup import BackupOptions, backup
from spotwarp.persistence.codec import planes
from spotwarp.persistence.codec.planes import Plan
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
_CODED = "<!-- coded examples -->"


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
    section = PAGE.read_text().partition("## 10. Worked example")[2]
    return _shown(section)


def _shown(section: str) -> dict[str, bytes]:
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
    _version, run, generation, all_packs, places, checkpoints, skipped, versions = head
    assert places == [[b"a.txt", 1, len(rest), -1, 0, 0, b""]]
    packs, blobs, entries = _unpacked(rest)
    assert packs == all_packs
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
    _, offset, stored, number, raw, digest, base = blob
    assert base == -1
    assert [digest, offset, stored, number, raw, b""] in msgspec.msgpack.decode(trailer)
    coded = pack[offset : offset + stored]
    data = _decoded(number, coded, raw, b"")
    assert len(data) == raw
    assert _b3(data) == digest
    return data[inner : inner + length]


# ---- codecs, section 6 ---------------------------------------------------------------------------------------------

K = np.arange(64)
CODED: dict[str, tuple[int, bytes, bytes]] = {
    "planes": (2, (1 + K / 2**20).astype("<f4").tobytes() + b"\1\2", b""),
    "differences": (3, (1000 * K + K % 3 - 1).astype("<u2").tobytes(), (1000 * K).astype("<u2").tobytes()),
    "patch": (4, bytes(4096) + b"a" * 4096 + bytes(31808), bytes(38000)),
}
"""The examples: codec, decoded bytes, the base's."""


def written_codecs() -> dict[str, bytes]:
    """What the code writes for them."""
    _, planed, _ = CODED["planes"]
    _, new, old = CODED["differences"]
    _, after, before = CODED["patch"]
    bytes_of = partial(np.frombuffer, dtype=np.uint8)
    prints = codec.fingerprints(after), codec.fingerprints(before)
    pieces = {
        "planes": planes.encode(bytes_of(planed), Plan(4, (True, True, False, False), 2, 0.0)),
        "differences": planes.encode(bytes_of(new), Plan(2, (True, True), 0, 0.0), bytes_of(old)),
        "patch": codec.encode_patch(after, *prints, len(before), level=1),
    }
    return {name: b"".join(found or ()) for name, found in pieces.items()}


def documented_codecs() -> dict[str, bytes]:
    return _shown(PAGE.read_text().partition(_CODED)[2].partition("## 7.")[0])


def test_the_page_shows_how_the_code_codes() -> None:
    assert documented_codecs() == written_codecs()


@pytest.mark.parametrize("name", CODED)
def test_a_codec_decodes_by_what_the_page_says(name: str) -> None:
    number, expected, base = CODED[name]
    coded = documented_codecs()[name]
    assert _decoded(number, coded, len(expected), base) == expected
    assert bytes(codec.decode(number, coded, len(expected), base)) == expected


def _decoded(number: int, coded: bytes, raw: int, base: bytes) -> bytes:
    if number == 0:
        return coded
    if number == 1:
        return zstandard.ZstdDecompressor().decompress(coded)
    return _patched(coded, raw, base) if number == 4 else _from_planes(coded, raw, base if number == 3 else None)


def _from_planes(coded: bytes, raw: int, base: bytes | None) -> bytes:
    width, low = coded[0], coded[1]
    n, at = raw // width, 2 + 4 * (width - low)
    elements = np.zeros((n, width), np.uint8)
    for plane, length in enumerate(struct.unpack_from(f"<{width - low}I", coded, 2)):
        part = coded[at : at + (length or n)]
        at += len(part)
        elements[:, width - 1 - plane] = list(_decoded(1, part, n, b"") if length else part)
    elements[:, :low] = np.frombuffer(coded, np.uint8, n * low, at).reshape(n, low)
    at += n * low
    assert len(coded) == at + raw % width
    if base is None:
        return elements.tobytes() + coded[at:]
    zs = [int.from_bytes(row.tobytes(), "little") for row in elements]
    bs = [int.from_bytes(base[k : k + width], "little") for k in range(0, n * width, width)]
    numbers = [(b + (z // 2 if z % 2 == 0 else ~(z // 2))) % 2 ** (8 * width) for z, b in zip(zs, bs, strict=True)]
    return b"".join(number.to_bytes(width, "little") for number in numbers) + coded[at:]


def _patched(coded: bytes, raw: int, base: bytes) -> bytes:
    count = -(-raw // 4096)
    start = 1 + -(-count // 8)
    stored = [k for k in range(count) if coded[1 + k // 8] >> k % 8 & 1]
    lengths = {k: min(4096, raw - 4096 * k) for k in range(count)}
    pages = _decoded(coded[0], coded[start:], sum(lengths[k] for k in stored), b"")
    result = []
    for k in range(count):
        source, pages = (pages[: lengths[k]], pages[lengths[k] :]) if k in stored else (base[4096 * k :], pages)
        result.append(source[: lengths[k]])
    return b"".join(result)


# ---- damage --------------------------------------------------------------------------------------------------------


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
    coded = rendered(written_codecs())
    if "--write" in sys.argv:
        page = PAGE.read_text()
        head, mark, rest = page.partition(_CODED)
        page = f"{head}{mark}\n\n{coded}\n## 7.{rest.partition('## 7.')[2]}"
        head, mark, _ = page.partition("<!-- example -->")
        PAGE.write_text(head + mark + "\n\n" + text)
    else:
        sys.stdout.write(coded + "\n" + text)
