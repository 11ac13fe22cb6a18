"""Making heed's multi-head attention from a layer of Keras."""

from __future__ import annotations

from typing import Any

import keras

# Arguments of GroupQueryAttention by the names that MultiHeadAttention has for them.
GROUPED = {"num_query_heads": "num_heads", "head_dim": "key_dim"}
_PARTS = ("query", "key", "gate", "value", "output")


def from_keras(cls: Any, layer: keras.layers.Layer) -> Any:
    """See `MultiHeadAttention.from_keras`."""
    if not isinstance(layer, (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)):
        raise TypeError(
            "`layer` must be a keras.layers.MultiHeadAttention or GroupQueryAttention. "
            f"Received: layer={layer!r}"
        )
    config = {GROUPED.get(name, name): value for name, value in layer.get_config().items()}
    # Keras keeps this one out of the config.
    config["flash_attention"] = getattr(layer, "_flash_attention", None) or None
    parts = {name: getattr(layer, f"_{name}_dense", None) for name in _PARTS}
    if any(getattr(part, "quantization_mode", None) for part in parts.values()):
        raise ValueError(
            "`layer` must not be quantised: convert it first, then quantise the result. "
            f"Received: layer={layer.name}"
        )
    made = cls.from_config(config)
    if layer.built:
        made.build(**_shapes(layer))
        for name, part in parts.items():
            if part is not None:
                bias = [] if part.bias is None else [part.bias]
                weights = [keras.ops.convert_to_numpy(x) for x in (part.kernel, *bias)]
                getattr(made, f"_{name}_dense").set_weights(weights)
    return made


def _shapes(layer: Any) -> dict[str, Any]:
    """What `build` was called with, but for batch and lengths."""
    rank = len(layer._query_dense.equation.split(",")[0])
    widths = {
        name: getattr(layer, f"_{name}_dense").kernel.shape[0] for name in ("query", "value", "key")
    }
    return {f"{name}_shape": (*(None,) * (rank - 1), width) for name, width in widths.items()}
