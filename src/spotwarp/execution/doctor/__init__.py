"""`spotwarp doctor`: will this machine, this store and this workspace carry a run?

    verdict   pure: what each fact means, in words, with a hint
    examine   the facts, gathered: the store tried and measured, the disk, the clock, the key, the GPUs

Changes nothing but what the trial of the store puts and removes.
"""

from __future__ import annotations

from spotwarp.execution.doctor.examine import Asked, examine
from spotwarp.execution.doctor.verdict import Line

__all__ = ["Asked", "Line", "examine"]
