"""The demo: a small training, a scenario that preempts it, and the table of what it cost.

Importing it pins linear algebra to one thread, for it must happen before numpy is first imported: several threads add
in an order that differs from run to run, and the demo's claim is that every bit of the result is the same.
"""

from __future__ import annotations

import os

os.environ.update({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
