"""A small transformer over characters, its gradients by hand, and AdamW: numpy only, bit for bit deterministic.

Owns the mathematics of the demo's training. Every operation returns its output and its pullback (output gradient to
input gradient, adding to the parameters' gradients on the way), so that the backward pass is the forward pass read in
reverse. Must never read a clock, a file or a global random state.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Parameters = dict[str, Array]
Pullback = Callable[[Array], Array]
Branch = Callable[[Array, str], tuple[Array, Pullback]]


@dataclass(frozen=True, slots=True)
class Shape:
    """The model's dimensions. `dropout` is the probability of dropping a value."""

    vocabulary: int = 96
    context: int = 48
    width: int = 96
    heads: int = 4
    layers: int = 2
    dropout: float = 0.05


def initial(shape: Shape, rng: np.random.Generator, dtype: type[np.floating[Any]] = np.float32) -> Parameters:
    """Fresh parameters drawn from `rng`: matrices small and normal, gains one, biases zero."""
    width = shape.width
    matrices = {"embed": (shape.vocabulary, width), "position": (shape.context, width)}
    vectors = {"final.gain": 1.0, "final.bias": 0.0}
    for layer in range(shape.layers):
        name = f"layers.{layer}."
        matrices |= {name + "qkv": (width, 3 * width), name + "out": (width, width)}
        matrices |= {name + "up": (width, 4 * width), name + "down": (4 * width, width)}
        for norm in ("norm1", "norm2"):
            vectors |= {f"{name}{norm}.gain": 1.0, f"{name}{norm}.bias": 0.0}
    parameters = {name: rng.normal(0.0, 0.05, size).astype(dtype) for name, size in matrices.items()}
    return parameters | {name: np.full(width, value, dtype) for name, value in vectors.items()}


@dataclass(slots=True)
class Pass:
    """One forward and backward pass. `rng` draws the dropout masks; None switches dropout off."""

    shape: Shape
    parameters: Parameters
    rng: np.random.Generator | None
    gradients: Parameters = field(default_factory=dict)

    def _add(self, name: str, gradient: Array) -> None:
        self.gradients[name] = self.gradients[name] + gradient if name in self.gradients else gradient

    def _linear(self, x: Array, name: str) -> tuple[Array, Pullback]:
        weight = self.parameters[name]

        def back(dy: Array) -> Array:
            self._add(name, x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1]))
            return dy @ weight.T

        return x @ weight, back

    def _normalise(self, x: Array, name: str) -> tuple[Array, Pullback]:
        gain, bias = self.parameters[name + ".gain"], self.parameters[name + ".bias"]
        centred = x - x.mean(-1, keepdims=True)
        scale = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + x.dtype.type(1e-5))
        unit = centred * scale

        def back(dy: Array) -> Array:
            self._add(name + ".gain", (dy * unit).reshape(-1, gain.size).sum(0))
            self._add(name + ".bias", dy.reshape(-1, gain.size).sum(0))
            du = dy * gain
            dx: Array = scale * (du - du.mean(-1, keepdims=True) - unit * (du * unit).mean(-1, keepdims=True))
            return dx

        return unit * gain + bias, back

    def _drop(self, x: Array) -> tuple[Array, Pullback]:
        if self.rng is None or self.shape.dropout == 0:
            return x, lambda dy: dy
        keep = self.rng.random(x.shape, np.float32) >= self.shape.dropout
        mask = keep.astype(x.dtype) / x.dtype.type(1 - self.shape.dropout)
        return x * mask, lambda dy: dy * mask

    def _attend(self, x: Array, name: str) -> tuple[Array, Pullback]:
        batch, length, width = x.shape
        heads, size = self.shape.heads, width // self.shape.heads
        scale = x.dtype.type(1 / math.sqrt(size))
        mixed, mixed_back = self._linear(x, name + "qkv")
        query, key, value = mixed.reshape(batch, length, 3, heads, size).transpose(2, 0, 3, 1, 4)
        scores = (query @ key.swapaxes(-1, -2)) * scale
        scores[..., np.triu(np.ones((length, length), bool), 1)] = -np.inf
        weights = _softmax(scores)
        merged = (weights @ value).transpose(0, 2, 1, 3).reshape(batch, length, width)
        y, y_back = self._linear(merged, name + "out")

        def back(dy: Array) -> Array:
            dmerged = y_back(dy).reshape(batch, length, heads, size).transpose(0, 2, 1, 3)
            dweights = dmerged @ value.swapaxes(-1, -2)
            dscores = weights * (dweights - (dweights * weights).sum(-1, keepdims=True)) * scale
            dmixed = np.stack((dscores @ key, dscores.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ dmerged))
            return mixed_back(dmixed.transpose(1, 3, 0, 2, 4).reshape(batch, length, 3 * width))

        return y, back

    def _widen(self, x: Array, name: str) -> tuple[Array, Pullback]:
        up, up_back = self._linear(x, name + "up")
        gate = 1 / (1 + np.exp(-up))
        y, y_back = self._linear(up * gate, name + "down")

        def back(dy: Array) -> Array:
            return up_back(y_back(dy) * gate * (1 + up * (1 - gate)))

        return y, back

    def _residual(self, x: Array, norm: str, branch: Branch) -> tuple[Array, Pullback]:
        name = norm.rsplit("norm", 1)[0]
        unit, unit_back = self._normalise(x, norm)
        y, y_back = branch(unit, name)
        dropped, drop_back = self._drop(y)
        return x + dropped, lambda dy: dy + unit_back(y_back(drop_back(dy)))

    def run(self, inputs: Array, targets: Array) -> float:
        """The mean cross-entropy in nats; afterwards `gradients` holds one array per parameter.

        `inputs` and `targets` are integers of shape (batch, length), length at most `shape.context`.
        """
        embed, length = self.parameters["embed"], inputs.shape[1]
        x = embed[inputs] + self.parameters["position"][:length]
        pullbacks: list[Pullback] = []
        for layer in range(self.shape.layers):
            for norm, branch in (("norm1", self._attend), ("norm2", self._widen)):
                x, back = self._residual(x, f"layers.{layer}.{norm}", branch)
                pullbacks.append(back)
        x, back = self._normalise(x, "final")
        pullbacks.append(back)

        loss, dlogits = _cross_entropy(x @ embed.T, targets)
        self._add("embed", dlogits.reshape(-1, embed.shape[0]).T @ x.reshape(-1, x.shape[-1]))
        dx = dlogits @ embed
        for back in reversed(pullbacks):
            dx = back(dx)
        dposition = np.zeros_like(self.parameters["position"])
        dposition[:length] = dx.sum(0)
        self._add("position", dposition)
        chosen = np.eye(embed.shape[0], dtype=dx.dtype)[inputs.reshape(-1)]
        self._add("embed", chosen.T @ dx.reshape(-1, dx.shape[-1]))
        return loss


def _softmax(scores: Array) -> Array:
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def _cross_entropy(logits: Array, targets: Array) -> tuple[float, Array]:
    probabilities = _softmax(logits).reshape(-1, logits.shape[-1])
    rows, flat = np.arange(targets.size), targets.reshape(-1)
    loss = -float(np.log(probabilities[rows, flat]).mean())
    probabilities[rows, flat] -= 1
    return loss, (probabilities / logits.dtype.type(targets.size)).reshape(logits.shape)


@dataclass(slots=True)
class AdamW:
    """Adam with decoupled weight decay; moments in fp32, one pair per parameter. `count` is the updates made."""

    first: Parameters = field(default_factory=dict)
    second: Parameters = field(default_factory=dict)
    count: int = 0

    def update(self, parameters: Parameters, gradients: Parameters, rate: float) -> None:
        """Move `parameters` in place, gradients clipped to a norm of 1 and matrices decayed by 0.1·`rate`."""
        squares = sum(float(np.sum(gradients[name] ** 2, dtype=np.float64)) for name in sorted(gradients))
        clip = np.float32(min(1.0, 1.0 / (math.sqrt(squares) + 1e-6)))
        self.count += 1
        step = np.float32(rate / (1 - 0.9**self.count))
        correction = np.float32(1 / math.sqrt(1 - 0.99**self.count))
        for name, value in parameters.items():
            gradient = gradients[name] * clip
            first = self.first.setdefault(name, np.zeros_like(value))
            second = self.second.setdefault(name, np.zeros_like(value))
            first += np.float32(0.1) * (gradient - first)
            second += np.float32(0.01) * (gradient * gradient - second)
            if value.ndim > 1:
                value *= np.float32(1 - 0.1 * rate)
            value -= step * first / (np.sqrt(second) * correction + np.float32(1e-8))


@dataclass(slots=True)
class Cosine:
    """Learning rate: linear warm-up, then half a cosine down to a tenth. `count` is the rates given out."""

    total: int
    peak: float = 3e-3
    warmup: int = 10
    count: int = 0

    def next(self) -> float:
        """The rate of the next update."""
        self.count += 1
        if self.count <= self.warmup:
            return self.peak * self.count / self.warmup
        progress = min(1.0, (self.count - self.warmup) / max(1, self.total - self.warmup))
        return self.peak * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))
