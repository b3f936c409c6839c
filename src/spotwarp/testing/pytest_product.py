"""A pytest plugin: machines with SpotWarp on them, for tests that use it as its users do.

Import its fixtures, or name it in `pytest_plugins`. Whatever a machine started is gone at the end of the test.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from spotwarp.testing.product import SETTINGS, Machine

_SETTINGS = ("SPOTWARP_", "AWS_", "GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR_", "AZURE_")


@pytest.fixture
def rent(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    """Makes machines; all share the bucket `tmp_path/bucket` unless told another `remote`."""
    machines: list[Machine] = []
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(_SETTINGS)}

    def make(name: str = "ws", *, remote: str | None = None, env: Mapping[str, str] | None = None) -> Machine:
        path = tmp_path / name
        machines.append(Machine(path, remote or str(tmp_path / "bucket"), {**inherited, **SETTINGS, **(env or {})}))
        return machines[-1]

    yield make
    for machine in machines:
        machine.die()


@pytest.fixture
def ws(rent: Callable[..., Machine]) -> Machine:
    """One machine, its workspace initialised."""
    return rent().init()


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """Where the machines' directory store is."""
    return tmp_path / "bucket"
