"""Sides that call one function of a case's inputs on Keras' backend: the attention of PyTorch, of JAX, and others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from benchmarks.cases import Case
from benchmarks.gpu_device import make_step, to_device, to_host
from benchmarks.peers import Prepared, _inputs, repeat

# PyTorch's own layout, and JAX's.
LAYOUT = "BNTH" if keras.config.backend() == "torch" else "BTNH"


def prepare(
    case: Case,
    function: Callable[..., Any],
    layout: str = LAYOUT,
    *,
    arrays: list[np.ndarray] | None = None,
    weights: Sequence[Any] = (),
) -> Prepared:
    """Return a side that calls a function, with gradients if the case has them.

    Args:
        case: the case.
        function: computes the output from the case's inputs, such as query, key and value.
        layout: of the inputs of dot-product attention, "BTNH" or "BNTH".
        arrays: the inputs, if not all inputs of the case.
        weights: variables of TensorFlow to compute gradients for, too.
    """
    exchange = _inputs.heads_first if layout == "BNTH" else np.asarray

    def tensor(array: np.ndarray) -> Any:
        # Copied, because NumPy allocates in huge pages, unlike PyTorch.
        return keras.ops.copy(to_device(exchange(array), case.dtype))

    def to_arrays(results: Any) -> list[np.ndarray]:
        return [exchange(to_host(result)) for result in results]

    tensors = [tensor(x) for x in arrays or _inputs.inputs(case)]
    if not case.backward:
        return Prepared.chain(
            case, lambda count: make_step(repeat(function, count), tensors), to_arrays
        )
    upstream = tensor(_inputs.output_gradient(case))
    return Prepared(make_step(function, tensors, upstream, weights=weights), to_arrays)


def torch(case: Case) -> Prepared:
    """Call `scaled_dot_product_attention`; causal and grouped heads by its own flags, padding by a mask."""
    import torch as package
    from torch.nn.functional import scaled_dot_product_attention

    mask = None
    if case.padded:
        lengths = package.tensor(case.key_lengths)[:, None, None, None]
        mask = package.arange(case.key_length) < lengths
        if case.causal:  # PyTorch takes a mask or the flag, not both
            mask = mask & package.ones(case.length, case.key_length, dtype=package.bool).tril()
    options: dict[str, Any] = {
        "attn_mask": mask,
        "is_causal": case.causal and mask is None,
        "enable_gqa": case.key_head_count != case.heads,
    }
    return prepare(case, functools.partial(scaled_dot_product_attention, **options))


def jax(case: Case) -> Prepared:
    """Call `jax.nn.dot_product_attention`, compiled; masks and grouped heads by its own arguments."""
    import jax as package

    options: dict[str, Any] = {
        "is_causal": case.causal,
        "local_window_size": None if case.window is None else (case.window - 1, 0),
    }
    if case.padded:
        options["key_value_seq_lengths"] = package.numpy.asarray(case.key_lengths)
    return prepare(case, functools.partial(package.nn.dot_product_attention, **options))
