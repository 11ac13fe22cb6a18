"""How heads affect a result: ablation, and gradients with respect to attention weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from heed.inspect._observed import ObservedAttention
from heed.inspect._run import run_observed
from heed.inspect._statistics import Floats
from heed.inspect._watch import Place, Tap
from heed.ops.backends import current


class HeadCost(NamedTuple):
    """The cost of ablating one head."""

    layer: str
    head: int
    cost: float


@dataclass(frozen=True)
class Ablation:
    """The result of `ablate`.

    Attributes:
        baseline: the metric of the whole model.
        costs: the metric without each head minus the baseline, (N,) by layer name.

    >>> Ablation(1.0, {"a": np.array([0.5, -0.25])}).ranking[0]
    HeadCost(layer='a', head=0, cost=0.5)
    """

    baseline: float
    costs: Mapping[str, Floats]

    @property
    def ranking(self) -> list[HeadCost]:
        """All heads, the most costly first."""
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
    """Measures the contribution of each head by switching it off. The model itself does not change.

    A head that is off gives 0 to the output projection. Its cost is metric(outputs without it) - metric(outputs), so
    the metric should be a loss; negate a metric where larger is better.

    Args:
        model, inputs, call_arguments: as for `capture`; it runs once, and once more for each head.
        metric: takes the model's outputs and returns a number.
        layers: names of attention layers, as for `capture`. Default: all. A layer called twice counts as two.

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

    def count(full: str, attention: ObservedAttention, kind: str) -> None:
        heads[full] = attention.sizes[1]

    with current().without_gradients():
        outputs, names = run_observed(model, inputs, call_arguments, count, layers)
        baseline = _to_number(metric(outputs))
        costs = {}
        for full, number in heads.items():
            without = []
            for head in range(number):
                taps = (_disable_head(full, head),)
                outputs, _ = run_observed(model, inputs, call_arguments, count, layers, taps=taps)
                without.append(_to_number(metric(outputs)))
            costs[names[full]] = np.array(without) - baseline
    return Ablation(baseline, costs)


def _disable_head(target: str, head: int) -> Tap:
    def tap(place: Place, x: Any) -> Any:
        if place.name != f"{target}/heads":
            return None
        kept = np.arange(x.shape[2])[:, None] != head
        return ops.where(kept, x, ops.zeros((), x.dtype))

    return tap


def _to_number(value: Any) -> float:
    array = ops.convert_to_numpy(value)
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
    """The contribution of each weight to a scalar function of the outputs, to first order.

    contribution_bnij = w_bnij dL/dw_bnij

    Args:
        model, inputs, layers, call_arguments: as for `capture`.
        target: takes the model's outputs and returns a scalar tensor L, such as the logit of one class of one entry.

    Returns:
        By layer name (B, N, T, S), signed, for every weight of every head. 0 where L does not depend on a weight.

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
    found: list[tuple[str, ObservedAttention]] = []  # several of one name for a recurrent decoder
    short: dict[str, str] = {}

    def compute(mark: Callable[[Any], Any]) -> Any:
        traced = bool(found)  # again, to trace it

        def take(full: str, attention: ObservedAttention, kind: str) -> Any:
            if not traced:
                found.append((full, attention))
            return mark(attention.output)

        outputs, names = run_observed(model, inputs, call_arguments, take, layers, traced)
        short.update(names)
        value = target(outputs)
        if tuple(getattr(value, "shape", (0,))) != ():
            raise ValueError(f"`target` must return a scalar tensor. Received: {value!r}")
        return value

    gradients = current().gradients(compute)
    products: dict[str, list[Floats]] = {}
    for (full, attention), gradient in zip(found, gradients, strict=True):
        products.setdefault(short[full], []).append(_multiply_gradient(attention, gradient))
    return {name: np.concatenate(steps, axis=2) for name, steps in products.items()}


def _multiply_gradient(attention: ObservedAttention, gradient: Any) -> Floats:
    _, N, T, _ = attention.sizes
    return attention.compute_weights(range(T), range(N)) * attention.compute_gradient(gradient)
