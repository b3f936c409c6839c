"""Trainers whose checkpoints SpotWarp does not know, and commands that only start the work."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from spotwarp.testing.product import Machine, until

pytestmark = pytest.mark.slow
Rent = Callable[..., Machine]

TRAINER = """
import json, os, pathlib, time
found = sorted(pathlib.Path('out').glob('checkpoint-*'), key=lambda p: int(p.name.split('-')[1]))
step = json.loads((found[-1] / 'state.json').read_text())['step'] if found else 0
print('start at', step, flush=True)
while step < 60:
    step += 1
    time.sleep(0.05)
    if step % 10 == 0:
        target = pathlib.Path(f'out/checkpoint-{step}')
        partial = pathlib.Path(f'out/.partial-{step}')
        partial.mkdir(parents=True)
        (partial / 'weights.npz').write_bytes(os.urandom(1000))
        (partial / 'state.json').write_text(json.dumps({'step': step}))
        partial.rename(target)
    if step == 40 and not os.environ['SPOTWARP_RESUMED'] == '1':
        time.sleep(600)
print('done', flush=True)
"""


def test_an_unknown_layout_is_continued_from_on_another_machine(rent: Rent) -> None:
    first = rent().init()
    first.file("train.py", TRAINER)
    run = first.start("run", "--command", f"{sys.executable} train.py")
    run.until(lambda: (first.path / "out" / "checkpoint-40").is_dir(), "step 40")
    seen = len(first.snapshots())
    until(
        lambda: len(first.snapshots()) != seen or first.facts("status", code=None)["at_risk_bytes"] == 0, "its snapshot"
    )
    first.die()

    second = rent().init()
    done = second("run", seconds=90)

    assert b"start at 40" in done.out
    assert b"done" in done.out
    assert not list((second.path / "out").glob("*.torn-*"))


def test_a_command_that_only_starts_the_work_does_not_complete_the_run(rent: Rent) -> None:
    machine = rent(env={"SPOTWARP_LINGER": "500ms"}).init()
    done = machine("run", "--command", f"{sys.executable} -c 'import time; time.sleep(600)' & true", code=125)
    assert "not complete" in done.err
    assert machine.facts("status")["state"] == "stopped"
    machine("run", "--command", "true")
    assert machine.facts("status")["state"] == "complete"
