"""`jax.nn.dot_product_attention`, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _inputs, repeat


def prepare(case: Case) -> Prepared:
    """Prepare a case of inputs (B, T, N, H); causal, windows, padding and grouped heads by its own arguments."""
    dtype = jnp.dtype(case.dtype)
    arguments = [jnp.asarray(x, dtype) for x in _inputs.inputs(case)]
    options: dict[str, Any] = {
        "is_causal": case.causal,
        "local_window_size": None if case.window is None else (case.window - 1, 0),
        "key_value_seq_lengths": jnp.asarray(case.key_lengths) if case.padded else None,
    }

    def attention(query: Any, key: Any, value: Any) -> Any:
        return jax.nn.dot_product_attention(query, key, value, **options)

    def forward(count: int) -> Callable[[], Any]:
        repeated = jax.jit(repeat(attention, count))
        return lambda: jax.block_until_ready([repeated(*arguments)])

    @jax.jit
    def forward_and_backward(upstream: Any, *tensors: Any) -> Any:
        output, gradients = jax.vjp(attention, *tensors)
        return [output, *gradients(upstream)]

    def arrays(results: list[Any]) -> list[np.ndarray]:
        return [np.asarray(result, np.float32) for result in results]

    if not case.backward:
        return Prepared.chain(case, forward, arrays)
    upstream = jnp.asarray(_inputs.output_gradient(case), dtype)
    return Prepared(
        lambda: jax.block_until_ready(forward_and_backward(upstream, *arguments)), arrays
    )
