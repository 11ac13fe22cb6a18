"""Scaled dot-product, additive, multi-head and cross-attention on the same shapes.

The tutorial writes a layer for each, calls it on random tensors and prints the shapes: scaled dot-product attention,
Bahdanau's additive attention with a decoder's state as its query, multi-head attention, and the same with another
sequence as keys and values (cross-attention). Query, value and units have widths of their own: 50, 60 and 70.

What differs here:
- Additive attention takes one decoder state (B, D) or a sequence of them (B, T, D), and returns (B, V) or (B, T, V);
  the tutorial's layer returns (B, 1, V) for a single state.
- Dot products need keys as wide as queries, so the tutorial uses other tensors for them. Here all four attentions get
  the same tensors, and keys are projected for dot products.
- True means "attend" in every mask, and a row without visible keys gives 0 instead of the mean of padding.
- The sums of the weights are printed: 1 for each row, or 0 if no key is visible.

    python examples/four_attentions.py
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from heed import Mask, layers

BATCH, QUERIES, KEYS = 4, 5, 7
QUERY_WIDTH, VALUE_WIDTH, UNITS = 50, 60, 70


def print_row(name: str, output: Any, weights: Any) -> None:
    """Print the shapes, and the sums of the rows of weights."""
    sums = np.unique(np.round(np.sum(weights, axis=-1), 4))
    print(
        f"{name:<34} output {tuple(output.shape)!s:<14} weights {tuple(weights.shape)!s:<14}", sums
    )


def main() -> dict[str, Any]:
    """Call all attentions; return the outputs by name."""
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    query = generator.standard_normal((BATCH, QUERIES, QUERY_WIDTH)).astype("float32")
    value = generator.standard_normal((BATCH, KEYS, VALUE_WIDTH)).astype("float32")
    state = query[:, 0]  # a single decoder state
    # The four sequences of values have all, 3, 1 and no real positions.
    real = np.arange(KEYS) < np.array([[KEYS], [3], [1], [0]])

    outputs: dict[str, Any] = {}

    def show(name: str, layer: Any, *arguments: Any, **options: Any) -> None:
        output, weights = layer(*arguments, return_attention_scores=True, **options)
        print_row(name, output, weights)
        outputs[name] = output

    dot = layers.DotProductAttention()  # scaled by 1 / sqrt(H) by default
    key = keras.layers.Dense(QUERY_WIDTH)(value)  # as wide as the query
    show("dot-product, self", dot, query, query)
    show("dot-product, causal", dot, query, query, use_causal_mask=True)
    show("dot-product, cross", dot, query, value, key=key)
    show("dot-product, cross, masked", dot, query, value, key=key, value_mask=real)

    additive = layers.AdditiveAttention(UNITS)
    show("additive, one state", additive, state, value)
    show("additive, one state, masked", additive, state, value, value_mask=real)
    show("additive, a sequence", additive, query, value)
    show("additive, a sequence, masked", additive, query, value, value_mask=real)

    show("multi-head, self", layers.MultiHeadAttention(num_heads=5, key_dim=10), query, query)
    cross = layers.MultiHeadAttention(num_heads=5, key_dim=10, value_dim=12)
    show("multi-head, cross", cross, query, value)
    show("multi-head, cross, masked", cross, query, value, value_mask=real)
    # A `Mask` can be combined with others and drawn.
    mask = Mask.lengths([KEYS, 3, 1, 0]) & Mask.window(1, 1)
    show("multi-head, cross, in a window", cross, query, value, attention_mask=mask)
    print("the mask of the second item:", mask.draw(QUERIES, KEYS, batch=1), sep="\n")
    return outputs


if __name__ == "__main__":
    main()
