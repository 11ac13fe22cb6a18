"""Dot-product attention with one head and no variables, as a Keras layer."""

from __future__ import annotations

import math
from typing import Any

import keras

from heed.layers._single_head import SingleHeadAttention
from heed.layers.layer_config import (
    LayerConfig,
    describes_options,
    pop_options,
    takes_options,
)
from heed.layers.shapes import same_width
from heed.number_checks import check_real


@keras.saving.register_keras_serializable(package="heed")
@describes_options
class DotProductAttention(SingleHeadAttention):
    r"""Attention by dot products without projections or variables.

        output = softmax(scale Q K^T, masked) V

    Replaces `keras.layers.Attention`, whose plain form is `scale=1.0`. A call takes its arguments one by one, as
    `MultiHeadAttention`, not as a list.

    Args:
        scale: number that multiplies the dot products. Default: 1 / sqrt(D).
        dropout: rate in [0, 1) of dropped attention weights in training. Default 0.
        seed: int, seed of the dropout. Default: drawn.
        {options}
        **kwargs: `name`, `dtype` and the like, as for every Keras layer.

    Call arguments:
        query: (B, T, D), or (B, D): a single state, which gives (B, V) and scores (B, S).
        value: (B, S, V).
        key: (B, S, D). Default: `value`.
        query_mask, value_mask, key_mask: (B, T), (B, S), (B, S) boolean, True = a real position, in addition to the
            masks that the tensors carry.
        attention_mask: a `heed.Mask`, or booleans (T, S) or (B, T, S), True = attend; for a single
            state (B, S).
        return_attention_scores: whether to return the weights too, (B, T, S), in training after dropout. They never
            change the output.
        training: whether dropout is on.
        use_causal_mask: whether query i sees only keys j <= i.
        cache: from `project_cache`; then `value` and `key` are not read and may be None.

    Returns:
        The output (B, T, V). With `return_attention_scores` a tuple (output, scores), with `cache` (output, cache) or
        (output, scores, cache).

    Raises:
        ValueError: if arguments or shapes are inconsistent.

    Numerics:
        A query that may attend to nothing gives 0 and weights 0. Softmax in float32 (float64 for float64). Scores are
        in the compute dtype.

    Source:
        Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1 (their d_k is D).

    Example:
        >>> import numpy as np
        >>> from heed.layers import DotProductAttention
        >>> x = np.eye(3, dtype="float32")[None]
        >>> output = DotProductAttention(scale=100.0)(x, x)
        >>> bool(np.allclose(output, x))
        True
    """

    @takes_options("scores")
    def __init__(
        self,
        scale: float | None = None,
        dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        config = LayerConfig(**pop_options(kwargs, "scores"))
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        self._set_score_options(config)
        self.scale = check_real("scale", scale, least=-math.inf, optional=True)

    def _build_scores(self, query_width: int, key_width: int) -> None:
        same_width(query_width, key_width)

    def _score(self) -> dict[str, Any]:
        return {"scale": self.scale, **self._score_options()}
