"""`spotwarp check --repair`: from what is here, from other packs, and honestly of what is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotwarp.testing.product import Machine
from spotwarp.testing.pytest_product import bucket, rent, ws

__all__ = ["bucket", "rent", "ws"]

pytestmark = pytest.mark.slow


def packs(bucket: Path) -> set[Path]:
    return set((bucket / "runs/main/packs").iterdir())


def harm(pack: Path) -> None:
    data = bytearray(pack.read_bytes())
    data[len(data) // 3] ^= 1
    pack.write_bytes(data)


@pytest.fixture
def stored(ws: Machine, bucket: Path) -> set[Path]:
    """Two files in packs of their own; gives the pack of the second."""
    ws.file("train.py", "train\n")
    ws("sync")
    first = packs(bucket)
    ws.file("data.bin", os.urandom(400_000))
    ws("sync")
    return packs(bucket) - first


def test_what_is_here_is_sent_again(ws: Machine, bucket: Path, stored: set[Path]) -> None:
    (pack,) = stored
    harm(pack)
    done = ws("check", "--repair")
    assert "DAMAGED" in done.out.decode()
    assert "sent again from here" in done.out.decode()
    latest = ws.snapshots()[-1]["id"]
    assert latest in ws("check", "--read-data", "--json", code=16).json["whole"]


def test_elsewhere_what_is_nowhere_whole_is_left_out_and_named(
    ws: Machine, rent: object, bucket: Path, stored: set[Path]
) -> None:
    (pack,) = stored
    harm(pack)
    other = rent("other", remote=str(bucket)).init()  # type: ignore[operator]
    facts = other("check", "--repair", "--json", code=16).json
    assert facts["repair"]["lost"] == ["data.bin"]
    assert facts["repair"]["id"] == other.snapshots()[-1]["id"]
    other("restore")
    assert (other.path / "train.py").read_text() == "train\n"
    assert not (other.path / "data.bin").exists()
    assert other("check", "--repair", "--json").json["repair"]["repaired"] is False


def test_what_is_whole_is_left_alone(ws: Machine, bucket: Path, stored: set[Path]) -> None:
    before = len(ws.snapshots())
    assert "repair" not in ws("check", "--repair", "--json").json
    assert len(ws.snapshots()) == before
