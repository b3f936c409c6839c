"""Big objects are written past the page cache where that can be done: they come back whole, whatever they lie in."""

from __future__ import annotations

import mmap
import random
import resource
import signal
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock, SystemRng
from spotwarp.errors import StoreFull
from spotwarp.persistence.store.local import LocalStore

MIB = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "bucket", clock=SystemClock(), rng=SystemRng())


def _mapped(content: bytes) -> memoryview:
    """As a pack comes: in pages of its own."""
    memory = mmap.mmap(-1, len(content))
    memory[:] = content
    return memoryview(memory)


@pytest.mark.parametrize("length", [MIB, MIB + 1, 3 * MIB - 1, 2 * MIB + 4096, 4095, 0])
@pytest.mark.parametrize("skew", [0, 1, 512])
def test_any_length_from_any_memory_comes_back(store: LocalStore, length: int, skew: int) -> None:
    content = random.Random(length).randbytes(length)
    data = _mapped(bytes(skew) + content)[skew:] if skew + length else memoryview(b"")
    store.put("a/pack", data)
    store.put_new("a/other", content)
    assert store.get("a/pack") == content
    assert store.get("a/other") == content


def test_a_full_disk_is_still_said(store: LocalStore, tmp_path: Path) -> None:
    store.put("small", b"x")
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * MIB, before[1]))
    try:
        with pytest.raises(StoreFull):
            store.put("pack", _mapped(bytes(8 * MIB)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not (tmp_path / "bucket" / "pack").exists()
    assert list((tmp_path / "bucket" / ".tmp").iterdir()) == []
