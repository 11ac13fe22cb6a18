"""Attribution: how much weights, heads, layers and positions add to a number of the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from heed.inspect._observed import ObservedAttention
from heed.inspect._run import run_observed
from heed.inspect._statistics import Floats
from heed.ops.backends import current


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
