"""What a training framework's checkpoint is, parsed without the framework.

Owns the names, the file formats and the sets of Hugging Face checkpoints (invariant I5). Reads only: no clock, no
waiting, no torch, and nothing is ever unpickled. The caller decides when a directory is quiet (`seen`), and what to do
about a torn one.
"""

from spotwarp.execution.checkpoints.checkpoint import Checkpoint, CheckpointClass, by_company, in_the_way, newest
from spotwarp.execution.checkpoints.find import Survey, find, step_of, survey, walk, worth_a_look
from spotwarp.execution.checkpoints.judge import judge
from spotwarp.execution.checkpoints.members import Signature, seen
from spotwarp.execution.checkpoints.single import Shape, Single, examine_single, may_be_single

__all__ = [
    "Checkpoint",
    "CheckpointClass",
    "Shape",
    "Signature",
    "Single",
    "Survey",
    "by_company",
    "examine_single",
    "find",
    "in_the_way",
    "judge",
    "may_be_single",
    "newest",
    "seen",
    "step_of",
    "survey",
    "walk",
    "worth_a_look",
]
