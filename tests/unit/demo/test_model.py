"""The demo's mathematics: gradients against finite differences, and an optimiser that learns."""

from __future__ import annotations

import numpy as np
import pytest

from spotwarp.demo.model import AdamW, Cosine, Parameters, Pass, Shape, initial

SHAPE = Shape(vocabulary=11, context=6, width=8, heads=2, layers=2, dropout=0.2)
INPUTS = np.array([[1, 4, 4, 2, 10], [0, 3, 9, 4, 1]])
TARGETS = np.array([[4, 4, 2, 10, 7], [3, 9, 4, 1, 0]])


def loss(parameters: Parameters) -> tuple[float, Parameters]:
    """Loss and gradients with the same dropout masks on every call."""
    run = Pass(SHAPE, parameters, np.random.Generator(np.random.PCG64(3)))
    return run.run(INPUTS, TARGETS), run.gradients


def spread(rng: np.random.Generator) -> Parameters:
    """Parameters in double precision, large enough that no gradient is lost in rounding."""
    return {name: value + rng.normal(0, 0.3, value.shape) for name, value in initial(SHAPE, rng, np.float64).items()}


@pytest.mark.parametrize("name", sorted(initial(SHAPE, np.random.Generator(np.random.PCG64(1)))))
def test_every_gradient_agrees_with_finite_differences(name: str) -> None:
    rng = np.random.Generator(np.random.PCG64(1))
    parameters = spread(rng)
    gradient = loss(parameters)[1][name]
    flat = parameters[name].reshape(-1)
    for place in rng.choice(flat.size, min(flat.size, 8), replace=False):
        kept, epsilon = flat[place], 1e-5
        flat[place] = kept + epsilon
        above = loss(parameters)[0]
        flat[place] = kept - epsilon
        below = loss(parameters)[0]
        flat[place] = kept
        assert gradient.reshape(-1)[place] == pytest.approx((above - below) / (2 * epsilon), rel=1e-5, abs=1e-9)


def test_a_position_does_not_see_what_follows_it() -> None:
    parameters = spread(np.random.Generator(np.random.PCG64(1)))
    changed = INPUTS.copy()
    changed[:, -1] = (changed[:, -1] + 1) % SHAPE.vocabulary
    shape = Shape(vocabulary=11, context=6, width=8, heads=2, layers=2, dropout=0)
    gradients = []
    for inputs in (INPUTS, changed):
        run = Pass(shape, parameters, None)
        run.run(inputs[:, :-1], TARGETS[:, :-1])
        gradients.append(run.gradients["position"])
    assert np.array_equal(gradients[0], gradients[1])
    last = [Pass(shape, parameters, None).run(inputs, TARGETS) for inputs in (INPUTS, changed)]
    assert last[0] != last[1]


def test_training_learns_a_sentence_by_heart() -> None:
    shape = Shape(vocabulary=11, context=6, width=8, heads=2, layers=1, dropout=0)
    parameters = initial(shape, np.random.Generator(np.random.PCG64(1)))
    optimizer, schedule = AdamW(), Cosine(200, peak=2e-2)
    losses = []
    for _ in range(200):
        run = Pass(shape, parameters, None)
        losses.append(run.run(INPUTS, TARGETS))
        optimizer.update(parameters, run.gradients, schedule.next())
    assert losses[0] > 2.2
    assert losses[-1] < 0.4
    assert {str(moment.dtype) for moment in optimizer.first.values()} == {"float32"}


def test_the_schedule_warms_up_and_ends_at_a_tenth() -> None:
    schedule = Cosine(120, peak=1.0, warmup=10)
    rates = [schedule.next() for _ in range(120)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == 1.0
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)
