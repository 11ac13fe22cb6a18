"""What heads do to a result: switching them off, and the gradient of a result by their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.inspect._run import run
from heed.inspect._seen import Seen
from heed.inspect._watch import Look
from heed.ops.backends import current

Floats = NDArray[np.floating[Any]]


class HeadCost(NamedTuple):
    """What switching off one head costs."""

    layer: str
    head: int
    cost: float


@dataclass(frozen=True)
class Ablation:
    """What `ablate` found.

    Attributes:
        baseline: the metric of the whole model.
        costs: by layer name (N,), the metric without the head less the baseline.

    >>> Ablation(1.0, {"a": np.array([0.5, -0.25])}).ranking[0]
    HeadCost(layer='a', head=0, cost=0.5)
    """

    baseline: float
    costs: Mapping[str, Floats]

    @property
    def ranking(self) -> list[HeadCost]:
        """All heads, the one that costs most first."""
        found = [
            HeadCost(name, head, float(cost))
            for name, costs in self.costs.items()
            for head, cost in enumerate(costs)
        ]
        return sorted(found, key=lambda x: -x.cost)

    def __repr__(self) -> str:
        ranking = self.ranking
        lines = [f"  {x.cost:+.4g}  {x.layer}, head {x.head}" for x in ranking[:10]]
        more = [f"  ... and {len(ranking) - 10} more"] if len(ranking) > 10 else []
        return "\n".join([f"<Ablation of {self.baseline:.4g}", *lines, *more]) + ">"


def ablate(
    model: Any,
    inputs: Any,
    metric: Callable[[Any], Any],
    *,
    layers: Sequence[str] | None = None,
    call_arguments: Mapping[str, Any] | None = None,
) -> Ablation:
    """Switches off each head in turn and says what that costs. The model is never changed.

    A head that is switched off gives 0 to the output projection. Its cost is metric(outputs without it) -
    metric(outputs), so let the metric be a loss: where larger is better, negate it.

    Args:
        model, inputs, call_arguments: as for `capture`; it runs once, and once more for each head.
        metric: of the model's outputs, a number.
        layers: names of attention layers, as for `capture`. Default: all. A layer that is called twice counts as two.

    Returns:
        An `Ablation`, with `ranking`.

    Raises:
        ValueError, TypeError: as `capture`.

    Source: Michel et al., "Are Sixteen Heads Really Better than One?", 2019, section 3.2.

    >>> import keras, numpy as np
    >>> x = keras.Input((6, 8))
    >>> model = keras.Model(x, keras.layers.MultiHeadAttention(2, 4, name="attention")(x, x))
    >>> values = np.random.default_rng(0).normal(size=(1, 6, 8)).astype("float32")
    >>> expected = model(values)
    >>> found = ablate(model, values, lambda y: np.mean((y - expected) ** 2))
    >>> found.baseline, len(found.ranking), bool(found.ranking[0].cost > found.ranking[1].cost > 0)
    (0.0, 2, True)
    """
    heads: dict[str, int] = {}

    def count(full: str, seen: Seen, kind: str) -> None:
        heads[full] = seen.sizes[1]

    outputs, names = run(model, inputs, call_arguments, count, layers)
    baseline = _number(metric(outputs))
    costs = {}
    for full, number in heads.items():
        without = [
            _number(metric(run(model, inputs, call_arguments, _switch_off(full, head))[0]))
            for head in range(number)
        ]
        costs[names[full]] = np.array(without) - baseline
    return Ablation(baseline, costs)


def _switch_off(target: str, head: int) -> Look:
    return lambda full, seen, kind: seen.without(head) if full == target else None


def _number(value: Any) -> float:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "fiu":
        raise ValueError(
            f"`metric` must return a number. Received: {array.dtype} of shape {array.shape}"
        )
    return float(array.reshape(()))


def gradient_times_attention(
    model: Any,
    inputs: Any,
    target: Callable[[Any], Any],
    *,
    layers: Sequence[str] | None = None,
    call_arguments: Mapping[str, Any] | None = None,
) -> dict[str, Floats]:
    """How much each weight contributes to a number that is computed from the outputs, to first order.

    contribution_bnij = w_bnij dL/dw_bnij

    Args:
        model, inputs, layers, call_arguments: as for `capture`.
        target: of the model's outputs, a scalar tensor L, such as the logit of one class of one entry.

    Returns:
        By layer name (B, N, T, S), signed; every weight of every head is held. 0 where L does not depend on a weight.

    Raises:
        ValueError, TypeError: as `capture`, or if L is not a scalar tensor.

    Source: Chefer et al., "Generic Attention-Model Explainability for Interpreting Bi-Modal and Encoder-Decoder
        Transformers", 2021, who keep the positive part and average over heads; Hao et al., "Self-Attention
        Attribution", 2021, integrate it.

    >>> import keras, numpy as np
    >>> x = keras.Input((6, 8))
    >>> model = keras.Model(x, keras.layers.Attention(name="attention")([x, x]))
    >>> values = np.random.default_rng(0).normal(size=(1, 6, 8)).astype("float32")
    >>> found = gradient_times_attention(model, values, lambda y: y[0, 2, 3])["attention"]
    >>> bool(np.isclose(found.sum(), model(values)[0, 2, 3], atol=1e-5)), float(abs(found[0, 0, 0]).max())
    (True, 0.0)
    """
    found: dict[str, list[Seen]] = {}  # several where single states ask

    def take(full: str, seen: Seen, kind: str) -> None:
        tape.watch(seen.output)
        found.setdefault(full, []).append(seen)

    with current().gradient_tape() as tape:
        outputs, names = run(model, inputs, call_arguments, take, layers)
        value = target(outputs)
    if tuple(getattr(value, "shape", (0,))) != ():
        raise ValueError(f"`target` must return a scalar tensor. Received: {value!r}")
    outputs_of = {full: [x.output for x in steps] for full, steps in found.items()}
    gradients = tape.gradient(value, outputs_of, unconnected_gradients="zero")
    return {
        names[full]: np.concatenate(
            [_contributions(*both) for both in zip(steps, gradients[full], strict=True)], axis=2
        )
        for full, steps in found.items()
    }


def _contributions(seen: Seen, gradient: Any) -> Floats:
    _, N, T, _ = seen.sizes
    return seen.weights(range(T), range(N)) * seen.weights_gradient(gradient)
