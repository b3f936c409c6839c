"""What every test shares: how hypothesis searches, what none may leave. Fixtures lie beside the tests that use them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# In CI a red run is the same red run again; at a desk the search goes on from where it was.
settings.register_profile("ci", derandomize=True, deadline=None, database=None, print_blob=True)
settings.register_profile("desk", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.fixture(autouse=True)
def no_tree_is_left() -> Iterator[None]:
    """A tree that nobody saw gone would have other tests' children reaped."""
    yield
    child = sys.modules.get("spotwarp.execution.process.child")
    assert child is None or child._REAPER._trees == 0
