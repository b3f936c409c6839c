"""What every test shares: how hypothesis searches. Fixtures live beside the tests that use them."""

from __future__ import annotations

import os

from hypothesis import settings

# In CI a red run is the same red run again; at a desk the search goes on from where it was.
settings.register_profile("ci", derandomize=True, deadline=None, database=None, print_blob=True)
settings.register_profile("desk", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "desk")
